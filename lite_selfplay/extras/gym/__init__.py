"""The data sets of the package reasoning-gym: tasks `reasoning-gym:NAME`, and a checker that scores by their rules.

Some of these rules evaluate an answer as code or algebra, so they run in processes that can be killed (`pool.py`).
"""

from lite_selfplay.extras.gym.checker import KIND, check_batch
from lite_selfplay.extras.gym.tasks import reasoning_gym
from lite_selfplay.tasks import register_task
from lite_selfplay.verify import register_checker

register_task(KIND, reasoning_gym)
register_checker(KIND, check_batch)
