"""Where problems come from. A task is a sequence of problems; a source walks it in a seeded order, for ever."""

from lite_selfplay.tasks.base import Source, Task, load_task, task_names

__all__ = ["Source", "Task", "load_task", "task_names"]
