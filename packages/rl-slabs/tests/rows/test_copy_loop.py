import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_slabs import Rows, RowSchema
from rl_slabs.dtypes import CARRIERS
from rl_slabs.rows import copy_loop, native
from rl_slabs.rows.copy_loop import LEAST_ROWS, CopyLoop, loop_source

pytest.importorskip("llvmlite")
DTYPES = sorted(set(CARRIERS) - {torch.complex32}, key=str)  # torch warns whenever it makes one
SCHEMA = RowSchema(
    {
        "observation": (torch.float32, (3,)),
        "done": (torch.bool, (1,)),
        ("next", "reward"): (torch.float64, ()),
        "frame": (torch.uint8, (7, 41)),
    }
)


@pytest.fixture
def compiled_at_once(monkeypatch):
    monkeypatch.setattr(copy_loop, "ROWS_BEFORE_COMPILING", 0)


@st.composite
def schemas(draw):
    """Leaves of all dtypes, packed ones and own arrays, nested ones and empty ones."""
    leaf = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3))
    whole = st.tuples(st.sampled_from(DTYPES), st.just([2]))
    leaves = [draw(whole), *draw(st.lists(leaf, max_size=5))]
    names = [("next", f"{k}") if draw(st.booleans()) else f"{k}" for k in range(len(leaves))]
    packed_bytes = draw(st.sampled_from([0, 32, 256]))
    return RowSchema(dict(zip(names, leaves, strict=True)), packed_bytes=packed_bytes)


def random_rows(schema, count, seed, *, apart=1):
    """Rows of random bytes, whose leaves are contiguous or every so many rows of a larger leaf."""
    rng, found = np.random.default_rng(seed), TensorDict(batch_size=[count])
    for field in schema.fields:
        held = rng.integers(0, 256, (count * apart, field.nbytes), dtype=np.uint8)
        held &= np.uint8(1) if field.dtype is torch.bool else np.uint8(255)
        leaf = torch.from_numpy(held).view(-1).view(field.dtype)
        found[field.key] = leaf.view(count * apart, *field.shape)[::apart]
    return found


def bytes_of(rows):
    """Every byte of the packed rows and of the own arrays."""
    held = [rows.packed, *rows.arrays.values()]
    return [one.reshape(-1).view(torch.uint8).tolist() for one in held if one is not None]


HOW = st.sampled_from(["slice", "stream", "index"])


@given(schemas(), st.integers(0, 1 << 20), st.integers(1, 3), HOW)
def test_rows_are_those_that_numpy_writes_to_the_bit(schema, seed, apart, how):
    count, capacity, first = LEAST_ROWS + seed % 7, LEAST_ROWS + 15, seed % 9
    source = random_rows(schema, count, seed, apart=apart)
    index = (
        (torch.arange(count) * 5 + seed) % capacity
        if how == "index"
        else slice(first, first + count)
    )
    if how == "index" and len(index.unique()) < count:
        index = torch.randperm(capacity)[:count]
    plain, fast = Rows.zeros(schema, capacity), Rows.zeros(schema, capacity)
    plain.write(index, source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_loop, "ROWS_BEFORE_COMPILING", 0)
        patch.setattr(copy_loop, "BYTES_TO_STREAM", 0 if how == "stream" else 1 << 62)
        fast = Rows.zeros(schema, capacity)
    fast.write(index, source)
    assert fast.is_compiled == bool(schema.packed)
    assert not plain.is_compiled
    assert bytes_of(fast) == bytes_of(plain)


def test_a_step_between_rows_is_kept(compiled_at_once):
    rows, source = Rows.zeros(SCHEMA, 4 * LEAST_ROWS), random_rows(SCHEMA, 2 * LEAST_ROWS, 3)
    rows.write(slice(1, 4 * LEAST_ROWS, 2), source)
    assert rows.read(slice(1, 4 * LEAST_ROWS, 2))["frame"].equal(source["frame"])
    assert rows.read(slice(1, 4 * LEAST_ROWS, 2))["done"].equal(source["done"])
    assert not rows.read(slice(0, 4 * LEAST_ROWS, 2))["done"].any()


def test_row_numbers_may_lie_apart_in_memory(compiled_at_once):
    rows, source = Rows.zeros(SCHEMA, 4 * LEAST_ROWS), random_rows(SCHEMA, LEAST_ROWS, 4)
    chosen = torch.randperm(4 * LEAST_ROWS)
    for index in (chosen[::4], chosen.view(-1, 4)[:, 1], chosen.view(4, -1).T[:, 2]):
        rows.write(index, source)
        assert rows.read(index)["frame"].equal(source["frame"])
        assert rows.read(index)["done"].equal(source["done"])
    assert rows.is_compiled


def test_nothing_is_compiled_before_a_million_rows(monkeypatch):
    compiled = []
    monkeypatch.setattr(copy_loop, "compile_loop", lambda source: compiled.append(source))
    rows, count = Rows.zeros(SCHEMA, 1 << 16), 1 << 16
    source = random_rows(SCHEMA, count, 0)
    for _ in range(16):
        rows.write(slice(0, count), source)
        rows.write(slice(0, 9), source[:9])
    assert not compiled
    rows.write(slice(0, count), source)
    rows.write(slice(0, count), source)
    assert len(compiled) == 2  # one for neighbouring rows, one by index


def test_rows_of_one_schema_share_what_is_compiled(compiled_at_once):
    source = random_rows(SCHEMA, LEAST_ROWS, 5)
    for _ in range(3):
        Rows.zeros(SCHEMA, LEAST_ROWS).write(slice(0, LEAST_ROWS), source)
    before = native.compile_loop.cache_info()
    Rows.zeros(SCHEMA, LEAST_ROWS).write(slice(0, LEAST_ROWS), source)
    after = native.compile_loop.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 2)


def test_without_llvm_numpy_writes(compiled_at_once, monkeypatch):
    monkeypatch.setattr(copy_loop, "compile_loop", lambda source: None)
    rows, source = Rows.zeros(SCHEMA, LEAST_ROWS), random_rows(SCHEMA, LEAST_ROWS, 5)
    for _ in range(2):
        rows.write(slice(0, LEAST_ROWS), source)
    assert not rows.is_compiled
    assert rows.read(slice(0, LEAST_ROWS))["done"].equal(source["done"])


@pytest.mark.parametrize("leaf", [np.ones((LEAST_ROWS, 2)), np.ones((LEAST_ROWS, 1), np.float32)])
def test_memory_of_another_size_is_never_read(compiled_at_once, leaf):
    schema = RowSchema({"a": (torch.float32, (2,))})
    loop, words = (
        CopyLoop(schema, LEAST_ROWS),
        np.zeros((LEAST_ROWS, 1), dtype=np.int64).ctypes.data,
    )
    assert loop.bind([leaf], (), words, slice(0, LEAST_ROWS)) is None
    assert loop.bind([np.ones((LEAST_ROWS, 2), np.float32)], (), words, slice(0, LEAST_ROWS))


def written_right(pipe, schema, seed):
    rows, source = Rows.zeros(schema, LEAST_ROWS), random_rows(schema, LEAST_ROWS, seed)
    rows.write(slice(0, LEAST_ROWS), source)
    plain = Rows.zeros(schema, LEAST_ROWS)
    for row in range(LEAST_ROWS):
        plain.write(row, source[row])
    pipe.send((rows.is_compiled, bytes_of(rows) == bytes_of(plain)))


def test_a_forked_child_uses_and_compiles_loops(compiled_at_once, forked):
    Rows.zeros(SCHEMA, LEAST_ROWS).write(slice(0, LEAST_ROWS), random_rows(SCHEMA, LEAST_ROWS, 1))
    other = RowSchema({"number": (torch.int64, (7,)), "flag": (torch.bool, (3,))})
    for schema in (SCHEMA, other):
        assert forked(written_right, schema, 2).receive() == (True, True)


def test_a_fork_waits_for_a_thread_that_compiles(compiled_at_once, forked):
    native.compile_loop(loop_source(SCHEMA))  # from now on forks wait
    stop = threading.Event()

    def compile_others():
        size = 0
        while not stop.is_set():
            size += 1
            native.compile_loop(loop_source(RowSchema({"a": (torch.int8, (size,))}), by_index=True))

    thread = threading.Thread(target=compile_others)
    thread.start()
    try:
        for seed in range(5):
            schema = RowSchema({"b": (torch.int16, (seed + 1,))})
            assert forked(written_right, schema, seed).receive() == (True, True)
    finally:
        stop.set()
        thread.join()
