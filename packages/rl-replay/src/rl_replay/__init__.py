"""Replay buffers of flat trajectories: storages, samplers, writers."""

from rl_replay.buffer.prioritized_buffers import (
    PrioritizedReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
)
from rl_replay.buffer.replay_buffer import ReplayBuffer
from rl_replay.buffer.tensordict_buffer import TensorDictReplayBuffer
from rl_replay.checkpointers.checkpointer import (
    ListStorageCheckpointer,
    StorageCheckpointerBase,
    TensorStorageCheckpointer,
)
from rl_replay.checkpointers.compact import FlatStorageCheckpointer, NestedStorageCheckpointer
from rl_replay.checkpointers.ensemble import StorageEnsembleCheckpointer
from rl_replay.checkpointers.hdf5 import H5StorageCheckpointer
from rl_replay.data.containers import register_container
from rl_replay.ensembles.buffer import ReplayBufferEnsemble
from rl_replay.ensembles.sampler import SamplerEnsemble
from rl_replay.ensembles.storage import StorageEnsemble
from rl_replay.ensembles.writer import WriterEnsemble
from rl_replay.ranking.max_value_writer import TensorDictMaxValueWriter
from rl_replay.ray.ray_replay_buffer import RayReplayBuffer
from rl_replay.read_dump import read_dump
from rl_replay.samplers import (
    ConsumingSampler,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StalenessAwareSampler,
    mark_slices,
)
from rl_replay.storages import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    Storage,
    TensorStorage,
)
from rl_replay.trajectories.index import TrajectoryIndex
from rl_replay.trajectories.start_stop import find_start_stop_traj
from rl_replay.writers import (
    ImmutableDatasetWriter,
    RoundRobinWriter,
    TensorDictRoundRobinWriter,
    Writer,
)

__all__ = [
    "ConsumingSampler",
    "FlatStorageCheckpointer",
    "H5StorageCheckpointer",
    "ImmutableDatasetWriter",
    "LazyMemmapStorage",
    "LazyTensorStorage",
    "ListStorage",
    "ListStorageCheckpointer",
    "NestedStorageCheckpointer",
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "RayReplayBuffer",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "RoundRobinWriter",
    "Sampler",
    "SamplerEnsemble",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "StalenessAwareSampler",
    "Storage",
    "StorageCheckpointerBase",
    "StorageEnsemble",
    "StorageEnsembleCheckpointer",
    "TensorDictMaxValueWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "TensorStorageCheckpointer",
    "TrajectoryIndex",
    "Writer",
    "WriterEnsemble",
    "find_start_stop_traj",
    "mark_slices",
    "read_dump",
    "register_container",
]
