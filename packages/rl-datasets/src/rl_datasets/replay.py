"""The buffer over a dataset: found, downloaded and converted when it is made."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import torch
from tensordict import TensorDictBase

from rl_datasets.arguments import require_known, sampler_of
from rl_datasets.convert import convert
from rl_datasets.episodes import EpisodeSource
from rl_datasets.folders import DatasetFolder, root_of, unknown_id
from rl_datasets.paths import path_of
from rl_datasets.preprocess import Executor, Preprocess, preprocessed
from rl_datasets.report import DatasetReport
from rl_datasets.stream.stream import Stream, StreamOptions
from rl_layout import split_trajectories
from rl_replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    Sampler,
    TensorDictReplayBuffer,
    TensorStorage,
    Writer,
)
from rl_tensordict.arguments import check_choice, check_flags, check_type, check_whole

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
        streaming: Write nothing to the disk: a thread reads the files over and over into a ring of
            rows in memory, of which samples are drawn; `StreamOptions` says how large it is.
        split_trajs: Hold whole trajectories in memory, padded to the longest one: an element is a
            trajectory, its leaves are `[T, ...]`, and `("collector", "mask")` tells real steps.
        num_slices: Slices of a sample, for a `SliceSampler` that is made here.
        slice_len: Steps of a slice, likewise.
        strict_length: Whether such a sampler leaves out trajectories that are shorter.
        replacement: Whether a slice, or a row, may be drawn again in an epoch; a sampler without
            replacement is made if not.
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

    report: DatasetReport
    _stream: Stream | None = None
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
        download: Download | None = True,
        path: str | os.PathLike[str] | None = None,
        streaming: bool | StreamOptions = False,
        split_trajs: bool = False,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_length: bool = True,
        replacement: bool | None = True,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        verbose: bool = True,
        **parts: Any,
    ) -> None:
        if download is not None:
            check_choice("download", download, [True, False, "force"])
        check_flags(split_trajs=split_trajs, strict_length=strict_length, verbose=verbose)
        check_type("streaming", streaming, bool | StreamOptions, "True, False or StreamOptions")
        require_known(type(self), parts)
        sampler = sampler_of(
            sampler, num_slices, slice_len, strict=strict_length, again=replacement
        )
        self.dataset_id = dataset_id
        self._verbose = verbose
        self._folder = DatasetFolder.of(root, self.family, dataset_id)
        files = None if path is None else path_of(path, "path").expanduser()
        known = self.known_ids()
        if files is None and known and dataset_id not in known:
            raise unknown_id(dataset_id, known, self.family)
        if download == "force":
            self._folder.drop(files=files is None)
        if streaming:
            _require_streamable(split_trajs=split_trajs, writer=writer, **parts)
            storage, writer = self._read_ahead(self._found(download is not False, files), streaming)
        else:
            storage = self._opened(download is not False, files, sampler, split_trajs=split_trajs)
        parts |= {"storage": storage, "sampler": sampler, "batch_size": batch_size}
        super().__init__(writer=writer or ImmutableDatasetWriter(), **parts)
        if self._stream is not None:
            self._stream.start(self)

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
        """The ids that there are; none if any user can publish one."""
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

    @property
    def batches(self) -> Any:
        """What draws and makes the batches, for ensembles of buffers.

        Raises:
            TypeError: A stream, which an ensemble cannot wait for.
        """
        if self._stream is not None:
            raise TypeError("a stream is no member of an ensemble: leave streaming out.")
        return super().batches

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Draw a batch; of a stream, once enough rows are read.

        Args:
            batch_size: How many rows; those of the constructor unless given.
            return_info: Return a dict with information about the rows as well.
            timeout: Seconds to wait for rows of a stream; any time unless given.

        Returns:
            The batch, or the batch and the dict, as of any buffer.

        Raises:
            TimeoutError: The rows of a stream did not come in time.
            RuntimeError: A stream that has ended or was closed.
            Exception: What stopped the reader of a stream.
        """
        if self._stream is not None and not self._take(batch_size, timeout):
            raise RuntimeError(
                f"the stream of {self.dataset_id} has ended: draw by `for batch in data`, which "
                "ends there, or give StreamOptions no epochs."
            )
        return super().sample(batch_size, return_info, timeout=timeout)

    def __iter__(self) -> Iterator[Any]:
        """Batches of one epoch or of a whole stream; endless for a sampler without epochs."""
        if self._stream is None:
            yield from super().__iter__()
        else:
            while self._take(None, None):
                yield super().sample()

    @property
    def waited_s(self) -> float:
        """Seconds that samples waited for rows of a stream to come."""
        return 0.0 if self._stream is None else self._stream.pace.waited_s

    def close(self) -> None:
        """Ends the thread of a stream, and waits for it; nothing else has any."""
        if self._stream is not None:
            self._stream.close()

    def __enter__(self) -> Self:
        """The buffer, which the end of a `with` block closes."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it, as `close` does."""
        self.close()

    def delete(self) -> None:
        """Remove the rows and the downloaded files from the disk; files of `path=` are not ours.

        The buffer is not to be used any more.
        """
        self.close()
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
        generator: torch.Generator | None = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = False,
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
            generator: Seeds torch's random numbers in each call, the same with any `num_workers`;
                where None, the calls of workers are seeded from torch's global generator.
            max_tasks_per_child: No effect: a worker keeps nothing of its calls.
            worker_threads: Threads of torch in each worker.
            index_with_generator: No effect: rows are always read call by call.
            pbar: Show progress, where tqdm is installed.
            mp_start_method: How processes are started.
            num_frames: Only the first rows, so many; needs `dest`.
            dest: A folder for the new rows; those of the dataset stay as they are.
            by: "rows" or "trajectory".

        Returns:
            The storage of the new rows.

        Raises:
            ValueError: Arguments that exclude each other, a number below its least, or another
                number of rows than given.
            TypeError: A buffer of padded trajectories, a stream, or what is no function.
        """
        if not isinstance(self.storage, LazyMemmapStorage):
            raise TypeError(
                "rows can be replaced on the disk only: leave split_trajs and streaming out."
            )
        del max_tasks_per_child, index_with_generator
        if num_frames is not None and dest is None:
            raise ValueError("num_frames would drop rows of the dataset: give a dest for the rest.")
        check_whole("num_workers", num_workers or 0, 0)
        check_whole("worker_threads", worker_threads, 1)
        if num_frames is not None:
            check_whole("num_frames", num_frames, 1)
        work = Preprocess.of(
            fn,
            self._folder.rows,
            len(self) if num_frames is None else min(num_frames, len(self)),
            dim=dim,
            by=by,
            chunksize=chunksize,
            num_chunks=num_chunks,
            generator=generator,
            threads=worker_threads if num_workers else None,
        )
        folder = self._folder.path if dest is None else Path(dest)
        processes = Executor(num_workers or 0, pool, mp_start_method)
        report, opened = preprocessed(work, self.report, folder, processes, bar=pbar)
        if dest is None:
            self.report = report
            self.set_storage(opened)
        return opened

    def _take(self, batch_size: int | None, timeout: float | None) -> bool:
        """Waits for the rows of a batch; False where the stream has ended."""
        assert self._stream is not None  # the caller looked
        size = self.batch_size if batch_size is None else batch_size
        return size is None or self._stream.take(size, timeout)  # the sample says what is wrong

    def _read_ahead(
        self, source: EpisodeSource, streaming: StreamOptions | Literal[True]
    ) -> tuple[TensorStorage, Writer]:
        """The ring of a stream, and who writes to it."""
        options = StreamOptions() if streaming is True else streaming
        self._stream = Stream(source, self.dataset_id, options)
        self.report = self._stream.report
        return self._stream.storage, self._stream.writer

    def _opened(
        self, download: bool, path: Path | None, sampler: Sampler | None, *, split_trajs: bool
    ) -> TensorStorage:
        """The rows on the disk, which are made if they are not there."""
        self._convert(download, path)
        self.report = DatasetReport.load(self._folder.rows)
        _require_short_slices(sampler, self.report)
        rows = _opened(self._folder.rows, self.report)
        return _padded(rows) if split_trajs else rows

    def _convert(self, download: bool, path: Path | None) -> None:
        """Makes the rows, unless they are there."""
        folder = self._folder
        if path is None and folder.is_converted:
            return
        source = self._found(download, path)
        if folder.is_converted:
            made_of = DatasetReport.load(folder.rows).fingerprint
            if _same(made_of, source.fingerprint()):
                return
        convert(source, folder.path, self.dataset_id, bar=self._verbose)
        if self._verbose:
            print(DatasetReport.load(folder.rows))  # noqa: T201 - asked for by the user

    def _found(self, download: bool, path: Path | None) -> EpisodeSource:
        """The episodes of the files, which are downloaded if they are missing."""
        if path is not None:
            if not path.exists():
                raise FileNotFoundError(f"there is nothing at {path}.")
            return self.source(path)
        if not self._folder.files.exists():
            self._download(download)
        return self.source(self._folder.files)

    def _download(self, download: bool) -> None:
        folder = self._folder
        if not download:
            raise FileNotFoundError(
                f"{self.dataset_id!r} is not in {folder.path}, and download=False: allow the "
                "download, give root= or path=."
            )
        made = [path for path in folder.downloading.parents if not path.exists()]
        folder.downloading.mkdir(parents=True, exist_ok=True)
        try:
            self.fetch(folder.downloading)
        except BaseException as error:
            folder.drop_empty(made)
            told = self.sources_of_copies
            if isinstance(error, FileNotFoundError) and told and told not in str(error):
                error.add_note(told)
            raise
        folder.downloading.replace(folder.files)


def _require_streamable(
    *, split_trajs: bool, writer: Writer | None, prefetch: int | None = None, **_: Any
) -> None:
    """Raises for what excludes a stream."""
    if split_trajs:
        raise ValueError("split_trajs holds all trajectories at once: leave it or streaming out.")
    if writer is not None:
        raise ValueError("a stream has a writer of its own: leave writer or streaming out.")
    if prefetch:
        raise ValueError("a stream reads ahead already: leave prefetch or streaming out.")


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
