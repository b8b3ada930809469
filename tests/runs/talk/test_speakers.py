"""Speaking with runs of the random model: who speaks, in which words, and how several share a generation."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, train
from lite_selfplay.data import Sampling, Turn
from lite_selfplay.errors import ConfigError, RequestError, RunFolderError, UnknownNameError
from lite_selfplay.runs.evaluating import evaluate
from lite_selfplay.runs.talk.conversation import Conversation, failures
from lite_selfplay.runs.talk.reply import Question, Reply
from lite_selfplay.runs.talk.speakers import Speakers, speakers_of

from .conftest import SMALL

GREEDY = Sampling(temperature=0.0, max_tokens=16)


def said(speakers: Speakers, *questions: Question) -> list[Reply]:
    replies = [speakers.reply(question) for question in questions]
    speakers.answer(replies)
    return replies


def test_what_is_said_is_what_the_evaluation_measures(agon: Path, speakers: Speakers):
    found = evaluate(agon, "letters", mode="cascade", limit=3, temperature=0.0, max_completion_tokens=16, write=False)
    for number, problem in enumerate(found.problems.values()):
        names = ("A", "B", "A->B", "B->A")
        questions = [
            Question(name, problem.text if "->" in name else speakers.prompt(problem.text), GREEDY) for name in names
        ]
        texts = {name: reply.text for name, reply in zip(names, said(speakers, *questions), strict=True)}
        assert texts == {name: found.rows[name][number][0].completion.text for name in names}
        assert len(set(texts.values())) > 2  # the seats do differ


def test_only_the_adapter_that_is_asked_speaks(speakers: Speakers, monkeypatch: pytest.MonkeyPatch):
    backend: Any = speakers.table._backend
    real, active = backend.adapters.speaking, list[tuple[str, object]]()

    @contextmanager
    def noted(name: str) -> Iterator[None]:
        with real(name):
            enabled = {m._disable_adapters for m in backend.adapters._layers()}
            active.append((name, None if enabled == {True} else tuple(backend.adapters.model.active_adapters)))
            yield

    monkeypatch.setattr(backend.adapters, "speaking", noted)
    said(speakers, *(Question(name, "?", GREEDY) for name in ("base", "A", "A->B")))
    assert active == [("base", None), ("A", ("A",)), ("B", ("B",))]


def test_together_each_says_what_it_says_alone(speakers: Speakers):
    """Whatever the lengths of prompts, the limits, the seeds and the stop strings of its neighbours."""
    prompts = ["a", "Which letter comes after all of these: q, r, s?", "two\nlines", "1 + 1 = "]
    settings = [
        Sampling(0.8, max_tokens=n, stop=stop) for n, stop in ((3, ()), (24, ("9",)), (24, ()), (12, ("x", "2")))
    ]
    questions = [Question("A", prompt, s, seed=i) for i, (prompt, s) in enumerate(zip(prompts, settings, strict=True))]
    together = said(speakers, *questions)
    alone = [said(speakers, question)[0] for question in questions]
    assert [(r.text, r.finish, r.completion_tokens) for r in together] == [
        (r.text, r.finish, r.completion_tokens) for r in alone
    ]
    assert together[0].completion_tokens <= 3
    assert not any(stop in reply.text for reply in together for stop in reply.question.sampling.stop)


def test_one_generation_serves_whoever_can_share_it(speakers: Speakers, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, int]] = []
    real = speakers.table.speak

    def noted(seat: str, prompts: Any, *more: Any, **options: Any) -> Any:
        asked.append((seat, len(prompts)))
        return real(seat, prompts, *more, **options)

    monkeypatch.setattr(speakers.table, "speak", noted)
    names = ["A", "B", "A", "A->B", "B"]
    said(speakers, *(Question(name, "?", GREEDY) for name in names), Question("A", "?", Sampling(max_tokens=4)))
    assert asked == [("A", 3), ("B", 3), ("A", 1)]


def test_pieces_come_as_they_are_sampled(speakers: Speakers):
    pieces: list[str] = []
    lengths: list[int] = []

    def hear(reply: Reply, piece: str) -> None:
        pieces.append(piece)
        lengths.append(len(reply.stages))

    reply = speakers.reply(Question("B", "Which?", GREEDY), hear)
    speakers.answer([reply])
    assert "".join(pieces) == reply.text
    assert len(pieces) > 2
    assert set(lengths) == {0}  # before the completion was whole


def test_who_is_cancelled_leaves_the_others_as_they_are(speakers: Speakers):
    long = Sampling(temperature=0.8, max_tokens=40)
    alone = said(speakers, Question("A", "one", long, seed=1))[0]
    gone = speakers.reply(Question("A", "two", long, seed=2), hear=lambda reply, piece: reply.cancel())
    stays = speakers.reply(Question("A", "one", long, seed=1))
    speakers.answer([gone, stays])
    assert gone.finish == "cancelled"
    assert gone.completion_tokens < 10 < stays.completion_tokens
    assert stays.text == alone.text


def test_what_fails_is_said_and_the_next_question_is_answered(speakers: Speakers, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as broken:
        broken.setattr(speakers.table._backend, "generate", lambda request: 1 // 0)
        (reply,) = said(speakers, Question("A", "?", GREEDY))
    assert "A could not answer: ZeroDivisionError" in str(reply.error)
    assert said(speakers, Question("A", "?", GREEDY))[0].error is None


@pytest.mark.parametrize(
    ("asked", "tokens", "sentence"),
    [("x" * 5000, 4, "there is room for 4,096 together"), ("x", 4096, "there is room for 4,096 together")],
)
def test_what_has_no_room_is_refused_beside_others_that_have(
    speakers: Speakers, asked: str, tokens: int, sentence: str
):
    sampling = Sampling(temperature=0.0, max_tokens=tokens)
    refused, answered = said(speakers, Question("A", asked, sampling), Question("A", "?", GREEDY))
    assert sentence in str(refused.error)
    assert isinstance(refused.error, RequestError)
    assert answered.finish is not None


@pytest.mark.parametrize("text", ["half \ud800 of a pair", "\udfff"])
def test_halves_of_pairs_are_no_text(speakers: Speakers, text: str):
    with pytest.raises(RequestError, match="surrogate"):
        speakers.reply(Question("A", text, GREEDY))


def test_names(speakers: Speakers):
    assert speakers.names == ("base", "A", "B", "A->B", "B->A")
    assert speakers.seats_of("base->A") == ("base", "A")  # whom the game never pairs may meet as well
    for wrong in ("a", "A->C", "A->B->A", "", "->", "unused"):
        with pytest.raises(UnknownNameError):
            speakers.seats_of(wrong)


def test_a_conversation_is_rendered_turn_by_turn(speakers: Speakers):
    turns = (Turn("system", "Be short."), Turn("user", "1?"), Turn("assistant", "2"), Turn("user", "3?"))
    (reply,) = said(speakers, Question("A", turns, GREEDY))
    prompt = speakers.table.detokenize(reply.stages[0].completion.prompt_ids)
    assert [prompt.index(turn.text) for turn in turns] == sorted(prompt.index(turn.text) for turn in turns)
    with pytest.raises(RequestError, match="one problem"):
        raise said(speakers, Question("A->B", turns, GREEDY))[0].error or AssertionError


# Checkpoints


def test_checkpoints_by_name(agon: Path, speakers: Speakers):
    texts = {}
    for name in ("step-1", "2", "last"):
        with speakers_of(agon, checkpoint=name) as then:
            texts[name] = said(then, Question("A", "Which?", GREEDY))[0].text
    assert texts["2"] == texts["last"] == said(speakers, Question("A", "Which?", GREEDY))[0].text
    with pytest.raises(UnknownNameError, match="step-2"), speakers_of(agon, checkpoint="step-3"):
        pass
    with pytest.raises(RunFolderError, match="no best checkpoint"), speakers_of(agon, checkpoint="best"):
        pass


def test_the_best_checkpoint_is_the_one_that_speaks(agon: Path, tmp_path: Path):
    folder = shutil.copytree(agon, tmp_path / "agon")
    (folder / "checkpoints" / "best.json").write_text(json.dumps({"step": 1, "pass_at_1": 0.5}))
    for seat in "AB":  # what was saved last is not what is asked for
        shutil.copytree(
            folder / "checkpoints" / "step-2" / "adapters" / ("B" if seat == "A" else "A"),
            folder / "adapters" / seat,
            dirs_exist_ok=True,
        )
    with speakers_of(folder, checkpoint="best") as best, speakers_of(agon, checkpoint="1") as first:
        assert best.checkpoint == "step-1"
        texts = [said(each, Question("A", "Which?", GREEDY))[0].text for each in (best, first)]
    assert texts[0] == texts[1]


def test_a_base_model_speaks_alone():
    with speakers_of("tiny", precision="fp32") as base:
        assert base.names == ("base",)
        assert said(base, Question("base", "?", GREEDY))[0].finish is not None
        with pytest.raises(RequestError, match="no rival in no game"):
            Conversation(base, base.alone).duel("1?")
    with pytest.raises(ConfigError, match="base model"), speakers_of("tiny", checkpoint="best"):
        pass


# Conversations, of games with and without a rival


def test_a_message_is_asked_as_in_training_and_followed_by_each_ones_own_words(speakers: Speakers):
    talked = Conversation(speakers, ("base", "A", "A->B"), max_tokens=8)
    with pytest.raises(RequestError, match="nothing to follow"):
        talked.follow("and?")
    entry = talked.ask("Which letter?")
    assert list(entry["answers"]) == ["base", "A", "A->B"]
    assert entry["answers"]["A->B"]["stages"][1]["saw"] is not None
    assert (
        entry["answers"]["A"]["text"]
        == said(speakers, Question("A", speakers.prompt("Which letter?"), Sampling(0.0, max_tokens=8)))[0].text
    )
    followed = talked.follow("and?")
    assert list(followed["answers"]) == ["base", "A"]  # a cascade answers one problem
    own = (Turn("user", speakers.prompt("Which letter?")), Turn("assistant", entry["answers"]["A"]["text"]))
    again = said(speakers, Question("A", (*own, Turn("user", "and?")), Sampling(0.0, max_tokens=8)))[0]
    assert followed["answers"]["A"]["text"] == again.text
    plain = Conversation(speakers, ("A",), max_tokens=8, plain=True).ask("Which letter?")
    assert (
        plain["answers"]["A"]["text"]
        == said(speakers, Question("A", "Which letter?", Sampling(0.0, max_tokens=8)))[0].text
    )
    assert json.loads(json.dumps(talked.entries)) == talked.entries


def test_what_cannot_be_asked(speakers: Speakers):
    talked = Conversation(speakers, ("A",), max_tokens=8)
    for text, sentence in (
        ("  ", "nothing to ask"),
        ("x" * 1_000_001, "1,000,001 characters"),
        ("\ud800", "surrogate"),
    ):
        with pytest.raises(RequestError, match=sentence):
            talked.ask(text)
    entry = talked.ask("long " * 2000)
    assert "there is room for 4,096" in failures(entry)[0]
    assert talked.ask("short")["answers"]["A"]["finish"] is not None


@pytest.mark.parametrize(("game", "cascades"), [("grpo", ()), ("self-refine", ("solver->solver",)), ("sqlm", ())])
def test_games_without_a_rival(game: str, cascades: tuple[str, ...], tmp_path: Path):
    run = train(RunConfig(game=game, tasks="arithmetic", run_dir=tmp_path / game, **{**SMALL, "steps": 1})).path
    with speakers_of(run, max_tokens=8) as alone:
        assert alone.cascades == cascades
        talked = Conversation(alone, alone.alone)
        assert set(talked.ask("1 + 1?")["answers"]) == set(alone.alone)
        if cascades:
            assert talked.duel("1 + 1?")["stages"][1]["saw"] is not None
        else:
            with pytest.raises(RequestError, match="no rival in"):
                talked.duel("1 + 1?")
            with pytest.raises(RequestError, match="knows no cascade"):
                talked.duel("1 + 1?", "base->base")
