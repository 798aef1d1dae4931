"""Folders that are replaced as a whole: written alongside and swapped in, checked when read.

Buffers are dumped by it, and so is the state that other packages keep in addition to a buffer.
"""

from rl_replay.checkpoint.parts import Chunks, Folder, Part
from rl_replay.checkpoint.reader import Archive, load
from rl_replay.checkpoint.writer import dump

__all__ = ["Archive", "Chunks", "Folder", "Part", "dump", "load"]
