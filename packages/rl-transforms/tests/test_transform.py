from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import EndKind, environments, trajectories
from rl_specs import Bounded, Composite, Unbounded
from rl_transforms import Transform
from rl_transforms.transform import with_specs, without_specs


class Double(Transform):
    def apply_leaf(self, value):
        return value * 2

    def invert_leaf(self, value):
        return value / 2


class Flatten(Transform):
    def apply_leaf(self, value):
        return value.flatten(1)

    def leaf_spec(self, spec):
        return spec.flatten(1)


def test_leaf_is_transformed_at_the_root_and_under_next():
    batch = environments(3, 5, [4], [EndKind.TERMINATED])
    doubled = Double(["observation"], [("agents", "view")])(batch)
    assert torch.equal(doubled["agents", "view"], batch["observation"] * 2)
    assert torch.equal(doubled["next", "agents", "view"], batch["next", "observation"] * 2)
    assert doubled["action"] is batch["action"]
    assert "agents" not in batch
    assert doubled.names == batch.names


def test_key_under_next_transforms_that_leaf_only():
    batch = trajectories([5])
    doubled = Double([("next", "reward")])(batch)
    assert torch.equal(doubled["next", "reward"], batch["next", "reward"] * 2)


@pytest.mark.parametrize("call", ["forward", "inv", "step"])
def test_missing_key_is_named(call):
    batch, double = trajectories([5]), Double(["pixels"], None, ["pixels"])
    arguments = (batch, batch["next"]) if call == "step" else (batch,)
    with pytest.raises(KeyError, match="Double: 'pixels' is missing: there are observation"):
        getattr(double, call)(*arguments)


def test_reset_skips_keys_that_only_steps_return():
    root = TensorDict({"observation": torch.ones(3, 7)}, [3])
    assert "reward" not in Double(["reward"]).reset(root)


def test_step_skips_keys_that_only_the_root_has():
    step = trajectories([5])
    assert Double(["action"]).step(step, step["next"]) is step["next"]


def test_partial_reset_keeps_the_carried_rows():
    mask = torch.tensor([True, False, True])
    root = TensorDict({"observation": torch.tensor([[1.0], [20.0], [3.0]])}, [3])
    kept = Double(["observation"]).reset(root, mask)["observation"]
    assert kept.flatten().tolist() == [2, 20, 6]
    root["view"] = torch.tensor([[0.0], [9.0], [0.0]])
    kept = Double(["observation"], ["view"]).reset(root, mask)["view"]
    assert kept.flatten().tolist() == [2, 9, 6]


def test_raw_leaf_is_transformed_in_every_row_at_a_partial_reset():
    mask = torch.tensor([True, False, True])
    root = TensorDict({"pixels": torch.ones(3, 5, 7)}, [3])
    assert Flatten(["pixels"]).reset(root, mask)["pixels"].shape == (3, 35)


def test_inverse_reads_outer_names_and_writes_inner_ones():
    data = TensorDict({"action": torch.full((3, 2), 8.0)}, [3])
    inner = Double(None, None, ["force"], ["action"]).inv(data)
    assert inner["force"].unique().item() == 4
    assert data["action"].unique().item() == 8


def test_transform_without_keys_changes_nothing():
    batch = trajectories([5])
    plain = Transform()
    assert plain(batch) is batch
    assert plain.inv(batch) is batch
    assert plain.rows(batch) is batch
    assert plain.reset(batch) is batch


def test_specs_change_with_the_leaves_and_the_input_stays():
    spec = Composite(pixels=Unbounded((3, 5, 7)), vector=Unbounded((3, 7)), shape=(3,)).lock_()
    out = Flatten(["pixels"], ["flat"]).transform_observation_spec(spec)
    assert out["flat"].shape == (3, 35)
    assert "flat" not in spec
    assert Flatten(["other"]).transform_reward_spec(spec) is spec
    action = Composite(force=Bounded(-1, 1, (3, 2)), shape=(3,))
    described = Double(None, None, ["force"], ["action"]).transform_action_spec(action)
    assert described["action"] == action["force"]


def test_error_of_the_leaf_names_the_key():
    class Fussy(Transform):
        def apply_leaf(self, value):
            raise ValueError("too wide")

    with pytest.raises(ValueError, match="Fussy, 'observation': too wide"):
        Fussy(["observation"])(trajectories([2]))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("observation",), TypeError, r"Write \['observation'\]"),
        ((("a", "b"),), TypeError, "list of keys"),
        (([1],), TypeError, "a key must be"),
        ((["a"], ["b", "c"]), ValueError, "one out key per in key"),
        ((None, None, ["a"], ["b", "c"]), ValueError, "in_keys_inv"),
    ],
)
def test_keys_that_do_not_pair_up_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        Transform(*arguments)


def test_place_is_refused_with_the_allowed_places():
    class Stored(Transform):
        places = frozenset({"buffer"})

    Stored().check_place("buffer")
    with pytest.raises(ValueError, match=r"Stored cannot sit in a worker: .*buffer"):
        Stored().check_place("worker")


def test_repr_shows_the_keys():
    assert repr(Double(["a"], ["b"])) == "Double(in_keys=['a'], out_keys=['b'])"


def test_spec_copies_drop_emptied_groups():
    spec = Composite(agents={"a": Unbounded((3,))}, b=Unbounded((3,)), shape=(3,))
    assert list(without_specs(spec, [("agents", "a")]).keys()) == ["b"]
    assert ("agents", "a") in spec
    assert with_specs(spec, {}) is spec
