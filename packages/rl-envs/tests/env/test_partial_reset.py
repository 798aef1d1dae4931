import pytest
import torch
from tensordict import TensorDict

from rl_envs.env.partial_reset import (
    fit_mask,
    mask_of,
    merge,
    reset_masks,
    with_masks,
    without_masks,
)

MASK = torch.tensor([[True], [False], [True]])


def test_a_mask_may_lack_the_last_dimension():
    masks = reset_masks(TensorDict({"_reset": MASK[:, 0]}, [3]), [()], torch.Size([3]))
    assert masks[()].shape == (3, 1)


def test_a_mask_of_another_dtype_or_shape_is_refused():
    with pytest.raises(TypeError, match=r"_reset.*torch\.bool, got torch\.int64"):
        reset_masks(TensorDict({"_reset": MASK.long()}, [3]), [()], torch.Size([3]))
    with pytest.raises(ValueError, match=r"begins with \(5,\): got \(3, 1\)"):
        reset_masks(TensorDict({"_reset": MASK}), [()], torch.Size([5]))


def test_masks_come_off_and_go_back_on():
    given = TensorDict({"a": torch.ones(3), "_reset": MASK, "next": {"a": torch.ones(3)}}, [3])
    masks = reset_masks(given, [()], torch.Size([3]))
    kept = without_masks(given, masks)
    assert list(kept.keys()) == ["a"]
    assert (with_masks(kept, masks)["_reset"] == MASK).all()
    assert "next" in given


def test_merge_keeps_rows_outside_the_mask():
    old = TensorDict({"a": {"b": torch.zeros(3, 2)}, "mine": torch.ones(3)}, [3])
    new = TensorDict({"a": {"b": torch.ones(3, 2)}}, [3])
    merged = merge(old, new, {(): MASK})
    assert merged["a", "b"][:, 0].tolist() == [1, 0, 1]
    assert merged["mine"].sum() == 3


def test_merge_keeps_the_dtype_of_the_reset():
    old, new = (
        TensorDict({"a": torch.zeros(3).double()}, [3]),
        TensorDict({"a": torch.ones(3)}, [3]),
    )
    assert merge(old, new, {(): MASK})["a"].dtype == torch.float32


def test_a_leaf_obeys_the_nearest_mask():
    masks = {(): torch.tensor([True]), ("a",): torch.tensor([False])}
    assert not mask_of(masks, ("a", "b")).item()
    assert mask_of(masks, ("c",)).item()


def test_a_leaf_outside_all_groups_is_reset_where_any_group_is():
    masks = {("a",): torch.zeros(3, 2, 1, dtype=torch.bool), ("b",): MASK}
    assert mask_of(masks, ()).tolist() == MASK.tolist()


def test_a_mask_is_shaped_like_the_leaf():
    assert fit_mask(MASK, torch.zeros(3, 5, 7)).shape == (3, 1, 1)
    assert fit_mask(MASK.expand(3, 5).unsqueeze(-1), torch.zeros(3)).shape == (3,)
