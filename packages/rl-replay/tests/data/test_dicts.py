"""Dicts of arrays and numbers: the quick way reads what the general way reads, or leaves it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_replay import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from rl_replay.data.dicts import DictReader, RowDict
from rl_replay.data.structure import Structure
from rl_slabs import RowSchema

BUFFERS = [ReplayBuffer, TensorDictReplayBuffer]
DTYPES = [np.float32, np.float64, np.int64, np.int32, np.bool_, np.uint8]


def buffers(kind: type[ReplayBuffer]) -> tuple[ReplayBuffer, ReplayBuffer]:
    return kind(storage=LazyTensorStorage(50)), kind(storage=LazyTensorStorage(50))


def numbers() -> st.SearchStrategy[Any]:
    plain = st.sampled_from([0, 1, True, False, 0.0, 1.0, -2.5, 1 << 40])
    typed = st.builds(lambda dtype, value: dtype(value), st.sampled_from(DTYPES), st.integers(0, 3))
    return plain | typed


@st.composite
def leaves(draw: st.DrawFn, lead: tuple[int, ...]) -> Any:
    shape = lead + draw(st.sampled_from([(), (1,), (3,)]))
    if not shape:
        return draw(numbers())
    dtype, how = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(["numpy", "torch", "far"]))
    array = (np.arange(np.prod(shape)) % 5).reshape(shape).astype(dtype)
    if how == "far":
        return np.repeat(array, 2, axis=0)[::2]
    return array if how == "numpy" else torch.from_numpy(array)


@st.composite
def rows(draw: st.DrawFn, lead: tuple[int, ...]) -> dict[str, Any]:
    names = draw(st.sampled_from([("reward", "done"), ("reward", "extra"), ("done",)]))
    after = {name: draw(leaves(lead)) for name in names}
    return {"observation": draw(leaves(lead)), "is_init": draw(leaves(lead)), "next": after}


def outcome(act: Any, *given: Any) -> object:
    try:
        return act(*given)
    except (TypeError, ValueError, KeyError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("many", [False, True])
@given(st.data())
def test_quick_rows_are_those_of_the_general_way(kind: Any, many: bool, data: st.DataObject):
    quick, general = buffers(kind)
    for _ in range(3):
        row = data.draw(rows((2,) if many else ()))
        found = []
        for buffer in (quick, general):
            found.append(str(outcome(buffer.extend if many else buffer.add, row)))
            if buffer is general and buffer.storage.session.table is not None:
                table = buffer.storage.session.table
                table.readers = table.one_row = None  # from here on it takes the general way
        assert found[0] == found[1]
    if not len(quick):
        assert not len(general)
        return
    ours, theirs = quick[:], general[:]
    for path in [("observation",), ("is_init",), ("next",)]:
        one, two = ours[path[0]], theirs[path[0]]
        pairs = zip(one.values(), two.values(), strict=True) if path == ("next",) else [(one, two)]
        for mine, other in pairs:
            assert mine.dtype is other.dtype
            assert torch.equal(mine, other)


def test_a_loop_over_an_environment_takes_the_quick_way() -> None:
    schema = RowSchema(
        {
            "observation": (torch.float32, (3,)),
            "action": (torch.int64, ()),
            ("next", "reward"): (torch.float32, (1,)),
            ("next", "done"): (torch.bool, (1,)),
        }
    )
    reader = DictReader(schema, Structure("tensordict"))
    after = {"reward": np.float64(0.5), "done": False}
    row = {"observation": np.zeros(3, np.float32), "action": np.int64(1), "next": after}
    found = reader.of(RowDict(row, 0), 0)
    assert found is not None
    assert found["next", "reward"].tolist() == [0.5]
    assert reader.of(row, 0) is None  # a plain dict is a tree, not a tensordict


def test_rows_of_a_loop_over_a_plain_buffer_take_the_quick_way() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    row = {"observation": np.zeros(3), "reward": 1.0}
    buffer.add(row)
    table = buffer.storage.session.table
    assert table.one_row.take(row) is not None
    assert table.one_row.take({"observation": np.zeros(3), "reward": 1}) is None


def test_lists_of_numbers_are_arrays():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    buffer.add({"x": [0.0, 1.0], "n": [[1, 2], [3, 4]], "next": {"x": [1.0, 2.5]}})
    buffer.add({"x": [1.0, 2.5], "n": [[5, 6], [7, 8]], "next": {"x": np.float32([3, 4])}})
    rows = buffer[:]
    assert rows["x"].tolist() == [[0, 1], [1, 2.5]]
    assert rows["x"].dtype == torch.float32
    assert rows["n"].shape == (2, 2, 2)
    assert rows["n"].dtype == torch.int64
    assert rows["next", "x"].tolist() == [[1, 2.5], [3, 4]]
    buffer.extend({"x": [[2.0, 3.0]], "n": [[[5, 6], [7, 8]]], "next": {"x": [[1.0, 2.0]]}})
    assert len(buffer) == 3


def test_lists_of_other_things_are_trees():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    buffer.add({"x": [torch.zeros(2), torch.ones(3)]})
    assert sorted(buffer[:]["x"].keys()) == ["0", "1"]


def test_arrays_of_texts_are_named():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    with pytest.raises(TypeError, match=r"got an array of <U1 at \('info',\): use ListStorage"):
        buffer.extend({"x": np.zeros(3), "info": np.array(["a"] * 3)})


def test_flags_of_two_batch_dimensions_are_refused_with_what_to_do():
    over = np.zeros((6, 5), bool)
    with pytest.raises(ValueError, match=r"concatenate episodes or environments"):
        TensorDictReplayBuffer(storage=LazyTensorStorage(90)).extend({"next": {"done": over}})
