"""Speaking with runs of the random model: who speaks, in which words, and what the rival sees."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, train
from lite_selfplay.data import Sampling
from lite_selfplay.errors import Interrupted, RequestError, RunFolderError, UnknownNameError
from lite_selfplay.extras.talk import Speakers, Talk, speakers_of
from lite_selfplay.models.chat_template import Turn
from lite_selfplay.runs.evaluating import evaluate
from lite_selfplay.runs.folder import RunFolder
from tests.made_runs import write_evaluation

GREEDY = Sampling(temperature=0.0, max_tokens=16)
SIZES = {"group_size": 2, "problems_per_step": 1, "steps": 2, "save_every": 1}
SMALL = {"model": "tiny", "precision": "fp32", "preflight": False, **SIZES}


@pytest.fixture(scope="module")
def agon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seats that speak unlike each other and unlike the base."""
    seats = {seat: {"init": "gaussian", "init_std": 0.1} for seat in "AB"}
    folder = tmp_path_factory.mktemp("talk") / "agon"
    return train(RunConfig(game="agon", tasks="letters", run_dir=folder, seats=seats, **SMALL)).path


@pytest.fixture(scope="module")
def speakers(agon: Path) -> Iterator[Speakers]:
    with speakers_of(agon) as found:
        yield found


def said(speakers: Speakers, name: str, prompt: Any, sampling: Sampling = GREEDY) -> str:
    return speakers.say(name, prompt, sampling)[-1][0].text


def test_what_is_said_is_what_the_evaluation_measures(agon: Path, speakers: Speakers):
    found = evaluate(agon, "letters", mode="cascade", limit=3, temperature=0.0, max_completion_tokens=16, write=False)
    for number, problem in enumerate(found.problems.values()):
        prompts = {name: speakers.prompt(problem.text) for name in "AB"} | dict.fromkeys(("A->B", "B->A"), problem.text)
        texts = {name: said(speakers, name, prompt) for name, prompt in prompts.items()}
        assert texts == {name: found.rows[name][number][0].completion.text for name in texts}
        assert len(set(texts.values())) > 2  # the seats do differ


def test_a_problem_of_ones_own_is_asked_as_the_runs_are(tmp_path: Path):
    brief = RunConfig(game="grpo", tasks="arithmetic:terms=2,brief=1", run_dir=tmp_path / "run", **SMALL)
    brief = brief.having({"run": {"max_completion_tokens": 4, "steps": 1}})
    with speakers_of(train(brief).path) as found:
        assert found.prompt("1 + 1?").endswith("</answer>.\n\n1 + 1?")


def test_a_signal_stops_an_answer_between_two_tokens_and_the_next_is_whole(speakers: Speakers, monkeypatch):
    whole = said(speakers, "A", "Which?")
    real = speakers.table.sample

    def sample(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments)

    with monkeypatch.context() as signalled:
        signalled.setattr(speakers.table, "sample", sample)
        with pytest.raises(Interrupted, match="SIGINT"):
            said(speakers, "A", "Which?")
    assert said(speakers, "A", "Which?") == whole


def test_names_and_turns(speakers: Speakers):
    assert (speakers.alone, speakers.cascades) == (("base", "A", "B"), ("A->B", "B->A"))
    assert speakers.seats_of("base->A") == ("base", "A")  # whom the game never pairs may meet as well
    for wrong in ("a", "A->C", "A->B->A", "", "->", "unused", "A@1"):
        with pytest.raises(UnknownNameError):
            speakers.seats_of(wrong)
    turns = (Turn("system", "Be short."), Turn("user", "1?"), Turn("assistant", "2"), Turn("user", "3?"))
    ((completion, _),) = speakers.say("A", turns, GREEDY)
    prompt = speakers.table.detokenize(completion.prompt_ids)
    assert [prompt.index(turn.text) for turn in turns] == sorted(prompt.index(turn.text) for turn in turns)


def test_seats_of_checkpoints_speak_beside_those_of_now(agon: Path, speakers: Speakers):
    with speakers_of(agon, past=("base", "A@1", "A@2")) as then:
        assert then.alone == ("base", "A", "B", "A@1", "A@2")
        assert said(then, "A@2", "Which?") == said(then, "A", "Which?") == said(speakers, "A", "Which?")
        assert said(then, "A@1->B", "Which?")
    with pytest.raises(UnknownNameError, match="A@2"), speakers_of(agon, past=("A@3",)):
        pass
    with pytest.raises(RunFolderError, match="no best checkpoint"), speakers_of(agon, past=("A@best",)):
        pass


def test_the_best_checkpoint_is_the_one_that_speaks(agon: Path, tmp_path: Path):
    folder = shutil.copytree(agon, tmp_path / "agon")
    write_evaluation(RunFolder(folder), 1, 1.0)
    here, there = (folder / "checkpoints" / "step-1" / "adapters" / seat for seat in "AB")
    assert (here / "adapter_model.safetensors").read_bytes() != (there / "adapter_model.safetensors").read_bytes()
    with speakers_of(folder, past=("A@best", "A@1")) as found:
        assert said(found, "A@best", "Which?") == said(found, "A@1", "Which?")


# Conversations, of games with and without a rival, and of no game


@pytest.fixture(scope="module")
def short(agon: Path) -> Iterator[Speakers]:
    with speakers_of(agon, max_tokens=8) as found:
        yield found


def test_a_message_is_asked_as_in_training_and_followed_by_each_ones_own_words(short: Speakers):
    eight = Sampling(temperature=0.0, max_tokens=8)
    waited: list[str] = []
    talked = Talk(short, ("base", "A", "A->B"), waits=waited.append)
    with pytest.raises(RequestError, match="nothing to follow"):
        talked.follow("and?")
    entry = talked.ask("Which letter?")
    assert list(entry["answers"]) == waited == ["base", "A", "A->B"]
    assert entry["answers"]["A"]["text"] == said(short, "A", short.prompt("Which letter?"), eight)
    followed = talked.follow("and?")
    assert list(followed["answers"]) == ["base", "A"]  # a cascade answers one problem
    own = (Turn("user", short.prompt("Which letter?")), Turn("assistant", entry["answers"]["A"]["text"]))
    assert followed["answers"]["A"]["text"] == said(short, "A", (*own, Turn("user", "and?")), eight)
    plain = Talk(short, ("A",), plain=True).ask("Which letter?")
    assert plain["answers"]["A"]["text"] == said(short, "A", "Which letter?", eight)
    assert json.loads(json.dumps([entry, followed])) == [entry, followed]


def test_a_duel_shows_what_the_rival_saw(short: Speakers):
    answer = Talk(short, ("A",)).duel("Which letter?")["answers"]["A->B"]
    draft, last = answer["stages"]
    assert (draft["seat"], last["seat"], last["text"]) == ("A", "B", answer["text"])
    *_, (spoken, _) = short.say("A->B", "Which letter?", Sampling(temperature=0.0, max_tokens=8))
    assert (draft["saw"], answer["tokens"]) == (None, 16)
    assert last["saw"] in short.table.detokenize(spoken.prompt_ids)  # the very text in the rival's prompt


def test_what_cannot_be_asked(short: Speakers):
    talked = Talk(short, ("A",))
    room = "at most 4,096"
    for text, sentence in (("  ", "is empty"), ("x" * 1_000_001, "1,000,001 characters"), ("x" * 5000, room)):
        with pytest.raises(RequestError, match=sentence):
            talked.ask(text)
    with pytest.raises(RequestError, match=room):
        short.say("A", "x", Sampling(temperature=0.0, max_tokens=4096))
    assert talked.ask("short")["answers"]["A"]["finish"] in ("eos", "length")


@pytest.mark.parametrize(("game", "cascades"), [("grpo", ()), ("self-refine", ("solver->solver",)), (None, ())])
def test_games_without_a_rival_and_a_base_model(game, cascades: tuple[str, ...], tmp_path: Path, speakers: Speakers):
    asked = RunConfig(game=game or "grpo", tasks="arithmetic", run_dir=tmp_path / "run", **{**SMALL, "steps": 1})
    with speakers_of(train(asked).path if game else "tiny", precision="fp32", max_tokens=8) as alone:
        assert (alone.alone, alone.cascades) == (("base", "solver") if game else ("base",), cascades)
        # Beside trained seats the base speaks as it does alone.
        assert said(alone, "base", "Which?") == said(speakers, "base", "Which?") != said(speakers, "A", "Which?")
        talked = Talk(alone, alone.alone)
        assert set(talked.ask("1 + 1?")["answers"]) == set(alone.alone)
        if cascades:
            assert len(talked.duel("1 + 1?")["answers"][cascades[0]]["stages"]) == 2
            return
        for named, sentence in (((), "no duel"), (("base->base",), "seats do not read each other's answers")):
            with pytest.raises(RequestError, match=sentence):
                talked.duel("1 + 1?", *named)
