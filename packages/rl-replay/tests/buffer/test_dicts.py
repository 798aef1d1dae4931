"""Rows that come as dicts of arrays and numbers, as a loop over an environment has them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from rl_replay import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from rl_transforms import MultiStepTransform


def row(number: int, *, ended: bool = False) -> dict[str, object]:
    return {
        "observation": np.full(3, number, dtype=np.float32),
        "action": number % 2,
        "next": {
            "observation": np.full(3, number + 1, dtype=np.float32),
            "reward": float(number),
            "terminated": ended,
            "truncated": np.bool_(False),
        },
    }


def test_add_of_a_dict_gives_rewards_and_flags_their_singleton_dimension():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20),
        sampler=SliceSampler(slice_len=2, strict_length=True),
        batch_size=4,
    )
    for number in range(7):
        assert buffer.add(row(number, ended=number == 3)) == number
    rows = buffer[:]
    assert rows["next", "reward"].shape == (7, 1)
    assert rows["next", "terminated"].flatten().tolist() == [False] * 3 + [True] + [False] * 3
    assert rows["next", "truncated"].dtype is torch.bool
    assert rows["observation"].shape == (7, 3)
    assert rows["action"].shape == (7,)
    for _ in range(9):
        firsts, seconds = buffer.sample()["observation"][:, 0].view(2, 2).unbind(1)
        assert (seconds == firsts + 1).all()
        assert not (firsts == 3).any()  # it ended there


def test_extend_by_a_dict_or_by_a_list_of_dicts_stores_the_same_rows():
    one, many, listed = (TensorDictReplayBuffer(storage=LazyTensorStorage(9)) for _ in range(3))
    rows = [row(number, ended=number == 1) for number in range(5)]
    for each in rows:
        one.add(each)
    nexts = {name: np.stack([each["next"][name] for each in rows]) for name in rows[0]["next"]}
    nexts["reward"] = nexts["reward"].astype(np.float32)
    several = {name: np.stack([each[name] for each in rows]) for name in ("observation", "action")}
    assert many.extend(several | {"next": nexts}).tolist() == [0, 1, 2, 3, 4]
    listed.extend(rows)
    assert (one[:] == many[:]).all()
    assert (one[:] == listed[:]).all()


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_flags_of_datasets_as_numbers_are_stored_as_flags(dtype):
    ends = np.array([0, 0, 1, 0, 0, 0, 1], dtype=dtype)
    nexts = {"terminated": ends, "truncated": 0 * ends, "done": ends}
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=2), batch_size=4
    )
    buffer.extend({"observation": np.zeros((7, 3), np.float32), "next": nexts})
    assert all(buffer[:]["next", name].dtype is torch.bool for name in nexts)
    assert buffer[:]["next", "done"].flatten().tolist() == ends.tolist()
    for _ in range(9):
        sample = buffer.sample()
        terminated, truncated = sample["next", "terminated"], sample["next", "truncated"]
        assert (sample["next", "done"] == (terminated | truncated)).all()


@pytest.mark.parametrize("wrong", [2, -1, 0.5, float("nan")])
def test_a_flag_of_a_dict_that_is_neither_0_nor_1_is_refused(wrong):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20))
    rows = {"observation": np.zeros((3, 2)), "next": {"done": np.array([0, 1, wrong])}}
    with pytest.raises(
        ValueError, match=rf"'next.done' is a flag, 0 or 1 in each step: got {wrong}"
    ):
        buffer.extend(rows)
    assert len(buffer) == 0


def test_add_takes_a_dict_for_one_step_of_all_columns():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20, ndim=2))
    step = {"observation": np.zeros((4, 3)), "next": {"reward": np.arange(4.0)}}
    buffer.add(step)
    buffer.add(step)
    assert buffer[:]["next", "reward"].shape == (4, 2, 1)
    assert buffer[:]["next", "reward"][:, 1, 0].tolist() == [0, 1, 2, 3]


def test_stored_row_does_not_change_with_the_array_of_the_caller():
    buffer, seen = TensorDictReplayBuffer(storage=ListStorage(5)), np.zeros(3)
    buffer.add({"observation": seen})
    seen += 1
    assert not buffer[0]["observation"].any()


def test_extend_names_the_leaves_of_a_dict_whose_lengths_differ():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5))
    with pytest.raises(ValueError, match=r"dimension.*a': \[2, 3\], 'b': \[4\]"):
        buffer.extend({"a": np.zeros((2, 3)), "b": np.zeros(4)})
    with pytest.raises(TypeError, match="holds tensors, got str at"):
        buffer.add({"a": "text"})
    with pytest.raises(TypeError, match="expected a tensordict or a dict of arrays, got ndarray"):
        buffer.add(np.zeros(3))


@pytest.mark.parametrize("first", [1.0, 1, np.float64(1), np.float32(1), np.int64(1)], ids=repr)
@pytest.mark.parametrize(
    "second", [0.5, -100, np.float64(0.5), np.float32(0.5), np.int64(2)], ids=repr
)
def test_rewards_of_dicts_may_change_their_type_from_step_to_step(first, second):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    for reward in (first, second):
        buffer.add({"observation": np.zeros(3), "next": {"reward": reward, "done": False}})
    found = buffer[:]["next", "reward"]
    assert found.dtype is torch.float32
    assert found.flatten().tolist() == [float(first), float(second)]


def test_rewards_of_dicts_have_the_default_dtype_of_torch():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend({"next": {"reward": np.arange(4), "done": np.zeros(4, bool)}})
    assert buffer[:]["next", "reward"].dtype is torch.get_default_dtype()
    assert buffer[:]["next", "reward"].flatten().tolist() == [0, 1, 2, 3]


def test_add_of_a_step_of_several_environments_to_a_flat_storage_is_refused():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20))
    step = {"observation": np.zeros((5, 3)), "next": {"done": np.zeros(5, bool)}}
    with pytest.raises(ValueError, match=r"'next.done' has shape \[5\].*ndim=2"):
        buffer.add(step)
    agents = {"observation": np.zeros(3), "next": {"agents": {"done": np.zeros(5, bool)}}}
    buffer.add(agents)
    assert buffer[:]["next", "agents", "done"].shape == (1, 5)


@pytest.mark.parametrize("make", [ReplayBuffer, TensorDictReplayBuffer])
def test_flipped_arrays_are_stored_from_the_first_row_on(make):
    frame = np.arange(6, dtype=np.uint8).reshape(2, 3)
    buffer = make(storage=LazyTensorStorage(9))
    for _ in range(2):
        buffer.add({"frame": frame[::-1, ::-1]})
    buffer.extend({"frame": np.stack([frame, frame])[:, ::-1]})
    assert torch.as_tensor(buffer[:]["frame"])[:, 0].tolist() == [[5, 4, 3]] * 2 + [[3, 4, 5]] * 2


@pytest.mark.parametrize("of_torch", [False, True])
@pytest.mark.parametrize("call", ["add", "extend"])
@pytest.mark.parametrize("transform", [None, MultiStepTransform(2, 0.9)])
def test_observations_that_an_environment_refills_are_warned_of_once(call, of_torch, transform):
    dims = {"add": (3,), "extend": (2, 3)}[call]
    flags = (
        {"reward": 1.0, "done": False} if call == "add" else {"reward": [1.0] * 2, "done": [0] * 2}
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(90), transform=transform)
    state = np.zeros(dims, dtype=np.float32)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        before = state.copy()  # a reset returns a copy
        for _ in range(40):
            state += 1  # where `step` returns `self.state`
            seen = [torch.from_numpy(one) if of_torch else one for one in (before, state)]
            getattr(buffer, call)(
                {"observation": seen[0], "next": flags | {"observation": seen[1]}}
            )
            before = state
    found = [str(one.message) for one in said if "one array" in str(one.message)]
    assert len(found) == 1
    assert "['observation']" in found[0]
    assert "return a copy" in found[0]


def test_observations_of_their_own_memory_are_not_warned_of():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(90))
    frames = np.arange(60.0, dtype=np.float32)
    for step in range(40):  # windows of one array that overlap
        seen = {"observation": frames[step : step + 4], "action": 1}
        following = {"observation": frames[step + 1 : step + 5], "reward": 1.0, "done": False}
        buffer.add(seen | {"next": following})
    assert len(buffer) == 40
