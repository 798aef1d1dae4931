import inspect

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from rl_envs import EnvBase, GymEnv
from rl_envs.testing import CountingEnv, EpisodeStepEnv, GroupsEnv, MultiAgentEnv, NestedEnv
from rl_specs import Bounded, OneHot


class ThreeMethods(EnvBase):
    """The least that an environment is; `after` is what its steps return."""

    def __init__(self, **after):
        super().__init__()
        self.observation_spec = Bounded(-1, 1, (3,))
        self.action_spec = OneHot(2)
        self.after = {"observation": torch.zeros(3), "reward": 1.0, "done": False, **after}

    def _reset(self, tensordict):
        return TensorDict({"observation": torch.zeros(3)})

    def _step(self, tensordict):
        return TensorDict(self.after)

    def _set_seed(self, seed):
        """Nothing is random."""


class Saving(ThreeMethods):
    """Saves, and cannot load."""

    def _get_state(self):
        return {}


def test_three_methods_are_enough():
    env = ThreeMethods()
    batch = env.rollout(4)
    assert batch.shape == (4,)
    assert batch.names == ["time"]
    assert batch["next", "reward"].shape == (4, 1)  # a reward without a last dimension gets one
    assert batch["next", "truncated"].shape == (4, 1)  # and flags that follow are written


@pytest.mark.parametrize(
    ("after", "error", "words"),
    [
        ({"observation": torch.full((3,), 2.0)}, ValueError, "'observation' is outside its spec"),
        ({"observation": torch.full((3,), torch.nan)}, ValueError, "'observation' holds NaN"),
        ({"observation": torch.zeros(5)}, ValueError, r"expected shape \(3,\), got \(5,\)"),
        ({"observation": torch.zeros(3).double()}, TypeError, "'observation'.*float32.*float64"),
        ({"reward": torch.tensor([torch.nan])}, ValueError, "'reward' holds NaN"),
        ({"done": torch.tensor([0.0])}, TypeError, "'done': expected dtype torch.bool"),
    ],
)
def test_returned_values_of_an_environment_are_checked(after, error, words):
    env = ThreeMethods(**after)
    with pytest.raises(error, match=words):
        env.rollout(1)


def test_a_missing_entry_is_named():
    env = ThreeMethods()
    del env.after["reward"]
    with pytest.raises(KeyError, match="'reward' is missing"):
        env.rollout(1)


def test_values_need_not_be_checked():
    env = ThreeMethods(observation=torch.full((3,), 2.0))
    env.check_values = False
    assert env.rollout(1)["next", "observation"].max() == 2


@pytest.mark.parametrize(
    ("action", "error", "words"),
    [
        (torch.zeros(5, dtype=torch.bool), ValueError, r"action 'action': expected shape \(2,\)"),
        (torch.ones(2) / 2, TypeError, r"expected dtype torch.bool, got torch.float32 .*spec="),
        (None, KeyError, "'action' is missing"),
    ],
)
def test_a_wrong_action_is_refused_by_name(action, error, words):
    env = CountingEnv()
    root = env.reset()
    if action is not None:
        root["action"] = action
    with pytest.raises(error, match=words):
        env.step(root)


def test_a_nested_action_is_named_whole():
    env = NestedEnv()
    with pytest.raises(KeyError, match=r"\('data', 'action'\)"):
        env.step(env.reset())


def test_a_step_before_a_reset_is_refused():
    env = CountingEnv()
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.rand_step(TensorDict())


def test_a_closed_environment_is_refused():
    with CountingEnv() as env:
        root = env.reset()
    for call in (env.reset, lambda: env.rand_step(root), lambda: env.rollout(2)):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    env.close()  # a second time does nothing


def test_reset_twice_starts_afresh_twice():
    env = EpisodeStepEnv([(4, "terminated")])
    assert [env.reset()["observation"].tolist() for _ in range(2)] == [[0, 0], [1, 0]]


def test_another_batch_size_is_refused():
    env = CountingEnv(batch_size=(3,))
    with pytest.raises(ValueError, match=r"expected batch size \(3,\).*got \(2,\)"):
        env.reset(TensorDict(batch_size=[2]))
    with pytest.raises(TypeError, match="expected a tensordict"):
        env.reset({"_reset": True})


def test_the_callers_tensordicts_never_change():
    env = MultiAgentEnv(2, batch_size=(3,))
    root = env.rand_action(env.reset())
    root["_reset"] = torch.tensor([[True], [False], [False]])
    before = root.clone()
    env.step(root)
    env.reset(root)
    env.rollout(2, lambda td: td.update(env.full_action_spec.rand()), tensordict=root)
    assert (root == before).all()
    assert set(root.keys(True)) == set(before.keys(True))


def test_a_partial_reset_leaves_other_rows_alone():
    env = EpisodeStepEnv([(9, "terminated")], batch_size=(3,))
    root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
    root["_reset"] = torch.tensor([[False], [True], [False]])
    root["mine"] = torch.arange(3)
    fresh = env.reset(root)
    assert fresh["observation"].tolist() == [[0, 1], [4, 0], [2, 1]]
    assert fresh["mine"].tolist() == [0, 1, 2]
    assert "_reset" not in fresh


def test_a_mask_without_true_resets_nothing():
    env = EpisodeStepEnv(batch_size=(2,))
    root = env.reset()
    root["_reset"] = torch.zeros(2, 1, dtype=torch.bool)
    assert env.reset(root)["observation"].tolist() == root["observation"].tolist()


def test_step_and_maybe_reset_keeps_the_final_observation():
    env = EpisodeStepEnv([(1, "terminated"), (2, "truncated")], batch_size=(2,))
    step, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert step["next", "observation"].tolist() == [[0, 1], [1, 1]]
    assert root["observation"].tolist() == [[2, 0], [1, 1]]
    assert not root["done"].any()


def test_groups_without_a_root_flag_reset_by_themselves():
    env = GroupsEnv({"first": 1, "second": 2})
    step, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert step["next", "first", "done"].item()
    assert root["first", "observation"].item() == 0
    assert root["second", "observation"].item() == 1


def test_an_agent_that_is_done_resets_nobody():
    env = MultiAgentEnv(3, [(4, "terminated")])
    step, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert step["next", "agents", "done"].flatten().tolist() == [True, False, False]
    assert root["agents", "observation"][:, 0].tolist() == [1, 1, 1]


def test_entries_that_a_policy_wrote_under_next_stay():
    env = CountingEnv()
    root = env.rand_action(env.reset())
    root["next", "hidden"] = torch.ones(7)
    assert env.step(root)["next", "hidden"].sum() == 7


def test_the_result_of_an_earlier_step_does_not_stay():
    env = CountingEnv()
    step = env.rand_step(env.reset())
    step["next", "extra"] = torch.ones(7)
    assert "extra" not in env.step(step)["next"]


def test_a_done_flag_after_a_reset_is_refused():
    class Done(ThreeMethods):
        def _reset(self, tensordict):
            return super()._reset(tensordict).set("done", torch.tensor([True]))

    with pytest.raises(RuntimeError, match="set right after a reset"):
        Done().reset()


def test_seeds_follow_each_other_far_apart():
    env = CountingEnv()
    assert env.set_seed(3) != env.set_seed(4)
    assert env.set_seed(3, static_seed=True) == 3
    with pytest.raises(ValueError, match="seed: expected at least 0, got -1"):
        env.set_seed(-1)


def test_a_fake_tensordict_looks_like_a_step():
    for env in (CountingEnv(), NestedEnv(batch_size=(2,)), MultiAgentEnv(3), GroupsEnv()):
        real, fake = env.rand_step(env.reset()), env.fake_tensordict()
        assert set(fake.keys(True, True)) == set(real.keys(True, True))
        assert all(fake[key].shape == real[key].shape for key in fake.keys(True, True))


def test_a_saved_state_goes_on_as_the_original():
    env, other = EpisodeStepEnv(batch_size=(2,)), EpisodeStepEnv(batch_size=(2,))
    root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
    other.load_state_dict(env.state_dict())
    batches = [one.rollout(5, auto_reset=False, tensordict=root) for one in (env, other)]
    assert (batches[0]["next"] == batches[1]["next"]).all()


def test_environment_without_saved_state_names_the_missing_hook():
    with pytest.raises(NotImplementedError, match=r"ThreeMethods cannot save.*_get_state"):
        ThreeMethods().state_dict()
    for env in (ThreeMethods(), Saving()):
        with pytest.raises(NotImplementedError, match=r"cannot save and load.*_set_state"):
            env.load_state_dict({"state": {}, "is_started": True})


def test_an_unlocked_environment_steps_any_batch():
    class Stateless(EnvBase):
        batch_locked = False

        def __init__(self):
            super().__init__()
            self.observation_spec = Bounded(-100, 100, (1,))
            self.action_spec = Bounded(-1, 1, (1,))

        def _step(self, tensordict: TensorDictBase):
            seen = tensordict["observation"] + tensordict["action"]
            done = torch.zeros_like(seen, dtype=torch.bool)
            return TensorDict({"observation": seen, "reward": seen, "done": done}, seen.shape[:-1])

    env = Stateless()
    root = TensorDict({"observation": torch.zeros(5, 1), "action": torch.ones(5, 1)}, [5])
    assert env.step(root)["next", "observation"].sum() == 5
    assert env.rand_action(root)["action"].shape == (5, 1)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (GymEnv, ["env", "categorical_action_encoding", "info_keys", "policy", "kwargs"]),
        (CountingEnv, ["max_steps", "batch_size", "policy"]),
    ],
)
def test_the_signature_of_an_environment_shows_its_arguments(kind, names):
    shown = list(inspect.signature(kind).parameters)
    assert [name for name in shown if name in names] == names
    assert "args" not in shown
