"""A checkpointer that writes HDF5 files, which other programs read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rl_replay.checkpointers.checkpointer import StorageCheckpointerBase
from rl_replay.compact.forms import InH5, names_apart
from rl_tensordict import NestedKey


class H5StorageCheckpointer(StorageCheckpointerBase):
    """Keeps what `FlatStorageCheckpointer` keeps in an HDF5 file, which other programs can read.

    `lengths` in the file are the rows of each trajectory, `steps/...` the leaves of the steps, and
    `shared/...` the leaves that are kept once, with one row more for each trajectory. Needs the
    extra `rl-replay[h5]`.

    Args:
        checkpoint_file: The name of the file in the folder of the dump.
        done_keys: As for `FlatStorageCheckpointer`.
        reward_keys: As there.
        h5_kwargs: For every dataset, as `{"compression": "gzip"}`; see
            `h5py.Group.create_dataset`.
        **kw: The same, one by one.

    Raises:
        ValueError: A `checkpoint_file` that is no plain name.

    Example:
        >>> import tempfile, h5py
        >>> from rl_layout.testing import trajectories
        >>> from rl_replay import LazyTensorStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(9))
        >>> buffer.storage.checkpointer = H5StorageCheckpointer(compression="gzip")
        >>> _ = buffer.extend(trajectories([3, 4]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     buffer.dumps(folder)
        ...     with h5py.File(f"{folder}/checkpoint.h5") as file:
        ...         file["lengths"][:].tolist(), file["shared/observation"].shape
        ([3, 4], (9, 2))
    """

    def __init__(
        self,
        *,
        checkpoint_file: str = "checkpoint.h5",
        done_keys: Sequence[NestedKey] | None = None,
        reward_keys: Sequence[NestedKey] | None = None,
        h5_kwargs: Mapping[str, Any] | None = None,
        **kw: Any,
    ) -> None:
        super().__init__()
        is_taken = checkpoint_file.startswith(("manifest", "data-", "rows-"))
        plain = PurePath(checkpoint_file).name == checkpoint_file and checkpoint_file != ".."
        if not checkpoint_file or is_taken or not plain:
            raise ValueError(
                f"checkpoint_file is the name of a file in the dump, and of none that a dump has "
                f"already: got {checkpoint_file!r}."
            )
        self.form = InH5(
            checkpoint_file, names_apart(done_keys, reward_keys), {**(h5_kwargs or {}), **kw}
        )
