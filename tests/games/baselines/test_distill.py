"""Self-distillation at a scripted teacher: the advantages of tokens by hand, and what the teacher is shown."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lite_selfplay.data import BASE, Completion, Problem, TokenScores
from lite_selfplay.testing import ScriptedTable
from tests.games.scripted import NONE, THREE, TWO, played, small

SUM = Problem("sum", "What is 1 + 1?", "2", extra={"solution": "One and one are <<1+1=2>>two.\n#### 2"})


class Teacher(ScriptedTable):
    """Finds each token by `steps` nats likelier than the student (-1 each), the last repeated."""

    steps: Sequence[float] = (0.5, -3.0, 0.25)
    read: Any = None

    def score(
        self,
        role: str,
        completions: Sequence[Completion],
        *,
        seat: str | None = None,
        after: Sequence[str] = (),
    ) -> list[TokenScores]:
        type(self).read = (role, seat, [*after], [completion.text for completion in completions])
        found = []
        for completion in completions:
            gaps = [*self.steps, *[self.steps[-1]] * len(completion.token_ids)][: len(completion.token_ids)]
            logprobs = [own + gap for own, gap in zip(completion.logprobs, gaps, strict=True)]
            found.append(TokenScores(logprobs, [0.0] * len(logprobs)))
        return found


def test_advantages_by_hand():
    ((episode,), _) = played(small("distill", 2), {"student": ["ab", TWO]}, [SUM], kind=Teacher)
    (stream,) = episode.streams
    first, second = stream.groups[0].samples
    # "a", "b" and the end of the text: 0.5, -3 and 0.25 nats, the second clipped at 1.
    assert first.advantage == (0.5, -1.0, 0.25)
    assert first.reward == pytest.approx(-0.25 / 3)
    assert [sample.verdict.correct for sample in (first, second)] == [False, True]
    assert second.advantage == (0.5, -1.0, *[0.25] * 17)  # a right answer earns nothing by itself
    # Not clipped: 0.5 - 3 + 0.25 of three tokens, 0.5 - 3 + 17 / 4 of nineteen.
    assert episode.log == {"divergence": pytest.approx(-(-2.25 + 1.75) / 22), "shown": 1.0}
    ((episode,), _) = played(small("distill", 2, clip=0.2), {"student": ["ab", TWO]}, [SUM], kind=Teacher)
    assert episode.streams[0].groups[0].samples[0].advantage == (0.2, -0.2, 0.2)


@pytest.mark.parametrize(
    ("options", "problem", "shown"),
    [
        ({}, SUM, "A right solution:\n\n```\nOne and one are two.\n```"),
        ({}, replace(SUM, extra={}), "The right answer: 2"),
        ({"shown": "answer"}, SUM, "The right answer: 2"),
    ],
)
def test_what_the_teacher_reads(options: dict[str, Any], problem: Problem, shown: str):
    played(small("distill", 2, **options), {"student": [THREE, TWO]}, [problem], kind=Teacher)
    role, seat, prompts, texts = Teacher.read
    assert (role, seat, texts) == ("student", BASE, [THREE, TWO])
    assert all(prompt.startswith("What is 1 + 1?\n\n") and f"\n\n{shown}\n\n" in prompt for prompt in prompts)
    assert len({*prompts}) == 1


def test_a_right_sibling_is_shown_to_the_others_and_without_one_nobody_is_taught():
    game = small("distill", 3, shown="sibling", teacher="student")
    ((episode,), _) = played(game, {"student": [THREE, TWO, NONE]}, [SUM], kind=Teacher)
    role, seat, prompts, texts = Teacher.read
    assert (role, seat, texts) == ("student", None, [THREE, NONE])
    assert all(f"A right solution:\n\n```\n{TWO}\n```" in prompt for prompt in prompts)
    samples = episode.streams[0].groups[0].samples
    assert [(sample.masked, sample.reward is None) for sample in samples] == [(False,) * 2, (True,) * 2, (False,) * 2]
    assert episode.log["shown"] == pytest.approx(2 / 3)
    ((episode,), _) = played(game, {"student": [THREE]}, [SUM], kind=Teacher)
    assert [sample.masked for sample in episode.streams[0].groups[0].samples] == [True] * 3
    assert episode.log == {"divergence": None, "shown": 0.0}


@pytest.mark.parametrize("answer", [{"any_of": ["2", "3"]}, ["1", "2"]])
def test_an_answer_that_is_no_single_value_is_not_shown(answer: Any):
    problem = Problem("two", "Which?", answer)
    ((episode,), _) = played(small("distill", 2), {"student": [TWO]}, [problem], kind=Teacher)
    assert episode.log == {"divergence": None, "shown": 0.0}


def test_a_teacher_whose_prompt_is_too_long_teaches_nothing():
    class Full(Teacher):
        def score(self, role: str, completions: Sequence[Completion], **more: Any) -> list[TokenScores]:
            return [TokenScores((), ()) for _ in completions]

    ((episode,), _) = played(small("distill", 2), {"student": [TWO]}, [SUM], kind=Full)
    assert [(sample.masked, sample.reward) for sample in episode.streams[0].groups[0].samples] == [(True, None)] * 2
