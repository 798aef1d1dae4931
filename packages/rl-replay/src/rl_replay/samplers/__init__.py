"""Which rows a sample holds."""

from rl_replay.samplers.sampler import Sampler
from rl_replay.samplers.slice_bounds import Slices
from rl_replay.samplers.slice_markers import mark_slices
from rl_replay.samplers.slices import SliceSampler
from rl_replay.samplers.slices_without_replacement import SliceSamplerWithoutReplacement
from rl_replay.samplers.trajectory_sampler import TrajectorySampler
from rl_replay.samplers.uniform import RandomSampler
from rl_replay.samplers.without_replacement import SamplerWithoutReplacement

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
