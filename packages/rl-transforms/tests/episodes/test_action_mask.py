from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_specs import (
    Binary,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    Unbounded,
)
from rl_transforms import ActionMask

ACTIONS = {
    "numbers": Categorical(5, (3,)),
    "one-hot": OneHot(5, (3, 5)),
    "several numbers": MultiCategorical([2, 3], (3, 2)),
    "several one-hot": MultiOneHot([2, 3], (3, 5)),
}
MASK = torch.tensor(
    [
        [True, False, False, True, False],
        [False, True, True, True, False],
        [True, True, False, False, True],
    ]
)


def masked(leaf, mask=MASK, key="action", mask_key="action_mask"):
    """The transform as an environment sets it up, and the specs of the action."""
    transform = ActionMask(key, mask_key)
    shown = Composite(shape=(3,))
    shown.set(mask_key, Binary(shape=mask.shape, dtype=mask.dtype))
    spec = Composite(shape=(3,))
    spec.set(key, leaf)
    assert transform.transform_observation_spec(shown) is shown
    assert transform.transform_action_spec(spec) is spec
    return transform, spec


@pytest.mark.parametrize("name", ACTIONS)
def test_random_actions_are_allowed_and_reach_every_allowed_one(name):
    leaf = ACTIONS[name]
    transform, spec = masked(leaf)
    root = TensorDict({"action_mask": MASK}, [3])
    chosen = torch.zeros_like(MASK)
    for _ in range(60):
        action = transform.rand(root, spec)
        assert leaf.is_in(action)
        hot = action if "one-hot" in name else leaf.to_one_hot(action)
        chosen |= hot
        assert transform.inv(root.copy().set("action", action)) is not None
    assert torch.equal(chosen, MASK)


def test_rand_does_not_change_the_spec():
    transform, spec = masked(ACTIONS["numbers"])
    transform.rand(TensorDict({"action_mask": MASK}, [3]), spec)
    assert spec["action"].mask is None


def test_rand_draws_for_several_roots():
    transform, spec = masked(ACTIONS["numbers"])
    root = TensorDict({"action_mask": torch.stack([MASK, ~MASK])}, [2, 3])
    action = transform.rand(root, spec)
    assert action.shape == (2, 3)
    assert root["action_mask"].gather(-1, action.unsqueeze(-1)).all()


@pytest.mark.parametrize("name", ACTIONS)
def test_forbidden_action_is_refused_with_its_rows(name):
    transform, _ = masked(ACTIONS[name])
    action = torch.tensor([0, 0, 0])
    if name == "one-hot":
        action = torch.nn.functional.one_hot(action, 5).bool()
    elif name == "several numbers":
        action = torch.tensor([[0, 1], [1, 2], [0, 2]])  # 2 + 2 is forbidden in row 1 alone
    elif name == "several one-hot":
        action = torch.tensor([[1, 0, 0, 1, 0], [1, 0, 0, 1, 0], [1, 0, 0, 0, 1]]).bool()
    root = TensorDict({"action_mask": MASK, "action": action}, [3])
    with pytest.raises(ValueError, match=r"forbids the action in rows \[\(1,\)\]"):
        transform.inv(root)


def test_numeric_masks_and_nested_keys_are_accepted():
    key, mask_key = ("agents", "action"), ("agents", "mask")
    transform, spec = masked(ACTIONS["numbers"], MASK.to(torch.int8), key, mask_key)
    root = TensorDict({"agents": {"mask": MASK.to(torch.int8)}}, [3])
    assert MASK.gather(-1, transform.rand(root, spec).unsqueeze(-1)).all()


def test_row_without_allowed_action_is_refused_unless_done():
    transform, spec = masked(ACTIONS["numbers"])
    nothing = MASK.clone()
    nothing[2] = False
    over = torch.tensor([[False], [False], [True]])
    after = TensorDict({"action_mask": nothing, "done": over}, [3])
    assert transform.step(after, after) is after
    with pytest.raises(ValueError, match=r"no choice at all in rows \[\(2,\)\]"):
        transform.step(after, after.copy().set("done", ~over))
    with pytest.raises(ValueError, match="no choice at all"):
        transform.reset(TensorDict({"action_mask": nothing}, [3]))
    with pytest.raises(ValueError, match="no choice at all"):
        transform.rand(after, spec)


def test_choice_without_allowed_value_is_refused():
    transform, _ = masked(ACTIONS["several one-hot"])
    nothing = MASK.clone()
    nothing[0, :2] = False
    with pytest.raises(ValueError, match=r"no choice at all in rows \[\(0,\)\]"):
        transform.reset(TensorDict({"action_mask": nothing}, [3]))


def test_unmaskable_actions_are_refused():
    transform = ActionMask()
    with pytest.raises(KeyError, match=r"there is no observation 'action_mask'.*'seen'"):
        transform.transform_observation_spec(Composite(seen=Unbounded((3,))))
    with pytest.raises(KeyError, match="no action 'action'"):
        transform.transform_action_spec(Composite(move=Categorical(3)))
    with pytest.raises(ValueError, match=r"one of some choices.*got Unbounded"):
        transform.transform_action_spec(Composite(action=Unbounded((3,))))
    with pytest.raises(ValueError, match=r"one-hot form, \[3, 4\]: got \[3, 5\]"):
        masked(Categorical(4, (3,)))
    with pytest.raises(
        ValueError,
        match=r"cannot sit in a worker: put it around all of them, TransformedEnv\(SerialEnv",
    ):
        transform.check_place("worker")
    with pytest.raises(KeyError, match="'action' is missing"):
        transform.inv(TensorDict({"action_mask": MASK}, [3]))


def test_unbatched_environment_is_masked():
    transform = ActionMask()
    transform.transform_action_spec(Composite(action=Categorical(3)))
    root = TensorDict({"action_mask": MASK[0, :3], "done": torch.tensor([False])}, [])
    assert transform.reset(root) is root
    assert transform.inv(root.copy().set("action", torch.tensor(0))) is not None
    with pytest.raises(ValueError, match="forbids the action: let the policy"):
        transform.inv(root.copy().set("action", torch.tensor(1)))
