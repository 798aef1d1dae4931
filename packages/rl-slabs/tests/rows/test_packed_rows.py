"""Packed rows: one block, the same rows on the other side, whatever the transport did."""

import pickle

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict

from rl_slabs import PackedRows


def batch():
    return TensorDict(
        {
            "pixels": torch.randint(0, 256, (3, 5, 7, 11, 4), dtype=torch.uint8),  # an array apart
            "position": torch.randn(3, 5, 2),
            "next": {"reward": torch.randn(3, 5, 1), "done": torch.rand(3, 5, 1) > 0.5},
            "count": torch.arange(15).reshape(3, 5),
        },
        [3, 5],
    )


def sent(packed):
    """Pickle with the block apart, as a transport without copies does; it arrives read-only."""
    buffers = []
    head = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 1
    received = np.frombuffer(bytes(buffers[0].raw()), np.uint8)
    return head, received


def test_rows_arrive_as_they_were_sent():
    given = batch()
    head, block = sent(PackedRows.of(given))
    assert len(head) < 2000
    received = pickle.loads(head, buffers=[block])
    assert not received.block.flags.writeable
    unpacked = received.unpack()
    assert unpacked.batch_size == (3, 5)
    assert (unpacked == given).all()
    assert all(leaf.is_contiguous() for leaf in unpacked.values(True, True))


@pytest.mark.parametrize("shift", range(0, 64, 9))
def test_a_block_may_begin_at_any_address(shift):
    given = batch()
    packed = PackedRows.of(given)
    memory = np.empty(packed.block.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + shift
    memory[start : start + packed.block.nbytes] = packed.block
    block = memory[start : start + packed.block.nbytes]
    block.flags.writeable = False
    assert (packed._replace(block=block).unpack() == given).all()


def test_unpacked_rows_are_a_copy():
    packed = PackedRows.of(batch())
    unpacked = packed.unpack()
    unpacked["count"].zero_()
    assert packed.unpack()["count"].flatten().tolist() == list(range(15))


def test_large_leaves_of_a_block_of_ones_own_stay_where_they_are(versions):
    given = batch()
    packed = PackedRows.of(given)
    unpacked = packed.unpack(copy=False)
    assert unpacked.batch_size == (3, 5)
    assert (unpacked == given).all()
    assert all(leaf.is_contiguous() for leaf in unpacked.values(True, True))
    first, last = packed.block.ctypes.data, packed.block.ctypes.data + packed.block.nbytes
    inside = {key: first <= leaf.data_ptr() < last for key, leaf in unpacked.items(True, True)}
    assert [key for key, is_inside in inside.items() if is_inside] == ["pixels"]
    keys, leaves = zip(*unpacked.items(True, True), strict=True)
    before = versions(leaves)
    unpacked["pixels"].zero_()
    pairs = zip(keys, before, versions(leaves), strict=True)
    assert [key for key, old, new in pairs if new > old] == ["pixels"]
    del packed
    assert not unpacked["pixels"].any()  # the leaf keeps its memory


def test_a_block_of_large_leaves_alone_is_unpacked_without_a_copy(versions):
    given = TensorDict(
        {"next": {"pixels": torch.randn(4, 300)}, "pixels": torch.randn(4, 300)}, [4]
    )
    unpacked = PackedRows.of(given).unpack(copy=False)
    assert (unpacked == given).all()
    before = versions([unpacked["pixels"]])
    unpacked["next", "pixels"].zero_()
    assert versions([unpacked["pixels"]]) == before  # autograd does not take it for changed


def test_entries_without_one_size_are_refused():
    ragged = LazyStackedTensorDict(
        TensorDict({"a": torch.zeros(2)}), TensorDict({"a": torch.zeros(3)})
    )
    with pytest.raises(TypeError, match="without one size"):
        PackedRows.of(ragged)
    with pytest.raises(TypeError):
        PackedRows.of(TensorDict({"text": NonTensorData("a", batch_size=[2])}, [2]))


def test_a_batch_without_rows_is_refused():
    with pytest.raises(ValueError, match=r"at least one row, got a batch of \[0, 5\]"):
        PackedRows.of(batch()[:0])
