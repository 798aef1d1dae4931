from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_specs import Bounded, Composite
from rl_transforms import (
    FlattenObservation,
    PermuteTransform,
    SqueezeTransform,
    UnsqueezeTransform,
)


def leaf(*shape):
    return torch.arange(torch.Size(shape).numel()).reshape(shape)


def test_dimensions_are_merged_in_rows_of_any_number_of_batch_dimensions():
    flat = FlattenObservation(-3, -2)
    for batch in ((), (3,), (3, 5)):
        value = leaf(*batch, 2, 4, 7)
        found = flat(TensorDict({"observation": value}, batch))["observation"]
        assert found.shape == (*batch, 8, 7)
        assert torch.equal(found.flatten(), value.flatten())


def test_added_dimension_is_removed_by_the_inverse():
    there = UnsqueezeTransform(-2, ["a"], in_keys_inv=["a"])
    batch = TensorDict({"a": leaf(3, 4), "next": {"a": leaf(3, 4) + 1}}, [3])
    wide = there(batch)
    assert wide["a"].shape == wide["next", "a"].shape == (3, 1, 4)
    assert (there.inv(wide) == batch).all()
    back = SqueezeTransform(-2, ["a"], in_keys_inv=["a"])
    assert (back(wide) == batch).all()
    assert (back.inv(batch) == wide).all()


def test_specs_have_the_shapes_of_their_leaves():
    spec = Composite(observation=Bounded(-1, leaf(2, 4).float(), (3, 2, 4)), shape=(3,))
    value = TensorDict({"observation": torch.zeros(3, 2, 4)}, [3])
    for change in (FlattenObservation(-2, -1), UnsqueezeTransform(-1), UnsqueezeTransform(-3)):
        described = change.transform_observation_spec(spec)["observation"]
        assert described.shape == change(value)["observation"].shape
        assert described.space.high.max() == 7
    narrow = SqueezeTransform(-1).transform_observation_spec(
        UnsqueezeTransform(-1).transform_observation_spec(spec)
    )
    assert narrow["observation"] == spec["observation"]


def test_action_spec_has_the_dimension_that_the_inverse_removes():
    inner = Composite(action=Bounded(-1, 1, (3, 4)), shape=(3,))
    change = UnsqueezeTransform(-1, in_keys_inv=["action"])
    outer = change.transform_action_spec(inner)
    action = TensorDict({"action": outer["action"].rand()}, [3])
    assert outer["action"].shape == (3, 4, 1)
    assert inner["action"].is_in(change.inv(action)["action"])


def test_dimensions_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match=r"counted from the end.*got 0"):
        UnsqueezeTransform(0)
    with pytest.raises(ValueError, match="first_dim <= last_dim: got -1 and -2"):
        FlattenObservation(-1, -2)
    batch = TensorDict({"observation": leaf(3, 4)}, [3])
    with pytest.raises(ValueError, match=r"'observation': there is no dimension -3.*\[3, 4\]"):
        FlattenObservation(-3, -1)(batch)
    with pytest.raises(ValueError, match=r"'observation': dimension -1.*\[3, 4\] must have size 1"):
        SqueezeTransform(-1)(batch)


def test_dimensions_are_permuted_and_put_back():
    permute = PermuteTransform((-1, -3, -2), ["image"], in_keys_inv=["image"])
    image = torch.randn(2, 7, 4, 5, 3)
    batch = TensorDict({"image": image}, [2, 7])
    seen = permute(batch)["image"]
    assert torch.equal(seen, image.movedim(-1, -3))
    assert torch.equal(permute.inv(permute(batch))["image"], image)
    spec = Bounded(torch.zeros(4, 5, 3), torch.arange(60.0).reshape(4, 5, 3))
    found = permute.leaf_spec(spec)
    assert torch.equal(found.high, spec.high.movedim(-1, -3))
    assert permute.inverse_leaf_spec(spec).shape == (3, 4, 5)


def test_what_is_no_order_of_the_last_dimensions_is_refused():
    for dims in ((-1, -3), (0, 1), (-1, -1)):
        with pytest.raises(ValueError, match="in another order, got"):
            PermuteTransform(dims)
    with pytest.raises(ValueError, match=r"no dimension -3 in a leaf of shape \[4\]"):
        PermuteTransform((-1, -3, -2))(TensorDict({"observation": torch.zeros(4)}, []))
