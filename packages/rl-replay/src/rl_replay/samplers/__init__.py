"""Samplers: they choose the rows of a batch."""

from rl_replay.samplers.rows import RandomSampler, SamplerWithoutReplacement
from rl_replay.samplers.sampler import Sampler
from rl_replay.samplers.slice_layout import Slices, mark_slices
from rl_replay.samplers.slices import (
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TrajectorySampler,
)

__all__ = [
    "RandomSampler",
    "Sampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "Slices",
    "TrajectorySampler",
    "mark_slices",
]
