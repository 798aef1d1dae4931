"""Buffers on disk: written alongside and swapped in, checked when read."""

from rl_replay.checkpoint.parts import Chunks, Part
from rl_replay.checkpoint.reader import Archive, load
from rl_replay.checkpoint.writer import dump

__all__ = ["Archive", "Chunks", "Part", "dump", "load"]
