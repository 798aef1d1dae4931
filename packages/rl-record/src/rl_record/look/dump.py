"""The rows of a dump."""

from __future__ import annotations

import os
from pathlib import Path

from rl_record.look.shown_buffer import ShownBuffer


def read_dump_rows(path: str | os.PathLike[str]) -> ShownBuffer:
    """The rows of a folder that `buffer.dumps` wrote, read as a buffer reads them."""
    try:
        from rl_replay import read_dump
    except ImportError as error:
        msg = "a dump is read by rl-replay: pip install 'rl-record[dumps]'."
        raise ImportError(msg) from error
    return ShownBuffer(read_dump(path), title=f"dump {Path(path).name}")
