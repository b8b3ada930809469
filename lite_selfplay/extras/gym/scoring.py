"""The program of the checking processes: it scores answers by reasoning-gym's rules.

A question is {"dataset": name, "options": {...}, "entry": pickled, in base64, "answer": text}; its reply is
{"outcome": "score 0.5"}, or {"outcome": "unparsable"} if the rule fails on the answer.
"""

import base64
import functools
import json
import math
import os
import pickle
from typing import Any

from lite_selfplay.extras.gym.checker import open_dataset
from lite_selfplay.extras.gym.worker import Reply, run


@functools.cache
def _dataset(name: str, options: str) -> Any:
    return open_dataset(name, json.loads(options))


def reply_to(question: dict[str, Any]) -> dict[str, str]:
    """The reply to one question. Raises nothing but MemoryError."""
    entry = pickle.loads(base64.b64decode(question["entry"]))
    try:
        dataset = _dataset(question["dataset"], json.dumps(question["options"]))
        score = float(dataset.score_answer(question["answer"], entry))
    except MemoryError:
        raise
    except (Exception, SystemExit):  # a rule that evaluates an answer may raise anything
        return {"outcome": "unparsable"}
    return {"outcome": "unparsable" if math.isnan(score) else f"score {score!r}"}


def by_its_own_rules() -> Reply:
    """The function that answers questions; it needs the package."""
    # The threads of a numerical library would reserve address space for every core.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    open_dataset("chain_sum", {})
    return reply_to


if __name__ == "__main__":
    run(by_its_own_rules)
