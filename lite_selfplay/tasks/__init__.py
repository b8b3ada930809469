"""Tasks, the sources of problems.

A task is a sequence of problems; a source draws from it endlessly, each epoch in an order derived from the seed. This
room decides which problems are held out, but not how answers are judged.
"""

from lite_selfplay.tasks.registry import is_data, load_task, register_task, split_specs, task_about, task_names
from lite_selfplay.tasks.split import content_key, data_facts, evaluation_set, fingerprint, held_out_side, without
from lite_selfplay.tasks.task import Source, Task, numbered

__all__ = [
    "Source",
    "Task",
    "content_key",
    "data_facts",
    "evaluation_set",
    "fingerprint",
    "held_out_side",
    "is_data",
    "load_task",
    "numbered",
    "register_task",
    "split_specs",
    "task_about",
    "task_names",
    "without",
]
