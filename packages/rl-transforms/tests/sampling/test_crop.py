from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_transforms import RandomCropTensorDict


def rows(*shape):
    """Every row holds its own places, time last."""
    places = torch.stack(torch.meshgrid(*map(torch.arange, shape), indexing="ij"), -1)
    return TensorDict({"place": places, "deep": {"x": places[..., -1]}}, list(shape))


@given(st.integers(1, 6), st.integers(1, 6))
def test_windows_start_at_every_step_that_fits(length, window):
    if window > length:
        return
    batch = rows(300, length)
    starts = RandomCropTensorDict(window)(batch)["deep", "x"][:, 0]
    assert starts.unique().tolist() == list(range(length - window + 1))


def test_window_holds_consecutive_steps_of_one_row():
    crop = RandomCropTensorDict(4)(rows(3, 7))
    assert crop.batch_size == (3, 4)
    assert crop["place"][..., 0].tolist() == [[0] * 4, [1] * 4, [2] * 4]
    assert (crop["deep", "x"].diff(dim=1) == 1).all()


@pytest.mark.parametrize("dim", [0, 1, 2, -3])
def test_any_batch_dimension_can_be_cropped(dim):
    batch = rows(6, 7, 8).refine_names("a", "b", "c")
    crop = RandomCropTensorDict(5, dim)(batch)
    shape, axis = [6, 7, 8], dim % 3
    shape[axis] = 5
    assert list(crop.batch_size) == shape
    assert crop.names == ["a", "b", "c"]
    assert (crop["place"][..., axis].diff(dim=axis) == 1).all()
    others = [d for d in range(3) if d != axis]
    whole = batch["place"].narrow(axis, 0, 5)
    assert torch.equal(crop["place"][..., others], whole[..., others])


def test_rows_are_cropped_independently():
    starts = RandomCropTensorDict(2)(rows(40, 9))["deep", "x"][:, 0]
    assert len(starts.unique()) > 3


def test_flat_batch_has_one_window():
    crop = RandomCropTensorDict(4)(rows(7))
    assert crop.batch_size == (4,)
    assert (crop["deep", "x"].diff() == 1).all()


def test_windows_contain_no_padding():
    batch = rows(600, 5)
    lengths = torch.arange(600) % 4 + 2
    batch["collector", "mask"] = torch.arange(5) < lengths[:, None]
    crop = RandomCropTensorDict(2, mask_key=("collector", "mask"))(batch)
    assert crop["collector", "mask"].all()
    for length in (2, 3, 4, 5):
        starts = crop["deep", "x"][lengths == length, 0]
        assert starts.unique().tolist() == list(range(length - 1))


def test_reseeded_generator_draws_the_same_windows():
    crops = [
        RandomCropTensorDict(3, generator=torch.Generator().manual_seed(5))(rows(9, 30))
        for _ in range(2)
    ]
    assert torch.equal(crops[0]["place"], crops[1]["place"])


def test_invalid_windows_and_masks_are_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        RandomCropTensorDict(0)
    with pytest.raises(ValueError, match="a row of 5 steps is shorter than 6"):
        RandomCropTensorDict(6)(rows(3, 5))
    with pytest.raises(ValueError, match=r"no dimension 2 in a batch \[3, 5\]"):
        RandomCropTensorDict(2, 2)(rows(3, 5))
    with pytest.raises(ValueError, match=r"no dimension -1"):
        RandomCropTensorDict(2)(TensorDict({}, []))
    with pytest.raises(ValueError, match="at least one row"):
        RandomCropTensorDict(2)(rows(0, 5))
    crop, batch = RandomCropTensorDict(2, mask_key="mask"), rows(3, 5)
    with pytest.raises(KeyError, match="'mask' is missing"):
        crop(batch)
    with pytest.raises(ValueError, match=r"'mask': expected shape \[3, 5\], got \[3, 5, 1\]"):
        crop(batch.set("mask", torch.ones(3, 5, 1, dtype=torch.bool)))
    with pytest.raises(TypeError, match=r"expected torch.bool"):
        crop(batch.set("mask", torch.ones(3, 5)))
    hole = torch.tensor([[True, False, True, True, True]]).expand(3, 5)
    with pytest.raises(ValueError, match="after padding"):
        crop(batch.set("mask", hole))
    with pytest.raises(ValueError, match="cannot sit in"):
        crop.check_place("environment")
