"""The settings of an evaluation, and those of papers, with their benchmarks and the means that they report.

Every number of a paper is from the source named beside it, unless a comment says that it is ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from lite_selfplay.config import KEYS, RunConfig, Section, explain
from lite_selfplay.config.sections import key
from lite_selfplay.data import EvalSpec, Sampling
from lite_selfplay.errors import UnknownNameError
from lite_selfplay.evaluation.result import Result, means
from lite_selfplay.games.modes import find_mode
from lite_selfplay.games.presentation import percent
from lite_selfplay.games.prompts import MOST_SHOTS


class MeasuringSection(Section):
    """The number of problems and samples, and how answers are sampled."""

    limit: int | None = key(
        None, "Problems of each task", unset="all of a data set, 100 of a generated task", metavar="N", ge=1
    )
    samples: int | None = key(
        None, "Answers to each problem", unset="the benchmark's, at least the largest k", metavar="N", ge=1
    )
    k: tuple[Annotated[int, Field(ge=1)], ...] | None = key(
        None, "Report pass@k, mean@k and maj@k for these k: 1,4", metavar="K,..."
    )
    temperature: float | None = key(None, "0 is greedy", unset="0.6; the run's in versus", ge=0)
    top_p: float | None = key(None, "Nucleus sampling; 1 switches it off", unset="0.95; 1 in versus", gt=0, le=1)
    max_completion_tokens: int | None = key(
        None, "Cap of a completion", unset="the run's; for a base model the task's", ge=1
    )


class Settings(MeasuringSection):
    """The settings of an evaluation; every field is a keyword of `evaluate` and of `Run.evaluate`.

    The values used for None:

    - `limit`: all problems of a data set, 100 of a generated task;
    - `samples`: the task's or the mode's, at least the largest `k` (pass@k, mean@k and maj@k are reported for each);
    - `temperature` and `top_p`: 0.6 and 0.95; for matches the run's temperature and 1;
    - `max_completion_tokens`: the run's; for a base model the task's suggestion;
    - `seats`: the game's (`SEAT@STEP` is one from a checkpoint);
    - `precision` and `answer_from`: the run's; for a base model 4bit and anywhere.

    `shots`: worked examples before each problem, for base models. `trust_remote_code` runs Python code that comes with
    a model, `unsafe_code` programs given as answers, even without a sandbox. `trained_on` allows a task on whose
    problems the run was trained, and marks the result. Raises ConfigError for a value out of range.
    """

    shots: int = key(
        0, f"Worked examples before each problem, 0 to {MOST_SHOTS}: for base models", metavar="N", ge=0, le=MOST_SHOTS
    )
    seats: tuple[str, ...] | None = key(
        None,
        "Seats to measure and compare pairwise: base, A, or a checkpoint's A@20 or A@best",
        unset="the game's",
        metavar="NAME,...",
    )
    seed: int = key(0, "Seed of problems and samples; the same seed gives paired results", ge=0)
    precision: Literal["4bit", "bf16", "fp16", "fp32"] | None = key(
        None, "Precision of the weights", unset="the run's; 4bit for a base model"
    )
    data_dir: Path | str | None = key(None, KEYS["tasks.data_dir"].about, unset="$LITE_SELFPLAY_DATA", metavar="D")
    trust_remote_code: bool = key(False, KEYS["model.trust_remote_code"].about)
    unsafe_code: bool = key(False, KEYS["tasks.unsafe_code"].about)
    answer_from: Literal["anywhere", "block"] | None = key(
        None, KEYS["tasks.answer_from"].about, unset="the run's; anywhere for a base model"
    )
    trained_on: bool = key(False, "Allow a task whose problems the run was all trained on")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain(error) from None

    @field_validator("k", "seats", mode="before")
    @classmethod
    def _a_list(cls, value: Any) -> Any:
        """Split a text at its commas, as a flag has it."""
        return tuple(dict.fromkeys(part.strip() for part in value.split(","))) if isinstance(value, str) else value

    def sampling_of(self, config: RunConfig, specs: Sequence[EvalSpec], max_tokens: int) -> Sampling:
        """The sampling settings for a run or model with this configuration."""
        matches = all(find_mode(spec.mode).matches for spec in specs)
        usual = next((role.temperature for role in config.roles.values()), 1.0) if matches else 0.6
        temperature = usual if self.temperature is None else self.temperature
        return Sampling(temperature, top_p=self.top_p or (1.0 if matches else 0.95), max_tokens=max_tokens)


@dataclass(frozen=True)
class Suite:
    """A paper's evaluation protocol.

    - `samples`: completions per problem, by benchmark. `sampling`: the settings of their sampling, by field of
      `Settings`; without `max_completion_tokens`, that is the task's suggestion.
    - `averages`: the means that the paper reports, each with its benchmarks.
    - `base_shots`: worked examples before each problem, only for base models.
    - `modes`: the modes, if the paper has more than single answers.
    - `source`: the paper's section or table; `differs`: deviations from the paper.
    """

    samples: Mapping[str, int]
    sampling: Mapping[str, float]
    source: str
    averages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    base_shots: int = 0
    modes: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()

    def settings(self, target: str) -> dict[str, Any]:
        """The other settings, as fields of `Settings`; only base models get worked examples."""
        return {"shots": self.base_shots if is_base_model(target) else 0, **self.sampling}

    def means(self, results: Sequence[Result]) -> list[dict[str, Any]]:
        """The paper's means by mode and seat, if all their benchmarks were measured."""
        return [
            {"average": average, **mean} for average, tasks in self.averages.items() for mean in means(results, tasks)
        ]

    def lines(self, results: Sequence[Result]) -> list[str]:
        """The paper's means as sentences, the suite's source, and deviations from the paper."""
        means = [f"{m['average']}, {m['mode']} of {m['name']}: {percent(m['pass_at_1'])}" for m in self.means(results)]
        return [*means, f"suite: {self.source}", *self.differs]


_CPMOBIUS = {"amc": 10, "aime24": 32, "aime25": 32, "minerva": 6, "math500": 5, "olympiadbench": 3}
_PASODOBLE = ("aime24", "aime25", "amc", "gsm8k", "math500", "olympiadbench")
_SHOTS = "the worked examples of base models are ours: the paper prints none"

SUITES: dict[str, Suite] = {
    "agon-transfer": Suite(
        {"gsm8k": 1, "math500": 1},
        {"temperature": 0.6, "top_p": 0.95, "max_completion_tokens": 15_000},
        source="Beliaev, Agon: section 5 (setup, evaluation protocol) and table 2",
    ),
    "cpmobius": Suite(
        _CPMOBIUS,
        {"temperature": 0.6, "top_p": 1.0, "max_completion_tokens": 2048},
        averages={"average": tuple(_CPMOBIUS), "OOD average": tuple(task for task in _CPMOBIUS if task != "amc")},
        source="CPMobius: section 4.1 (evaluation details), appendix A.4 (of Qwen2.5-Math-1.5B) and table 1",
        differs=("for 7B and 3B players the paper samples at temperature 0.7 and top-p 0.9",),
    ),
    "pasodoble": Suite(
        dict.fromkeys(_PASODOBLE, 6),
        # The tokens are ours: a context of 8,192 less the 512 of the solver's longest prompt.
        {"temperature": 0.6, "top_p": 0.95, "max_completion_tokens": 7680},
        averages={"AVG": _PASODOBLE},
        base_shots=4,
        source="PasoDoble: section 4 (benchmarks) and table 11 (evaluation); table 1",
        differs=(_SHOTS, "the paper's AMC has only the 40 problems of 2023; amc also has those of 2022"),
    ),
    "pasodoble-ood": Suite(
        {"gpqa": 5, "supergpqa": 5},
        {"temperature": 0.6, "top_p": 0.95, "max_completion_tokens": 7680},  # the tokens are ours, as above
        averages={"AVG": ("gpqa", "supergpqa")},
        base_shots=5,
        source="PasoDoble: appendix E and table 14",
        differs=(_SHOTS, "the paper does not say which subset of GPQA; here it is the diamond set"),
    ),
    "spc": Suite(
        {"math500": 5, "aime24": 5},
        {"temperature": 0.6, "top_p": 0.95},  # ours: the paper does not state its solvers' sampling settings
        modes=("single", "vote", "search"),
        source="SPC: section 4.2 and table 3, solvers without a verifier (single), self-consistency over 5 (vote), and "
        "both under a critic (search)",
        differs=(
            "temperature 0.6 and top-p 0.95 are ours: the paper does not state them",
            "without a critic seat, the last seat (or the base) judges the steps of a search",
        ),
    ),
}


def find_suite(name: str) -> Suite:
    """A suite by its name. Raises UnknownNameError with the near names."""
    if name not in SUITES:
        raise UnknownNameError("suite", name, SUITES, f"There are {', '.join(SUITES)}.")
    return SUITES[name]


def is_base_model(target: str) -> bool:
    """Whether a name is that of a model without instruction tuning: `...-Base`, or a Qwen2.5 without `Instruct`.

    Other names, and runs, count as tuned; `--shots` overrides that.
    """
    name = Path(target).name.lower()
    return name.endswith("-base") or (name.startswith("qwen2.5") and "instruct" not in name)
