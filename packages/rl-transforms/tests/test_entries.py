from __future__ import annotations

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict

from rl_transforms.entries import merge_rows, missing, not_reset, with_entries, without_entries


def nested():
    inner = {"a": torch.zeros(3, 1), "b": torch.ones(3, 2)}
    return TensorDict({"group": inner, "c": torch.zeros(3)}, [3], names=["time"])


def test_with_entries_changes_neither_the_input_nor_its_groups():
    batch = nested()
    changed = with_entries(
        batch, {("group", "a"): torch.full((3, 1), 7.0), ("x", "y"): torch.ones(3)}
    )
    assert batch["group", "a"].sum() == 0
    assert "x" not in batch
    assert changed["group", "a"].sum() == 21
    assert changed["group", "b"] is batch["group", "b"]
    assert changed["x"].batch_size == (3,)
    assert changed.names == ["time"]


def test_with_entries_of_a_locked_tensordict_is_unlocked():
    changed = with_entries(nested().lock_(), {"c": torch.ones(3)})
    changed["d"] = torch.ones(3)
    assert changed["c"].sum() == 3


def test_non_tensor_data_pass_through():
    batch = nested().set("text", NonTensorData("hello", batch_size=[3]))
    assert with_entries(batch, {"c": torch.ones(3)})["text"] == "hello"


@pytest.mark.parametrize("lazy", [False, True])
def test_without_entries_drops_emptied_groups(lazy):
    batch = nested()
    if lazy:
        batch = LazyStackedTensorDict.lazy_stack(list(batch.unbind(0)))
    left = without_entries(batch, [("group", "a"), ("group", "b"), "unknown"])
    assert set(left.keys()) == {"c"}
    assert set(batch.keys()) == {"c", "group"}
    assert set(without_entries(batch, [("group", "a")])["group"].keys()) == {"b"}


def test_with_entries_copies_a_lazy_stack():
    batch = LazyStackedTensorDict.lazy_stack(list(nested().unbind(0)))
    changed = with_entries(batch, {("group", "a"): torch.full((3, 1), 7.0)})
    assert changed["group", "a"].sum() == 21
    assert batch["group", "a"].sum() == 0


def test_nested_key_below_a_leaf_is_refused():
    with pytest.raises(KeyError, match="below 'c'"):
        with_entries(nested(), {("c", "d"): torch.ones(3)})


def test_merge_rows_accepts_any_trailing_shape():
    mask = torch.tensor([[True, False], [False, False], [True, True]])
    merged = merge_rows(mask, torch.ones(3, 2, 5), torch.zeros(3, 2, 5))
    assert torch.equal(merged[..., 4].bool(), mask)


def test_errors_name_the_key_and_the_present_keys():
    assert "'x' is missing: there are ('group', 'a')" in missing("It", "x", nested()).args[0]
    assert "Did you mean" not in missing("It", "x", nested()).args[0]
    assert missing("It", "a", nested()).args[0].endswith("Did you mean ('group', 'a')?")
    assert "Call reset first" in not_reset(nested(), "x", nested()).args[0]


def test_mask_of_another_shape_or_dtype_is_refused():
    with pytest.raises(ValueError, match=r"at the head of \[3, 2\], got \[2\]. Pass one flag"):
        merge_rows(torch.tensor([True, False]), torch.ones(3, 2), torch.zeros(3, 2))
    with pytest.raises(TypeError, match=r"expected torch.bool, got torch.float32"):
        merge_rows(torch.ones(3), torch.ones(3, 2), torch.zeros(3, 2))
