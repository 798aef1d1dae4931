"""Writing a dump: a file of arrays under a new name, then the manifest in one step.

A dump is what its manifest names, so a process that is killed leaves the former dump whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sys
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_replay.checkpoint.inner_folder import (
    described_folder,
    is_name,
    new_name,
    remove,
    synced,
)
from rl_replay.checkpoint.manifest import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    is_named,
    parsed,
    sealed,
)
from rl_replay.checkpoint.other_file import ROWS, described_file
from rl_replay.checkpoint.parts import (
    Bytes,
    Chunks,
    Folder,
    Late,
    OtherFile,
    Part,
    described,
    flat,
    raw_pieces,
)
from rl_replay.edges import folder_name

_DATA = "data-"
_OURS = re.compile(rf"({_DATA}|{ROWS})[0-9a-f]{{32}}(\.[a-z0-9]+)*")
_ALIGNMENT = 64
_SYNC_BYTES = 16 << 20


def dump(path: str | os.PathLike[str], parts: Mapping[str, Part]) -> None:
    """Write parts into a folder, in place of the dump that may be there.

    All of it is on the disk when this returns. Until then, and whenever it fails or is killed, the
    former dump is valid. Files and folders of others in the folder stay as they are.

    Args:
        path: The folder; created if missing.
        parts: Tensors, arrays, `Chunks` of them that are made while they are written, JSON values,
            groups of parts, and each `Folder` that something else fills. Names have no slash.

    Raises:
        TypeError: A part that only a pickle could hold.
        ValueError: A name with a slash in it.
        FileExistsError: The path is a file, or a folder with a manifest of another program.
        BlockingIOError: Another dump to the same folder is being written.
        OSError: The disk is full, or the folder cannot be written to.

    Example:
        >>> import tempfile
        >>> from rl_replay import LazyTensorStorage, ReplayBuffer
        >>> from rl_replay.checkpoint import Folder, load
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(5))
        >>> index = buffer.extend(torch.arange(3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     parts = {"hashes": torch.tensor([7, 4, 9]), "rows": Folder(buffer.dumps)}
        ...     dump(folder, {"kind": "map", "version": 1, **parts})
        ...     found = load(folder)
        ...     buffer.loads(found["rows"])
        >>> found["kind"], found["hashes"]
        ('map', tensor([7, 4, 9]))
    """
    folder = Path(folder_name(path))
    listed = list(flat(parts))
    for _, part in listed:
        if isinstance(part, torch.Tensor | np.ndarray | Chunks):
            described(part)
    with _claimed(folder):
        _replace(folder, listed)


def _replace(folder: Path, parts: list[tuple[str, Any]]) -> None:
    data = folder / f"{_DATA}{uuid.uuid4().hex}"
    draft = data.with_suffix(".json")
    others: dict[Path, str | None] = {}
    try:
        parts = [(name, _filled(folder, part, others)) for name, part in parts]
        try:
            parts = [(name, _filed(folder, part, others)) for name, part in parts]
            _write_manifest(draft, data, parts)
            os.replace(draft, folder / MANIFEST)
        except OSError as error:  # what fills a folder says itself what went wrong
            raise _failed(error, folder) from error
    except BaseException:
        # an interrupt after the last step comes too late to undo it
        if not is_named(folder, data.name):
            remove([data, draft, *others])
        raise
    _settle(folder)
    # what else begins like that is not ours to remove
    ours = [
        other for other in folder.iterdir() if _OURS.fullmatch(other.name) or is_name(other.name)
    ]
    former = [other for other in ours if other != data and other not in others]
    remove([*_second_names(folder, former), *former])
    for name, link in others.items():
        if link is not None:
            _link(name, folder / link)


def _filled(folder: Path, part: Any, others: dict[Path, str | None]) -> Any:
    """What is written of a part, which for a `Folder` is its name: `others` notes it."""
    if not isinstance(part, Folder):
        return part
    name = folder / new_name()
    others[name] = None
    part.write(name)
    return described_folder(name)


def _filed(folder: Path, part: Any, others: dict[Path, str | None]) -> Any:
    """What is written of a part, which for an `OtherFile` is its name: `others` notes it."""
    if not isinstance(part, OtherFile):
        return part
    name = folder / f"{ROWS}{uuid.uuid4().hex}{part.suffix}"
    others[name] = part.link
    part.write(name)
    return described_file(name)


def _write_manifest(draft: Path, data: Path, parts: list[tuple[str, Any]]) -> None:
    """Writes the data, then a draft of the manifest that names them."""
    found, size = _write_data(data, parts)
    head = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "layout": "rows",  # the only one so far
        "byteorder": sys.byteorder,
        "data": {"file": data.name, "bytes": size},
        "parts": found,
    }
    _write(draft, [np.frombuffer(sealed(head), dtype=np.uint8)])
    # the name of the data is on the disk before a manifest that needs it can be
    _settle(data.parent)


def _second_names(folder: Path, names: Iterable[Path]) -> list[Path]:
    """Links in a folder to files of a former dump, which look like those of the new one."""
    files = {_identity(name) for name in names if name.name.startswith(ROWS)} - {None}
    others = (other for other in folder.iterdir() if not _OURS.fullmatch(other.name))
    return [other for other in others if _identity(other) in files] if files else []


def _identity(name: Path) -> tuple[int, int] | None:
    try:
        found = name.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _link(name: Path, link: Path) -> None:
    """Gives a file a second name, in place of the file that may have it."""
    draft = name.with_name(f"{name.name}.link")
    os.link(name, draft)
    os.replace(draft, link)


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Locks a folder against other dumps; the lock ends with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise FileExistsError(
            error.errno, f"{folder} is a file: a dump is a folder. Choose another path"
        ) from None
    except OSError as error:
        raise type(error)(
            error.errno,
            f"the folder {folder} of a dump cannot be made: {error.strerror}. Choose another path",
        ) from error
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (folder / MANIFEST).exists():
            _require_ours(folder)
        else:
            _settle(folder.parent)
        yield
    except BlockingIOError as error:
        raise BlockingIOError(
            error.errno, f"another dump to {folder} is being written: wait for it"
        ) from None
    finally:
        os.close(descriptor)


def _require_ours(folder: Path) -> None:
    try:
        parsed(folder / MANIFEST)
    except ValueError as error:
        raise FileExistsError(
            errno.EEXIST, f"{error} It would be lost: choose another path"
        ) from None


def _write_data(name: Path, parts: Iterable[tuple[str, Any]]) -> tuple[dict[str, Any], int]:
    """Writes every array; returns the entries of the manifest and the size of the file."""
    found: dict[str, Any] = {}
    sums: dict[str, Future[int]] = {}
    end = 0

    def pieces(worker: ThreadPoolExecutor) -> Iterator[Bytes]:
        nonlocal end
        for part_name, part in parts:
            if not isinstance(part, torch.Tensor | np.ndarray | Chunks):
                found[part_name] = {"plain": part.value() if isinstance(part, Late) else part}
                continue
            if gap := -end % _ALIGNMENT:
                yield np.zeros(gap, dtype=np.uint8)
            start = end = end + gap
            checksum: Future[int] = worker.submit(int)
            for piece in raw_pieces(part):
                end += len(piece)
                checksum.result()  # so that no more than two pieces are ever held
                checksum = worker.submit(_crc32, piece, checksum)
                yield piece
            entry = {"offset": start, "bytes": end - start}
            found[part_name] = described(part) | entry
            sums[part_name] = checksum

    # a checksum takes as long as writing to a fast disk: both at once
    with ThreadPoolExecutor(1) as worker:
        _write(name, pieces(worker))
        for part_name, checksum in sums.items():
            found[part_name]["crc32"] = checksum.result()
    return found, end


def _crc32(piece: Bytes, before: Future[int]) -> int:
    return zlib.crc32(piece.data, before.result())


def _write(name: Path, pieces: Iterable[Bytes]) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with ThreadPoolExecutor(1) as disk:
            ahead: Future[Any] = disk.submit(int)
            waiting = 0
            for piece in pieces:
                view = piece.data
                while len(view):
                    view = view[os.write(descriptor, view) :]
                waiting += len(piece)
                # the disk begins while the next pieces are made
                if waiting >= _SYNC_BYTES and ahead.done():
                    ahead, waiting = disk.submit(os.fdatasync, descriptor), 0
        ahead.result()
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _settle(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    synced(folder, os.O_RDONLY | os.O_DIRECTORY)


def _failed(error: OSError, folder: Path) -> OSError:
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize
    return OSError(
        error.errno,
        f"the dump to {folder} failed, {free} bytes being free: {error.strerror}. "
        "What was dumped there before is whole. Free some space, or choose another path",
    )
