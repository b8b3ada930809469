"""Tasks: sequences of problems, and sources that draw from them.

A source never ends: each epoch has an order derived from the seed. This folder decides which problems are held out, but
not how answers are judged.
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
