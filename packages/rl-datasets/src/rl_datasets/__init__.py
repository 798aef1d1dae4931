"""Offline datasets as flat trajectories: read, checked, converted, written."""

from rl_datasets.convert import convert
from rl_datasets.d4rl import D4RLExperienceReplay, D4RLSource
from rl_datasets.episodes import Episode, EpisodeSource
from rl_datasets.minari.hdf5 import MinariHDF5Source
from rl_datasets.minari.replay import MinariExperienceReplay
from rl_datasets.minari.write import to_minari
from rl_datasets.replay import BaseDatasetExperienceReplay
from rl_datasets.report import ColumnReport, DatasetReport

__all__ = [
    "BaseDatasetExperienceReplay",
    "ColumnReport",
    "D4RLExperienceReplay",
    "D4RLSource",
    "DatasetReport",
    "Episode",
    "EpisodeSource",
    "MinariExperienceReplay",
    "MinariHDF5Source",
    "convert",
    "to_minari",
]
