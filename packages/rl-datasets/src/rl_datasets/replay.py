"""The buffer over a dataset: found, downloaded and converted when it is made."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from tensordict import TensorDictBase

from rl_datasets.convert import convert
from rl_datasets.episodes import EpisodeSource
from rl_datasets.folders import DatasetFolder, root_of, unknown_id
from rl_datasets.preprocess import Preprocess, preprocessed
from rl_datasets.report import DatasetReport
from rl_layout import split_trajectories
from rl_replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    Sampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    Storage,
    TensorDictReplayBuffer,
    TensorStorage,
    Writer,
)
from rl_tensordict.arguments import check_choice

Value = TypeVar("Value")
Download = bool | Literal["force"]


class ClassProperty(Generic[Value]):
    """A property of a class and of its instances."""

    def __init__(self, read: Callable[[Any], Value]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, instance: object, owner: type) -> Value:
        return self._read(owner)


class BaseDatasetExperienceReplay(TensorDictReplayBuffer):
    """A buffer that holds a dataset, with any sampler and transform; nothing can be added to it.

    The first time the files are downloaded, if they are not there, and converted to mapped rows;
    the report of the conversion is printed. After that it is opened at once, whatever its size.
    Derive from it and write `source`, and `fetch` for files that can be downloaded, to have
    another format.

    Args:
        dataset_id: Which dataset.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        root: The folder of all datasets; `$RL_DATASETS` unless given, or `~/.cache/rl-datasets`.
        download: Download files that are missing; "force" for downloading and converting anew.
        path: A folder, or a file, with the files of the dataset as its format has them. They are
            only read; nothing is downloaded.
        split_trajs: Hold whole trajectories in memory, padded to the longest one: an element is a
            trajectory, its leaves are `[T, ...]`, and `("collector", "mask")` tells real steps.
        num_slices: Slices of a sample, for a `SliceSampler` that is made here.
        slice_len: Steps of a slice, likewise.
        strict_length: Whether such a sampler leaves out trajectories that are shorter.
        replacement: Whether it may draw a slice again in an epoch.
        parts: What a `TensorDictReplayBuffer` takes: `sampler`, `transform`, `writer`, `prefetch`,
            `collate_fn`, `pin_memory`, `generator`, `priority_key`.

    Raises:
        ValueError: An id that is not known, slices longer than every trajectory, arguments that
            exclude each other, or a damaged file.
        FileNotFoundError: The dataset is not there, and is not to be downloaded or cannot be.

    Example:
        >>> import tempfile
        >>> from rl_datasets.testing import ListSource, toy_episodes
        >>> class Toy(BaseDatasetExperienceReplay):
        ...     family = "toy"
        ...
        ...     def source(self, path):
        ...         return ListSource(toy_episodes([6, 4]))
        ...
        ...     def fetch(self, folder):
        ...         pass
        >>> with tempfile.TemporaryDirectory() as root:
        ...     data = Toy("one", batch_size=8, slice_len=4, root=root, verbose=False)
        ...     len(data), data.sample().shape, data.report.episodes
        (10, torch.Size([8]), 2)
    """

    family: ClassVar[str] = ""
    """The name of the format, and of the folder of its datasets."""

    sources_of_copies: ClassVar[str] = ""
    """Where else the files can be had, a sentence for errors."""

    def __init__(  # noqa: PLR0913 - what the classes of the peer take
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        download: Download = True,
        path: str | os.PathLike[str] | None = None,
        split_trajs: bool = False,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_length: bool = True,
        replacement: bool = True,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        verbose: bool = True,
        **parts: Any,
    ) -> None:
        if not isinstance(download, bool):
            check_choice("download", download, ["force"])
        self.dataset_id = dataset_id
        self._verbose = verbose
        self._folder = DatasetFolder.of(root, self.family, dataset_id)
        self._prepare(download, None if path is None else Path(path).expanduser())
        self.report = DatasetReport.load(self._folder.rows)
        if num_slices is not None or slice_len is not None:
            if sampler is not None:
                raise ValueError(
                    "num_slices and slice_len make a sampler, and one was given: leave them out."
                )
            kind = SliceSampler if replacement else SliceSamplerWithoutReplacement
            sampler = kind(num_slices=num_slices, slice_len=slice_len, strict_length=strict_length)
        _require_short_slices(sampler, self.report)
        rows = _opened(self._folder.rows, self.report)
        storage: Storage = _padded(rows) if split_trajs else rows
        super().__init__(
            storage=storage,
            sampler=sampler,
            writer=ImmutableDatasetWriter() if writer is None else writer,
            batch_size=batch_size,
            **parts,
        )

    @abstractmethod
    def source(self, path: Path) -> EpisodeSource:
        """The episodes of some files.

        Args:
            path: The folder, or the file, that they are in.
        """
        raise NotImplementedError(f"{type(self).__name__} has no source: write one.")

    def fetch(self, folder: Path) -> None:
        """Download the files of the dataset.

        Args:
            folder: Where they go; an earlier download may have left some there.

        Raises:
            FileNotFoundError: They cannot be had any more.
        """
        raise FileNotFoundError(
            f"{self.dataset_id!r} cannot be downloaded. {self.sources_of_copies} Give the files "
            f"with path=."
        )

    @classmethod
    def known_ids(cls) -> Sequence[str]:
        """The ids that there are; none where anybody can publish one."""
        return []

    @ClassProperty
    def available_datasets(cls) -> list[str]:
        """The ids that can be asked for, or that are on the disk where anybody can publish one."""
        owner: Any = cls
        known = list(owner.known_ids())
        below = root_of(None) / owner.family
        found = [str(one.parent.parent.relative_to(below)) for one in below.rglob("report.json")]
        return known or sorted(found)

    @property
    def data_path(self) -> Path:
        """The folder of this dataset."""
        return self._folder.path

    @property
    def data_path_root(self) -> Path:
        """The folder of all datasets of the format."""
        path = self._folder.path
        return path.parents[len(Path(self.dataset_id).parts) - 1]

    @property
    def metadata(self) -> dict[str, Any]:
        """What the files say of the dataset, in addition to its rows."""
        return self.report.metadata

    def delete(self) -> None:
        """Remove the rows and the downloaded files from the disk; files of `path=` are not ours.

        The buffer is not to be used any more.
        """
        self._folder.drop()

    def preprocess(  # noqa: PLR0913 - what the peer's takes
        self,
        fn: Callable[[TensorDictBase], TensorDictBase],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        pbar: bool = False,
        mp_start_method: str | None = None,
        num_frames: int | None = None,
        dest: str | os.PathLike[str] | None = None,
        by: str = "rows",
    ) -> TensorStorage:
        """Replace the rows on the disk by what a function makes of them.

        The function is called in worker processes, each time with whole trajectories end to end,
        at most about `chunksize` rows. The same dataset, made again, has the new rows, until it is
        made with `download="force"`.

        Args:
            fn: From rows `[N]` to as many rows; with `by="trajectory"` from one trajectory `[T]`
                to one of any length, or None to leave it out.
            dim: 0, the only dimension.
            num_workers: How many processes; none unless given.
            chunksize: Rows of a call; 16,384 unless given.
            num_chunks: How many calls, instead.
            pool: A pool of processes to be used instead of a new one.
            pbar: Show progress, where tqdm is installed.
            mp_start_method: How processes are started.
            num_frames: Only the first rows, so many; needs `dest`.
            dest: A folder for the new rows; those of the dataset stay as they are.
            by: "rows" or "trajectory".

        Returns:
            The storage of the new rows.

        Raises:
            ValueError: Arguments that exclude each other, or another number of rows than given.
            TypeError: A buffer of padded trajectories.
        """
        storage = self.storage
        if not isinstance(storage, LazyMemmapStorage):
            raise TypeError("rows can be replaced on the disk only: leave split_trajs out.")
        check_choice("by", by, ["rows", "trajectory"])
        if dim != 0:
            raise ValueError(f"the rows of a dataset have one dimension, 0: got dim={dim}.")
        if num_frames is not None and dest is None:
            raise ValueError("num_frames would drop rows of the dataset: give a dest for the rest.")
        if chunksize is not None and num_chunks is not None:
            raise ValueError("chunksize and num_chunks say the same: give one of them.")
        count = len(self) if num_frames is None else min(num_frames, len(self))
        if num_chunks is not None:
            chunksize = max(1, -(-count // num_chunks))
        work = Preprocess(fn, self._folder.rows, by == "trajectory", count, chunksize or 16_384)
        report, opened = preprocessed(
            work,
            self.report,
            self._folder.path if dest is None else Path(dest),
            workers=num_workers or 0,
            pool=pool,
            start_method=mp_start_method,
            bar=pbar,
        )
        if dest is None:
            self.report = report
            self.set_storage(opened)
        return opened

    def _prepare(self, download: Download, path: Path | None) -> None:
        """Makes the rows, unless they are there."""
        folder = self._folder
        known = self.known_ids()
        if path is None and known and self.dataset_id not in known:
            raise unknown_id(self.dataset_id, known, self.family)
        if download == "force":
            folder.drop(files=path is None)
        if path is not None:
            if not path.exists():
                raise FileNotFoundError(f"there is nothing at {path}.")
            self._convert(self.source(path))
        elif not folder.is_converted:
            if not folder.files.exists():
                self._download(download)
            self._convert(self.source(folder.files))

    def _convert(self, source: EpisodeSource) -> None:
        folder = self._folder
        if folder.is_converted:
            made_of = DatasetReport.load(folder.rows).fingerprint
            if _same(made_of, source.fingerprint()):
                return
        convert(source, folder.path, self.dataset_id, bar=self._verbose)
        if self._verbose:
            print(DatasetReport.load(folder.rows))  # noqa: T201 - asked for by the user

    def _download(self, download: Download) -> None:
        folder = self._folder
        if not download:
            raise FileNotFoundError(
                f"{self.dataset_id!r} is not in {folder.path}, and download=False: allow the "
                "download, give root= or path=."
            )
        folder.downloading.mkdir(parents=True, exist_ok=True)
        try:
            self.fetch(folder.downloading)
        except FileNotFoundError as error:
            if self.sources_of_copies and self.sources_of_copies not in str(error):
                error.add_note(self.sources_of_copies)
            raise
        folder.downloading.replace(folder.files)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    same: bool = one == json.loads(json.dumps(other))
    return same


def _opened(rows: Path, report: DatasetReport) -> LazyMemmapStorage:
    storage = LazyMemmapStorage.open(rows)
    if len(storage) != report.steps:
        raise ValueError(
            f"{rows} holds {len(storage)} rows, its report says {report.steps}: convert the "
            'dataset anew with download="force".'
        )
    return storage


def _padded(storage: LazyMemmapStorage) -> TensorStorage:
    """All rows as trajectories of one length."""
    padded = split_trajectories(storage[:])
    padded.batch_size = padded.batch_size[:1]  # an element is a trajectory
    return TensorStorage(padded)


def _require_short_slices(sampler: Sampler | None, report: DatasetReport) -> None:
    """Raises for slices that no trajectory is long enough for."""
    wanted = getattr(getattr(sampler, "shape", None), "slice_len", None)
    if wanted is not None and wanted > report.longest and getattr(sampler, "strict_length", True):
        raise ValueError(
            f"slice_len is {wanted}, but the longest trajectory of {report.dataset} has "
            f"{report.longest} steps: take shorter slices, or strict_length=False."
        )
