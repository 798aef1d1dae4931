"""Whether and what a buffer may write."""

from rl_replay.writers.immutable import ImmutableDatasetWriter
from rl_replay.writers.round_robin import RoundRobinWriter, TensorDictRoundRobinWriter
from rl_replay.writers.writer import Writer

__all__ = [
    "ImmutableDatasetWriter",
    "RoundRobinWriter",
    "TensorDictRoundRobinWriter",
    "Writer",
]
