"""The checkpointer of several storages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rl_replay.checkpoint.inner_folder import own_folder
from rl_replay.checkpoint.parts import Folder
from rl_replay.checkpoint.reader import Archive
from rl_replay.checkpoint.rollback import restored_on_failure
from rl_replay.checkpoint.writer import dump
from rl_replay.checkpointers.checkpointer import StorageCheckpointerBase
from rl_replay.edges import folder_name
from rl_replay.ensembles.storage import StorageEnsemble


class StorageEnsembleCheckpointer(StorageCheckpointerBase):
    """Keeps several storages, each in a folder of its own by its own checkpointer.

    Example:
        >>> import tempfile, torch
        >>> from rl_replay import LazyTensorStorage
        >>> one = StorageEnsemble(LazyTensorStorage(5), LazyTensorStorage(5))
        >>> two = StorageEnsemble(LazyTensorStorage(5), LazyTensorStorage(5))
        >>> _ = [storage.extend(torch.arange(3)) for storage in one]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     StorageEnsembleCheckpointer().dumps(one, folder)
        ...     StorageEnsembleCheckpointer().loads(two, folder)
        >>> [len(storage) for storage in two]
        [3, 3]
    """

    is_own = False

    def dumps(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Writes all storages; a dump that is there is replaced when the other one is whole.

        Args:
            storage: The ensemble.
            path: The folder; created if missing.

        Raises:
            TypeError: No ensemble of storages.
        """
        members = _members(storage)

        def write(made: Path) -> None:
            for number, member in enumerate(members):
                _of(member).dumps(member, made / str(number))

        dump(folder_name(path), {"storages": {"folder": Folder(write), "count": len(members)}})

    def loads(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Restores all storages, after every byte was checked.

        Where one of them fails all are as before: until the last one is loaded their former rows
        are kept in memory.

        Args:
            storage: The ensemble.
            path: The folder.

        Raises:
            FileNotFoundError: There is no dump.
            TypeError: No ensemble of storages.
            ValueError: A damaged dump, or one of more or fewer storages.
        """
        folder, members = Path(folder_name(path)), _members(storage)
        with Archive(folder) as archive:
            if "storages/folder" not in archive.names():
                raise ValueError(f"{folder} is no dump of several storages.")
            inner, count = archive.folder_of("storages/folder"), archive.part("storages/count")
        if count != len(members):
            raise ValueError(
                f"{folder} holds {count!r} storages, and this ensemble has {len(members)}: make "
                "one of as many."
            )
        parts = [own_folder(inner / str(number)) for number in range(len(members))]
        for member, part in zip(members, parts, strict=True):
            if _of(member).is_own:  # what others write is theirs to check
                with Archive(part) as archive:
                    archive.verify()
        with restored_on_failure(members):
            for member, part in zip(members, parts, strict=True):
                _of(member).loads(member, part)


def _members(storage: Any) -> list[Any]:
    if not isinstance(storage, StorageEnsemble):
        raise TypeError(f"expected a StorageEnsemble, got {type(storage).__name__}.")
    return list(storage)


def _of(member: Any) -> Any:
    return member.checkpointer or StorageCheckpointerBase()
