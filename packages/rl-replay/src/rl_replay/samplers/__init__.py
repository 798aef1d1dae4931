"""Samplers: they choose the rows of a batch."""

from rl_replay.samplers.consuming import ConsumingSampler
from rl_replay.samplers.prioritized import PrioritizedSampler
from rl_replay.samplers.prioritized_slices import PrioritizedSliceSampler
from rl_replay.samplers.rows import RandomSampler, SamplerWithoutReplacement
from rl_replay.samplers.sampler import Sampler
from rl_replay.samplers.slice_layout import Slices, mark_slices
from rl_replay.samplers.slices import SliceSampler, TrajectorySampler
from rl_replay.samplers.slices_without_replacement import SliceSamplerWithoutReplacement
from rl_replay.samplers.staleness import StalenessAwareSampler

__all__ = [
    "ConsumingSampler",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "Sampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "Slices",
    "StalenessAwareSampler",
    "TrajectorySampler",
    "mark_slices",
]
