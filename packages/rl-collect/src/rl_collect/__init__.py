"""Collectors: an agent plays, and every step is written once, marked, in flat batches."""

from rl_collect.batches.complete_trajectories import WholeTrajectories
from rl_collect.batches.markers import Marks, TrajectoryIds
from rl_collect.collector import Collector, SyncDataCollector
from rl_collect.episode_stats import Episodes
from rl_collect.multi.multi_collector import MultiAsyncCollector, MultiCollector, MultiSyncCollector
from rl_collect.ranks.distributed_collector import (
    DistributedDataCollector,
    DistributedSyncCollector,
    RPCDataCollector,
)
from rl_collect.ray.ray_collector import RayCollector

__all__ = [
    "Collector",
    "DistributedDataCollector",
    "DistributedSyncCollector",
    "Episodes",
    "Marks",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiSyncCollector",
    "RPCDataCollector",
    "RayCollector",
    "SyncDataCollector",
    "TrajectoryIds",
    "WholeTrajectories",
]
