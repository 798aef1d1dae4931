"""Collectors: an agent plays, and every step is written once, marked, in flat batches."""

from rl_collect.trajectory_ids import Marks, TrajectoryIds
from rl_collect.whole import WholeTrajectories

__all__ = ["Marks", "TrajectoryIds", "WholeTrajectories"]
