"""Where datasets lie on the disk, and what is there of one."""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rl_datasets.convert import CONVERTING, ROWS_FOLDER
from rl_datasets.download import inside
from rl_datasets.paths import path_of
from rl_datasets.report import REPORT_FILE
from rl_tensordict.arguments import check_type

ROOT_VARIABLE = "RL_DATASETS"
_FILES, _DOWNLOADING = "files", "downloading"


@dataclass(frozen=True)
class DatasetFolder:
    """The folder of one dataset: its files as they were downloaded, and its rows."""

    path: Path

    @classmethod
    def of(cls, root: str | os.PathLike[str] | None, family: str, dataset: str) -> DatasetFolder:
        """The folder of a dataset below a root, or below the default one."""
        check_type("dataset_id", dataset, str, "the name of a dataset")
        return cls(inside(root_of(root) / family, dataset))

    @property
    def rows(self) -> Path:
        """Where its rows are once it is converted."""
        return self.path / ROWS_FOLDER

    @property
    def files(self) -> Path:
        """Where its downloaded files are, all of them."""
        return self.path / _FILES

    @property
    def downloading(self) -> Path:
        """Where its files are while some are missing."""
        return self.path / _DOWNLOADING

    @property
    def is_converted(self) -> bool:
        """Whether the rows are there."""
        return (self.rows / REPORT_FILE).exists()

    def drop(self, *, files: bool = True) -> None:
        """Removes the rows, and the files too."""
        for name in (ROWS_FOLDER, CONVERTING, *([_FILES, _DOWNLOADING] if files else [])):
            shutil.rmtree(self.path / name, ignore_errors=True)
        if files:
            shutil.rmtree(self.path, ignore_errors=True)

    def drop_empty(self, made: Iterable[Path]) -> None:
        """Removes the folders of a download that brought nothing, and those made to hold them."""
        below = [path for path in self.downloading.rglob("*") if path.is_dir()]
        for path in (*sorted(below, reverse=True), self.downloading, *made):
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()


def root_of(root: str | os.PathLike[str] | None) -> Path:
    """The folder of all datasets: the given one, `$RL_DATASETS`, or one in the user's cache."""
    if root is not None:
        return path_of(root, "root").expanduser()
    if ROOT_VARIABLE in os.environ:
        return Path(os.environ[ROOT_VARIABLE]).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(cache).expanduser() / "rl-datasets"


def unknown_id(dataset: str, known: Iterable[str], what: str) -> ValueError:
    """The error for an id that nothing is known under, with the closest ones."""
    names = list(known)
    close = difflib.get_close_matches(dataset, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "see available_datasets."
    return ValueError(f"there is no {what} dataset {dataset!r} among {len(names)}: {hint}")
