"""SPC's switches."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from lite_selfplay.games.base import GameOptions
from lite_selfplay.games.spc.cases import CRITIQUES, ROLLOUTS, STABLE
from lite_selfplay.games.spc.rounds import Schedule

Solver = Annotated[str, StringConstraints(pattern=r"^(base|solver|sneaky|critic|(sneaky|critic|solver)@round-0)$")]


class SpcOptions(GameOptions):
    """SPC's switches.

    - `rounds`: of play, collection and training; with 0 the seats are only played against each other as they are.
    - `solvers`: who writes solutions and goes on from their steps: `base`, `solver` (a seat of its own, which a cold
      start or `--init` makes; it is not trained), `sneaky` or `critic`, or one of them as it entered training, such as
      `critic@round-0`. With several each writes solutions of every problem. Solutions of a file (`--solutions`) are
      gone on with by the first.
    - `samples`: solutions of a problem by each solver; `rollouts`: completions that validate a step; `stable`: the
      share of them that an original step needs; `critiques` of a step, of which the first decides.
    - `schedule`: whom the sneaky generator of later rounds meets and where the critic is trained from; see
      `rounds.schedule`.
    - `pairing`: the critic learns from a right and a wrong critique of the same step. `solver_reward`: rewrites that
      mislead nobody count as lost.
    - `epochs`, `batch`: of offline training; `sft_weight`: weight of the mean loss of as many examples, 0 for none.
    - `tournament`: after the last round its sneaky generator attacks once more, and every snapshot meets every other.
    - `pairs`: a file in PRM800K's layout, whose pairs of a correct and a wrong step teach both seats in the
      place of corrupted solutions.
    """

    rounds: int = Field(2, ge=0, le=20)
    solvers: tuple[Solver, ...] = Field(("base",), min_length=1)
    samples: int = Field(1, ge=1)
    rollouts: int = Field(ROLLOUTS, ge=1)
    stable: float = Field(STABLE, gt=0, le=1)
    critiques: int = Field(CRITIQUES, ge=1)
    schedule: Schedule = "asymmetric"
    pairing: bool = True
    solver_reward: bool = True
    epochs: int = Field(3, ge=1)
    batch: int = Field(64, ge=1)
    sft_weight: float = Field(0.0, ge=0)
    tournament: bool = True
    pairs: Annotated[str | None, AfterValidator(lambda path: path and str(Path(path).resolve()))] = None
