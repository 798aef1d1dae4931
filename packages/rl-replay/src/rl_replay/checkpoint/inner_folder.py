"""Folders within a dump: each dump fills a new one, which its manifest then names."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_replay.checkpoint.manifest import is_named
from rl_replay.checkpoint.writer import claimed


@contextmanager
def new_folder(dump: Path, kind: str) -> Iterator[Path]:
    """A folder to fill, in place of the former ones of its kind once a manifest names it.

    Other dumps to the same folder are refused meanwhile.
    """
    made = dump / f"{kind}-{uuid.uuid4().hex}"
    with claimed(dump):
        try:
            yield made
        except BaseException:
            if not is_named(dump, made.name):
                shutil.rmtree(made, ignore_errors=True)
            raise
        for other in dump.iterdir():
            # what else begins like that is not ours to remove
            if other != made and _is_name(kind, other.name):
                shutil.rmtree(other, ignore_errors=True)


def named_folder(dump: Path, kind: str, name: Any) -> Path:
    """The folder that a manifest names, which must be within the dump and no link."""
    if not isinstance(name, str) or not _is_name(kind, name):
        raise ValueError(f"{dump} names the folder {name!r}. Restore it from a copy.")
    return own_folder(dump / name)


def own_folder(path: Path) -> Path:
    """What is at a path itself, and not by a link; else a `ValueError`."""
    if path.is_symlink() or not path.exists():
        raise ValueError(f"{path} is missing, or is a link. Restore it from a copy.")
    return path


def _is_name(kind: str, name: str) -> bool:
    return re.fullmatch(f"{kind}-[0-9a-f]{{32}}", name) is not None
