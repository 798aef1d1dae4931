"""Buffers that are kept in a form, and whether two are the same."""

import pytest

from rl_replay import (
    FlatStorageCheckpointer,
    H5StorageCheckpointer,
    LazyTensorStorage,
    NestedStorageCheckpointer,
    ReplayBuffer,
    TensorStorageCheckpointer,
)

FORMS = {
    "tensor": TensorStorageCheckpointer,
    "flat": FlatStorageCheckpointer,
    "nested": NestedStorageCheckpointer,
    "h5": H5StorageCheckpointer,
    "gzip": lambda: H5StorageCheckpointer(compression="gzip", h5_kwargs={"shuffle": True}),
    "apart": lambda: FlatStorageCheckpointer(done_keys=["done"], reward_keys=["observation"]),
}


def _buffer(form, storage=None, **options):
    storage = LazyTensorStorage(30) if storage is None else storage  # an empty one is falsy
    made = ReplayBuffer(storage=storage, **options)
    made.storage.checkpointer = FORMS[form]()
    return made


@pytest.fixture(scope="session")
def buffer():
    return _buffer
