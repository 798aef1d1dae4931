"""Offline datasets as flat trajectories: read, checked, converted, written."""

from rl_datasets.atari_dqn import AtariDQNExperienceReplay, AtariDQNSource
from rl_datasets.convert import convert
from rl_datasets.d4rl import D4RLExperienceReplay, D4RLSource
from rl_datasets.episodes import Episode, EpisodeSource
from rl_datasets.gen_dgrl import GenDGRLExperienceReplay, GenDGRLSource
from rl_datasets.lerobot.replay import LeRobotExperienceReplay
from rl_datasets.lerobot.source import LeRobotSource
from rl_datasets.lerobot.write import to_lerobot
from rl_datasets.minari.hdf5 import MinariHDF5Source
from rl_datasets.minari.replay import MinariExperienceReplay
from rl_datasets.minari.tables import MinariTableSource
from rl_datasets.minari.write import to_minari
from rl_datasets.ogbench import OGBenchExperienceReplay, OGBenchSource
from rl_datasets.openml import OpenMLExperienceReplay, OpenMLSource
from rl_datasets.replay import BaseDatasetExperienceReplay
from rl_datasets.report import ColumnReport, DatasetReport
from rl_datasets.rlds.replay import OpenXExperienceReplay
from rl_datasets.rlds.source import RLDSSource
from rl_datasets.roboset import RobosetExperienceReplay, RobosetSource
from rl_datasets.stream.stream import StreamOptions
from rl_datasets.vd4rl import VD4RLExperienceReplay, VD4RLSource

__all__ = [
    "AtariDQNExperienceReplay",
    "AtariDQNSource",
    "BaseDatasetExperienceReplay",
    "ColumnReport",
    "D4RLExperienceReplay",
    "D4RLSource",
    "DatasetReport",
    "Episode",
    "EpisodeSource",
    "GenDGRLExperienceReplay",
    "GenDGRLSource",
    "LeRobotExperienceReplay",
    "LeRobotSource",
    "MinariExperienceReplay",
    "MinariHDF5Source",
    "MinariTableSource",
    "OGBenchExperienceReplay",
    "OGBenchSource",
    "OpenMLExperienceReplay",
    "OpenMLSource",
    "OpenXExperienceReplay",
    "RLDSSource",
    "RobosetExperienceReplay",
    "RobosetSource",
    "StreamOptions",
    "VD4RLExperienceReplay",
    "VD4RLSource",
    "convert",
    "to_lerobot",
    "to_minari",
]
