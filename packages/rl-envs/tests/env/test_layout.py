import copy
import pickle

import pytest
import torch
from tensordict import TensorDict

from rl_envs import EnvBase, GymEnv, SerialEnv
from rl_envs.testing import CountingEnv, GroupsEnv, MultiAgentEnv
from rl_specs import Composite, Unbounded


def test_fit_columns_adds_the_last_dimension_of_flags_and_rewards():
    after = TensorDict({"done": torch.tensor(True), "reward": torch.tensor(1.0)}, [])
    CountingEnv().layout.fit_columns(after, torch.Size())
    assert after["done"].shape == after["reward"].shape == (1,)
    with pytest.raises(TypeError, match=r"'done': expected dtype torch\.bool, got torch\.int64"):
        CountingEnv().layout.fit_columns(
            TensorDict({"done": torch.ones(1).long()}, []), torch.Size()
        )


def test_leaves_are_listed_by_their_part_in_a_step():
    layout = MultiAgentEnv(3).layout
    assert [key for key, _ in layout.action] == [("agents", "action")]
    assert [key for key, _ in layout.after][:2] == [("agents", "observation"), ("agents", "reward")]
    assert [key for key, _ in layout.inputs] == [("agents", "action"), ("agents", "observation")]
    assert len(layout.shown) == 7  # an observation, three flags of the agents and three of all
    assert layout.groups == [(), ("agents",)]
    assert layout.group_sizes == {("agents",): torch.Size([3])}
    assert GroupsEnv().layout.groups == [("first",), ("second",)]


def test_sizes_before_the_own_ones_lead():
    layout = CountingEnv(batch_size=(3,)).layout
    assert layout.lead_of(TensorDict(batch_size=[5, 3])) == (5,)
    assert layout.lead_of(TensorDict(batch_size=[3])) == ()
    assert layout.has_sizes(TensorDict(batch_size=[3]))
    assert not layout.has_sizes(TensorDict(batch_size=[5]))
    assert not layout.has_sizes({})


def test_a_layout_follows_its_specs():
    env = CountingEnv()
    assert env.layout is env.layout
    env.observation_spec = Composite(other=Unbounded((3,)))
    assert env.layout.after[0][0] == ("other",)


def test_a_copy_of_an_environment_steps_by_itself():
    env = GymEnv("CartPole-v1")
    root = env.reset()
    root["action"] = torch.tensor([True, False])
    env.step(root)
    other = copy.deepcopy(env)
    second = env.step(root)
    assert (other.step(root) == second).all()
    assert not (env.step(root)["next"] == second["next"]).all()


def test_an_environment_can_be_pickled_after_a_step():
    env = CountingEnv()
    root = env.rand_step(env.reset())
    other = pickle.loads(pickle.dumps(env))
    assert (other.step(root)["next"] == env.step(root)["next"]).all()


class ByRows(GymEnv):
    """CartPole with a binding of its own, whose steps through a tensordict are broken."""

    def bind(self, root, after):
        return super().bind(root, after)

    def _step(self, tensordict):
        raise AssertionError

    def _reset(self, tensordict, **kwargs):
        assert kwargs, "a plain reset goes through rows"
        return super()._reset(tensordict, **kwargs)


def test_steps_and_resets_by_hand_go_through_rows():
    for env in (ByRows("CartPole-v1"), SerialEnv(2, lambda: ByRows("CartPole-v1"))):
        step = env.rand_step(env.reset())
        assert env.maybe_reset(env.next_root(step))["observation"].shape[-1] == 4
    assert ByRows("CartPole-v1").reset(seed=3)["observation"].shape == (4,)


def test_steps_by_hand_share_no_memory():
    env = GymEnv("CartPole-v1")
    root = env.rand_action(env.reset())
    first = env.step(root)
    kept = first.clone()
    second = env.step(root)
    assert (first == kept).all()
    assert not torch.equal(first["next", "observation"], second["next", "observation"])


def test_values_of_steps_through_rows_are_checked():
    env = GymEnv("CartPole-v1")
    env.reset()
    env.observation_spec = Unbounded((4,))
    env.env.unwrapped.state = (float("nan"),) * 4
    with pytest.raises(ValueError, match="'observation' holds NaN"):
        env.rand_step()
    env.check_values = False
    env.reset()
    env.env.unwrapped.state = (float("nan"),) * 4
    assert env.rand_step()["next", "observation"].isnan().all()


def test_a_missing_spec_is_named_by_the_layout():
    with pytest.raises(AttributeError, match="has no observation_spec"):
        assert EnvBase().layout
