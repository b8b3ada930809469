from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.data import Episode, Problem
from lite_selfplay.errors import ConfigError, GameError
from lite_selfplay.games.propose_solve.questions import NOBODYS, Candidate, Proposal, Vote
from lite_selfplay.games.sqlm.sqlm import fate, read_question
from lite_selfplay.games.sqlm.topics import load_topic, numbered_lines
from lite_selfplay.testing import ScriptedTable
from lite_selfplay.verify.programs import program_problem
from tests.games.scripted import NONE, THREE, TWO, played, small
from tests.made import Unread, completion, rewards, samples, stream


def answer(value: object) -> str:
    return f"<answer>{value}</answer>"


ASSERTED = program_problem("p-7", "Write a function f.", {"tests": ["assert f(1) == 1"]}, "p-7")


def step(proposals: list[str], answers: list[Any], *sizes: int, kind: type = ScriptedTable, **options: Any) -> Episode:
    """A step that trains both; an answer is its value in the tag, or `no idea` for None."""
    texts = ["no idea" if value is None else answer(value) for value in answers]
    game = small("sqlm", *sizes, **{"proposer_every": 1, **options})
    ((episode,), _) = played(game, {"proposer": proposals, "solver": texts}, kind=kind)
    return episode


def test_who_is_paid():
    """A question on which some answers agree, but not all: of four 0, 0, 1, 1, 0, and of two none."""
    for n in range(2, 33):
        voted = [Candidate("q", Proposal(NOBODYS), vote=Vote(None, votes, n, ())) for votes in range(n + 1)]
        assert [not fate(question) for question in voted] == [False, False, *[True] * (n - 2), False]


@pytest.mark.parametrize(
    ("said", "label", "rewards", "earned", "reason"),
    [
        ([3, 3, 3, 3], "3", [1, 1, 1, 1], 0, "all_agree"),
        ([3, "x = 3", 4, "3.0"], "3", [1, 1, 0, 1], 1, ""),
        ([3, 4, 3, 4], None, [0, 0, 0, 0], 1, ""),  # a tie
        ([1, 2, 3, 4], None, [0, 0, 0, 0], 0, "none_agree"),
        ([5, None, None, None], None, [0, 0, 0, 0], 0, "none_agree"),
        ([5, 5, None, 6], "5", [1, 1, 0, 0], 1, ""),
        ([None] * 4, None, [0, 0, 0, 0], 0, "none_agree"),
        (["unknown", 7, "cannot be determined", "N/A"], None, [0, 0, 0, 0], 0, "none_agree"),
    ],
)
def test_the_majority_labels_a_question(said, label, rewards, earned, reason):
    episode = step(["What is 1 + 2?"], said)
    solvers = samples(episode, "solver")[:4]
    assert [sample.reward for sample in solvers] == rewards
    assert {sample.info["label"] for sample in solvers} == {label}
    assert stream(episode, "solver").groups[0].problem == Problem("q-0-0", "What is 1 + 2?", label)
    proposal = samples(episode, "proposer")[0]
    assert (proposal.reward, proposal.verdict and proposal.verdict.reason) == (earned, reason)


def test_who_does_not_know_is_no_majority_where_words_are_answers(tmp_path: Path):
    topic = tmp_path / "colours.txt"
    topic.write_text("Ask for a colour.")
    for words, label in (("unknown " * 4, None), ("unknown red N/A red", None), ("red red red -", "red")):
        said = [None if word == "-" else word for word in words.split()]
        episode = step(["Which colour?"], said, topic=str(topic))
        assert {sample.info["label"] for sample in samples(episode, "solver")[:4]} == {label}


@pytest.mark.parametrize(
    ("topic", "text", "stop", "question", "reason"),
    [
        # The reply is the question.
        ("arithmetic", "What is 2 + 5?", "eos", "What is 2 + 5?", ""),
        ("arithmetic", "<think>a</think> 2 + 5\n", "eos", "2 + 5", ""),
        ("arithmetic", "What is 2 +", "length", "What is 2 +", "truncated"),
        # It follows the last mark.
        ("algebra", "1. a 2. b\nSelected Question: 2x = 4, x?", "eos", "2x = 4, x?", ""),
        ("algebra", "Selected Question: a\n**Selected Question:** b", "eos", "b", ""),
        ("algebra", "selected question\n-3x = 6", "eos", "-3x = 6", ""),
        ("algebra", "Selected Question:", "eos", "", "empty"),
        ("algebra", "What is x?", "eos", "", "off_format"),
        ("algebra", "What is x", "length", "", "truncated"),
        ("algebra", "Selected Question: what is", "length", "what is", "truncated"),
    ],
)
def test_where_the_question_stands_and_what_is_none(topic: str, text: str, stop: str, question: str, reason: str):
    proposal = read_question(load_topic(topic, 16), completion(text, stop))
    assert (proposal.question, proposal.reason) == (question, reason)


def test_a_reply_without_its_mark_or_too_long_to_be_asked_earns_nothing_and_trains_nobody():
    said = ["What is x?", "Selected Question:", "Selected Question: 1 + 1?", "Selected Question: 2 + 2?"]
    episode = step(said, [2, 2, 3, 4], topic="algebra")
    # Without its mark it is masked, too.
    paid = [(sample.reward, sample.masked) for sample in samples(episode, "proposer")]
    assert paid == [(0, True), (0, False), (1, False), (1, False)]
    assert len(stream(episode, "solver").groups) == 2
    assert episode.log["refused"] == {"empty": 1, "off_format": 1}
    episode = step(["a long one", "1 + 1?"], [2, 2, 3], 3, kind=Unread)
    paid = [(sample.reward, sample.masked) for sample in samples(episode, "proposer")]
    assert paid == [(0, False), (1, False), (0, False)]
    assert len(stream(episode, "solver").groups) == 1
    assert episode.log["refused"] == {"too_long": 2}


def test_the_log_says_how_right_the_labels_are():
    log = step(["What is 1 + 2?", "What is 2 + 2?", "Ann has 3 hens.", ""], [3, 3, 4, 5, 9, 9, 9, None]).log
    assert (log["labels_checked"], log["label_accuracy"]) == (2, 0.5)  # the hens' true value is not computed
    assert log["vote_share"] == pytest.approx((0.5 + 0.75 + 0.5) / 3)
    assert (log["proposals"], log["usable"], log["refused"]) == (4, 3, {"empty": 1})
    assert log["unread_answers"] == pytest.approx(1 / 12)


def test_anchors_are_answered_in_turn_and_judged_by_their_labels():
    game = small("sqlm", 2, 1, proposer_every=1, anchors=3, shots=2)
    assert (game.sources, game.needs_answers, game.rollouts_per_step()) == (("problems",), True, 10)
    assert (small("sqlm").sources, small("sqlm").needs_answers) == ((), False)
    problems = [Problem(f"p-{k}", f"What is 1 + {k}?", "2") for k in range(5)]
    # A tie; anchors 0 and 1: half right, none. Then a vote for 3; anchors 2 and 0: both right, half.
    said = [TWO, THREE, TWO, THREE, THREE, THREE, THREE, THREE, TWO, TWO, TWO, NONE]
    (first, second), table = played(game, {"proposer": ["5 + 5?", ""], "solver": said}, problems, steps=2)
    for episode, names, paid, labels in (
        (first, ["q-0-0", "p-0", "p-1"], [[0, 0], [1, 0], [0, 0]], [None, "2", "2"]),
        (second, ["q-1-0", "p-2", "p-0"], [[1, 1], [1, 1], [1, 0]], ["3", "2", "2"]),
    ):
        groups = stream(episode, "solver").groups
        assert [group.samples[0].info for group in groups] == [
            {"question": name, "label": label} for name, label in zip(names, labels, strict=True)
        ]
        assert [group.problem.id for group in groups if group.problem] == names
        assert rewards(episode, "solver") == paid
        assert (episode.log["proposals"], episode.log["usable"], sum(episode.log["pass_rates"])) == (2, 1, 1)
    assert [(role, len(prompts), n) for role, prompts, n in table.asked] == [("proposer", 1, 2), ("solver", 3, 2)] * 2
    assert game.state()["position"] == 4


def test_anchors_train_a_step_without_a_question_and_no_more_are_answered_than_there_are():
    game = small("sqlm", 2, 4, proposer_every=1, anchors=16)
    problems = [Problem(f"p-{k}", f"What is 1 + {k}?", "2") for k in range(2)]
    ((episode,), _) = played(game, {"proposer": [""], "solver": [TWO, THREE, TWO, TWO]}, problems)
    assert rewards(episode, "solver") == [[1, 0], [1, 1]]
    assert all(sample.masked for sample in samples(episode, "proposer"))
    assert (episode.log["usable"], episode.log["empty_steps"]) == (0, 1)


@pytest.mark.parametrize(("topic", "before"), [("arithmetic", ""), ("algebra", "Selected Question: ")])
def test_prompts_of_the_proposer_show_anchors_as_it_replies(topic: str, before: str):
    game = small("sqlm", 2, 8, topic=topic, anchors=3, shots=2)
    problems = [Problem(f"p-{k}", f"What is 1 + {k}?", "2") for k in range(5)]
    ((episode,), table) = played(game, {"proposer": ["1 + 1?"], "solver": [TWO]}, problems)
    prompts = table.asked[0][1]
    assert [group.problem.text for group in stream(episode, "proposer").groups if group.problem] == prompts
    found = [prompt.removeprefix(game.topic.prompt).split("\n\n")[2:] for prompt in prompts]
    assert {len(examples) for examples in found} == {0, 1, 2}
    assert {text for each in found for text in each} == {f"{before}What is 1 + {k}?" for k in range(3)}
    assert all(len(set(examples)) == len(examples) for examples in found)


@pytest.mark.parametrize(
    ("name", "topic", "problem", "said"),
    [
        ("sqlm", {"topic": "code"}, Problem("p-7", "1 + 1?", "2"), "p-7 .* programming problems with tests of stdin"),
        ("sqlm", {"topic": "code"}, ASSERTED, "p-7 .* programming problems with tests of stdin"),
        ("sqlm", {}, ASSERTED, "p-7 cannot be an anchor, since this game writes no programming problems"),
        ("rzero", {}, ASSERTED, "p-7 cannot be an anchor, since this game writes no programming problems"),
    ],
)
def test_anchors_of_another_kind_are_refused(name: str, topic: dict[str, str], problem: Problem, said: str):
    with pytest.raises(GameError, match=said):
        played(small(name, anchors=1, **topic), {}, [problem])


def test_numbered_lines():
    lines = {
        "1. a b\n2) c\n\n 3: d": ["a b", "c", "d"],
        "Here:\n1. **a**\n**2.** b": ["a", "b"],
        "1. 3 * 4\n2. 5 * 1": ["3 * 4", "5 * 1"],
        "none\n12 + 4\n12.5 pears at 12:30": [],
        "1.\n2. ": [],
    }
    assert {text: numbered_lines(text, cut=False) for text in lines} == lines
    assert numbered_lines("1. 3 * 4\n2. 5 * 1", cut=True) == ["3 * 4"]  # of 12, perhaps


def test_questions_are_written_once_and_drawn_in_a_circle():
    game = small("sqlm", 2, 2, questions="pregenerated", calls=3, questions_per_call=2)
    lists = ["1. What is 1 + 1?\n2. What is 1 + 2?\n3. one too many", "no list", "1. What is 1 + 3?"]
    episodes, table = played(game, {"proposer": lists, "solver": [answer(2)]}, steps=3)
    drawn = []
    for episode in episodes:
        drawn += [group.problem.text for group in stream(episode, "solver").groups if group.problem]
        assert [stream.role for stream in episode.streams] == ["solver"]
        assert episode.log["written"] == 3
    # One for each of two prompts a step, every question once before any is repeated.
    assert sorted(drawn) == sorted([f"What is 1 + {i}?" for i in (1, 2, 3)] * 2)
    assert drawn[:3] == drawn[3:]
    assert [(role, n) for role, _, n in table.asked] == [("proposer", 1)] + [("solver", 2)] * 3
    assert len(game.state()["questions"]) == 3


def test_topics_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "clocks.txt").write_text("Ask something about clocks.\n")
    (tmp_path / "marked.txt").write_text("Think of two, then write: Selected Question: ...")
    (tmp_path / "empty.txt").write_text(" \n")
    monkeypatch.chdir(tmp_path)
    game = small("sqlm", topic="clocks.txt")
    assert game.options.topic == str(tmp_path / "clocks.txt")
    assert game.topic.prompt == "Ask something about clocks."
    assert not game.topic.marked
    assert load_topic("marked.txt", 16).marked
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe\xff")
    for bad, message in (("empty", "is empty"), ("none", "text file that exists"), ("latin", "UTF-8")):
        with pytest.raises(ConfigError, match=message):
            small("sqlm", topic=f"{bad}.txt")
