"""Names of files and folders, as users give them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeAlias

from rl_tensordict.arguments import check_type

PathName: TypeAlias = str | os.PathLike[str]


def path_of(given: Any, name: str = "folder") -> Path:
    """A path; a `TypeError` for anything but a string or a path."""
    check_type(name, given, str | os.PathLike, "the name of a file or folder")
    return Path(given)
