"""What the papers measure on: their benchmarks with samples and sampling, and the means that they report.

Every figure is the paper's, from the place named beside it, unless a comment says that it is ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lite_selfplay.errors import UnknownNameError
from lite_selfplay.evaluation.result import means
from lite_selfplay.games.presentation import percent

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Suite:
    """A paper's way of measuring.

    - `samples`: completions a problem, by benchmark. `max_completion_tokens` None: what the task suggests.
    - `averages`: the means that the paper reports, as benchmarks by name.
    - `base_shots`: worked examples before each problem for base models, which other models go without.
    - `modes`: in which modes, where the paper has more than single answers.
    - `source`: where the paper says so; `differs`: what is not as in the paper.
    """

    samples: Mapping[str, int]
    temperature: float
    top_p: float
    source: str
    max_completion_tokens: int | None = None
    averages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    base_shots: int = 0
    modes: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()

    def settings(self, target: str) -> dict[str, Any]:
        """How a run or model is asked, as fields of `runs.evaluating.Settings`: with worked examples where its name
        says that it is a base model."""
        return {
            "samples": self.samples,
            "shots": self.base_shots if is_base_model(target) else 0,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_completion_tokens": self.max_completion_tokens,
        }

    def means(self, results: Sequence[Result]) -> list[dict[str, Any]]:
        """The paper's means, by mode and seat, as far as all of their benchmarks were measured."""
        return [
            {"average": average, **mean} for average, tasks in self.averages.items() for mean in means(results, tasks)
        ]

    def lines(self, results: Sequence[Result]) -> list[str]:
        """The paper's means as sentences, where the suite comes from and what differs."""
        means = [f"{m['average']}, {m['mode']} of {m['name']}: {percent(m['pass_at_1'])}" for m in self.means(results)]
        return [*means, f"suite: {self.source}", *self.differs]


_CPMOBIUS = {"amc": 10, "aime24": 32, "aime25": 32, "minerva": 6, "math500": 5, "olympiadbench": 3}
_PASODOBLE = ("aime24", "aime25", "amc", "gsm8k", "math500", "olympiadbench")
_SHOTS = "the worked examples of base models are ours: the paper prints none"

SUITES: dict[str, Suite] = {
    "agon-transfer": Suite(
        {"gsm8k": 1, "math500": 1},
        temperature=0.6,
        top_p=0.95,
        max_completion_tokens=15_000,
        source="Beliaev, Agon: section 5 (setup, evaluation protocol) and table 2",
    ),
    "cpmobius": Suite(
        _CPMOBIUS,
        temperature=0.6,
        top_p=1.0,
        max_completion_tokens=2048,
        averages={"average": tuple(_CPMOBIUS), "OOD average": tuple(task for task in _CPMOBIUS if task != "amc")},
        source="CPMobius: section 4.1 (evaluation details), appendix A.4 (of Qwen2.5-Math-1.5B) and table 1",
        differs=("for 7B and 3B players the paper samples at temperature 0.7 and top-p 0.9",),
    ),
    "pasodoble": Suite(
        dict.fromkeys(_PASODOBLE, 6),
        temperature=0.6,
        top_p=0.95,
        max_completion_tokens=7680,  # ours: a context of 8,192 less the 512 of the solver's longest prompt
        averages={"AVG": _PASODOBLE},
        base_shots=4,
        source="PasoDoble: section 4 (benchmarks) and table 11 (evaluation); table 1",
        differs=(_SHOTS, "the paper's AMC is that of 2023 alone, 40 problems; amc holds those of 2022 as well"),
    ),
    "pasodoble-ood": Suite(
        {"gpqa": 5, "supergpqa": 5},
        temperature=0.6,
        top_p=0.95,
        max_completion_tokens=7680,  # ours, as above
        averages={"AVG": ("gpqa", "supergpqa")},
        base_shots=5,
        source="PasoDoble: appendix E and table 14",
        differs=(_SHOTS, "the paper does not say which subset of GPQA; here it is the diamond set"),
    ),
    "spc": Suite(
        {"math500": 5, "aime24": 5},
        temperature=0.6,  # ours, as the next: the paper's text has no sampling settings of its solvers
        top_p=0.95,
        modes=("single", "vote", "search"),
        source="SPC: section 4.2 and table 3, solvers without a verifier (single), self-consistency over 5 (vote), and "
        "both under a critic (search)",
        differs=(
            "temperature 0.6 and top-p 0.95 are ours: the paper does not state them",
            "without a seat that is a critic, the last seat, or the base itself, judges the steps of a search",
        ),
    ),
}


def find_suite(name: str) -> Suite:
    """A suite by its name. Raises UnknownNameError with the near names."""
    if name not in SUITES:
        raise UnknownNameError("suite", name, SUITES, f"There are {', '.join(SUITES)}.")
    return SUITES[name]


def is_base_model(target: str) -> bool:
    """Whether a name says that a model was never taught to follow instructions: `-Base`, or a Qwen2.5 without a word.

    Runs and models of other names are none; `--shots` says otherwise.
    """
    name = Path(target).name.lower()
    return name.endswith("-base") or (name.startswith("qwen2.5") and "instruct" not in name)
