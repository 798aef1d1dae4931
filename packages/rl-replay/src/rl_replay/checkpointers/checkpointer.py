"""The interface of checkpointers, which keep the rows of a storage on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ClassVar

from tensordict import TensorDictBase

from rl_replay.checkpoint.hooks import Hook, changed_rows, dump_rows, put_rows
from rl_replay.checkpoint.reader import Archive
from rl_replay.checkpoint.storage import load_storage, refused_objects, storage_parts
from rl_replay.checkpoint.writer import dump
from rl_replay.compact.forms import RowForm
from rl_replay.edges import folder_name
from rl_replay.storages import Storage


class StorageCheckpointerBase:
    """Keeps the rows of a storage on disk. Derive from it and write `dumps` and `loads`.

    `storage.checkpointer = ...` lets the dumps of its buffer keep rows that way. A class of your
    own sets `is_own = False`: the buffer gives it a folder within the dump.

    Attributes:
        form: The form of the rows among the parts of a dump; None as they lie.
        save_hooks: They change the rows that are written, in this order.
        load_hooks: They change rows back that such hooks had changed.

    Example:
        >>> class Listed(StorageCheckpointerBase):
        ...     is_own = False
        ...     def dumps(self, storage, path):
        ...         os.makedirs(path)
        ...         torch.save(storage.state_dict(), os.path.join(path, "rows.pt"))
        ...     def loads(self, storage, path):
        ...         storage.load_state_dict(torch.load(os.path.join(path, "rows.pt")))
        >>> import tempfile, torch
        >>> from rl_replay import ListStorage, ReplayBuffer
        >>> one, two = (ReplayBuffer(storage=ListStorage(5)) for _ in range(2))
        >>> one.storage.checkpointer = two.storage.checkpointer = Listed()
        >>> _ = one.extend([3, 4])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     one.dumps(folder)
        ...     two.loads(folder)
        >>> two[:]
        tensor([3, 4])
    """

    is_own: ClassVar[bool] = True

    def __init__(self) -> None:
        self.form: RowForm | None = None
        self.save_hooks: list[Hook] = []
        self.load_hooks: list[Hook] = []

    def dumps(self, storage: Storage, path: str | os.PathLike[str]) -> None:
        """Writes the rows of a storage to a folder, in place of the dump that may be there.

        Args:
            storage: The storage.
            path: The folder; created if missing.

        Raises:
            NotImplementedError: A storage of any objects.
            OSError: Too little space, or no way to write there.
        """
        name = folder_name(path)
        with storage.exclusive_writer():
            if self.save_hooks:
                dump_rows(storage, name, self.save_hooks)
                return
            with storage.read_ahead():
                dump(name, {"storage": storage_parts(storage, self.form)})

    def loads(self, storage: Storage, path: str | os.PathLike[str]) -> None:
        """Restores the rows of a storage; where that fails they are as before.

        Any of these checkpointers reads what another one wrote: a dump says in which form it is.

        Args:
            storage: The storage.
            path: The folder.

        Raises:
            FileNotFoundError: There is no dump.
            ValueError: A dump that was truncated or altered, or of something else than rows.
        """
        name = folder_name(path)
        with Archive(name) as archive:
            archive.verify()
            changed = changed_rows(storage, archive, self.load_hooks)
            if changed is not None:
                put_rows(storage, changed)
                return
            if "storage/count" not in archive.names():
                raise ValueError(
                    f"{name} is a dump without the rows of a storage, with {archive.names()[:4]}: "
                    "load it into what wrote it."
                )
            load_storage(storage, archive)

    def register_save_hook(self, hook: Callable[[TensorDictBase], TensorDictBase]) -> None:
        """Adds a function that changes the rows that are written; see `ReplayBuffer`.

        Args:
            hook: From all rows, the oldest first, to the tensordict to write.
        """
        self.save_hooks.append(hook)

    def register_load_hook(self, hook: Callable[[TensorDictBase], TensorDictBase]) -> None:
        """Adds a function that restores the rows from what save hooks made of them.

        Args:
            hook: From the tensordict that was written to the rows, the oldest first.
        """
        self.load_hooks.append(hook)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class TensorStorageCheckpointer(StorageCheckpointerBase):
    """Keeps rows as they lie in memory, in proportion to how full the storage is: the default.

    Example:
        >>> from rl_replay import LazyTensorStorage
        >>> storage = LazyTensorStorage(9)
        >>> storage.checkpointer = TensorStorageCheckpointer()
    """


class ListStorageCheckpointer(StorageCheckpointerBase):
    """Refuses to keep the objects of a `ListStorage`: only pickles could, and those run code.

    Example:
        >>> from rl_replay import ListStorage
        >>> storage = ListStorage(3)
        >>> storage.checkpointer = ListStorageCheckpointer()
    """

    def dumps(self, storage: Storage, path: str | os.PathLike[str]) -> None:
        """Refuses.

        Args:
            storage: The storage.
            path: A folder.

        Raises:
            NotImplementedError: Always.
        """
        del path
        raise refused_objects(storage)

    def loads(self, storage: Storage, path: str | os.PathLike[str]) -> None:
        """Refuses.

        Args:
            storage: The storage.
            path: A folder.

        Raises:
            NotImplementedError: Always.
        """
        del path
        raise refused_objects(storage)
