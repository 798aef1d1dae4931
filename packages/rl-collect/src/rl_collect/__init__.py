"""Collectors: an agent plays, and every step is written once, marked, in flat batches."""

from rl_collect.collector import Collector, SyncDataCollector
from rl_collect.episodes import Episodes
from rl_collect.multi import MultiAsyncCollector, MultiCollector, MultiSyncCollector
from rl_collect.trajectory_ids import Marks, TrajectoryIds
from rl_collect.whole import WholeTrajectories

__all__ = [
    "Collector",
    "Episodes",
    "Marks",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiSyncCollector",
    "SyncDataCollector",
    "TrajectoryIds",
    "WholeTrajectories",
]
