import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_envs import GymEnv, Pendulums, RandomPolicy, SerialEnv, TransformedEnv
from rl_envs.rollouts import RolloutRequest
from rl_envs.rollouts.tensordict_steps import truncate
from rl_envs.testing import CountingEnv, EpisodeStepEnv, GroupsEnv, MultiAgentEnv
from rl_transforms import StepCounter

ENDINGS = [(2, "terminated"), (3, "truncated")]


def test_a_rollout_stops_at_the_first_done_row():
    env = EpisodeStepEnv(ENDINGS, batch_size=(2,))
    assert env.rollout(9).shape == (2, 2)


def test_a_rollout_goes_on_through_resets():
    batch = EpisodeStepEnv(ENDINGS).rollout(7, break_when_any_done=False)
    episodes_and_steps = [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1]]
    assert batch["observation"].tolist() == episodes_and_steps
    assert batch["next", "observation"][:, 1].tolist() == [1, 2, 1, 2, 3, 1, 2]
    assert batch["next", "terminated"].flatten().nonzero().flatten().tolist() == [1, 6]
    assert batch["next", "truncated"].flatten().nonzero().flatten().tolist() == [4]
    assert not batch["done"].any()


def test_a_rollout_can_wait_until_all_are_done():
    env = EpisodeStepEnv(ENDINGS, batch_size=(2,))
    batch = env.rollout(9, break_when_any_done=False, break_when_all_done=True)
    assert batch.shape == (2, 3)


def test_groups_break_a_rollout_too():
    assert GroupsEnv({"first": 2, "second": 5}).rollout(9).shape == (2,)


def test_a_callback_sees_every_step():
    seen = []
    CountingEnv().rollout(3, callback=lambda env, step: seen.append(step["observation"].item()))
    assert seen == [0, 1, 2]


def test_set_truncated_marks_the_last_step_only():
    batch = CountingEnv(9).rollout(3, set_truncated=True)
    assert batch["next", "truncated"].flatten().tolist() == [False, False, True]
    assert batch["next", "done"].flatten().tolist() == [False, False, True]


def test_a_terminated_step_is_not_truncated():
    step = CountingEnv(1).rollout(1)
    assert not truncate(step, [()])["next", "truncated"].any()
    agents = truncate(MultiAgentEnv(3).rollout(1), [(), ("agents",)])
    assert agents["next", "agents", "truncated"].flatten().tolist() == [False, True, True]


def test_a_rollout_goes_on_from_a_root():
    env = EpisodeStepEnv([(9, "terminated")])
    root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
    batch = env.rollout(2, auto_reset=False, tensordict=root)
    assert batch["observation"].tolist() == [[0, 1], [0, 2]]


def test_rollout_without_reset_needs_a_root():
    with pytest.raises(RuntimeError, match=r"pass tensordict=env\.reset\(\)"):
        CountingEnv().rollout(3, auto_reset=False)


def test_requests_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="max_steps: expected at least 1, got 0"):
        CountingEnv().rollout(0)
    with pytest.raises(ValueError, match="break_when_any_done=False"):
        RolloutRequest(3, break_when_any_done=True, break_when_all_done=True)


def test_a_rollout_has_no_gradients():
    weight = torch.ones(1, requires_grad=True)
    env = CountingEnv()

    def policy(root):
        root["score"] = root["observation"] * weight
        return env.rand_action(root)

    assert not env.rollout(3, policy)["score"].requires_grad


def test_a_policy_may_return_nothing():
    env = CountingEnv()

    def act(root):
        root.update(env.rand_action())

    assert env.rollout(3, act).shape == (3,)


def test_a_root_that_names_a_device_is_welcome():
    env = CountingEnv()
    root = env.reset().to("cpu")
    policy = RandomPolicy(env.action_spec)
    assert env.rollout(3, policy, auto_reset=False, tensordict=root).shape == (3,)
    assert root.device == torch.device("cpu")
    assert "action" not in root  # what the policy wrote went to a copy


@pytest.mark.parametrize("make", [CountingEnv, lambda: GymEnv("CartPole-v1")])
def test_a_policy_may_return_nothing_but_the_action(make):
    batch = make().rollout(4, lambda root: TensorDict({"action": torch.tensor([True, False])}))
    assert torch.equal(batch["observation"][1:], batch["next", "observation"][:-1])


@pytest.mark.parametrize("make", [CountingEnv, lambda: GymEnv("CartPole-v1")])
def test_a_rollout_can_be_written_into_memory_that_is_there(make):
    env = make()
    env.set_seed(3)
    out = torch.zeros_like(env.rollout(9, break_when_any_done=False))
    place = out["next", "observation"].data_ptr()
    batch = env.rollout(4, out=out, break_when_any_done=False)
    assert batch.shape == (4,)
    assert batch.names == ["time"]
    assert batch["next", "observation"].data_ptr() == place
    assert (out["next", "reward"].flatten() != 0).tolist() == [True] * 4 + [False] * 5


def test_memory_that_does_not_fit_is_refused():
    env = CountingEnv()
    batch = env.rollout(3)
    with pytest.raises(ValueError, match=r"batch size \(3,\), or more steps: got \(2,\)"):
        env.rollout(3, out=batch[:2].clone())
    with pytest.raises(KeyError, match=r"differ in \['done', 'extra'\]"):
        env.rollout(3, out=batch.exclude("done").set("extra", torch.ones(3)))
    with pytest.raises(TypeError, match=r"'action': expected torch\.bool, got torch\.int64"):
        env.rollout(3, out=batch.clone().set("action", batch["action"].long()))
    with pytest.raises(ValueError, match=r"'action': expected shape \(3, 2\), got \(3, 5\)"):
        env.rollout(3, out=batch.clone().set("action", torch.ones(3, 5, dtype=torch.bool)))


def test_a_policy_acts_on_its_own_device():
    class Elsewhere(nn.Module):
        """Has its weights on the device "meta", which every machine has."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, device="meta"))

        def forward(self, root):
            found.append(root["observation"].device.type)
            return TensorDict({"action": torch.eye(2)[0].bool()})  # meta holds nothing to act by

    found = []
    batch = CountingEnv().rollout(2, Elsewhere(), auto_cast_to_device=True)
    assert found == ["meta", "meta"]
    assert batch["action"].device.type == "cpu"
    assert batch["observation"].flatten().tolist() == [0, 1]


def over(env, num_steps=9):
    """The root after a rollout, as `step_mdp` makes it: its done flags are set."""
    return env.next_root(env.rollout(num_steps)[..., -1])


EPISODES_OF_TWO = {
    "through tensordicts": lambda: EpisodeStepEnv([(2, "terminated")], (3,)),
    "in place": lambda: TransformedEnv(GymEnv("CartPole-v1"), StepCounter(2)),
    "in place, batched": lambda: SerialEnv(
        2, lambda: TransformedEnv(GymEnv("CartPole-v1"), StepCounter(2))
    ),
    "on tensors": lambda: Pendulums(3, max_steps=2),
    "in groups": lambda: GroupsEnv({"first": 2, "second": 5}),
}


@pytest.mark.parametrize("through", [True, False])
@pytest.mark.parametrize("make", EPISODES_OF_TWO.values(), ids=EPISODES_OF_TWO)
def test_rows_of_a_root_that_are_done_are_reset_before_a_rollout(make, through):
    env = make()
    root = over(env, 2)
    kept = root.clone()
    batch = env.rollout(3, auto_reset=False, tensordict=root, break_when_any_done=not through)
    group = () if () in env.done_groups else ("first",)
    first, after = (batch[(*part, *group, "done")][..., :2, 0] for part in ((), ("next",)))
    assert not first.any()  # no step starts from a row that is over
    assert after.reshape(-1, 2).tolist() == [[False, True]] * (after.numel() // 2)
    assert (root == kept).all()


def test_rows_of_a_root_that_go_on_are_not_reset():
    env = EpisodeStepEnv([(9, "terminated")], (2,))
    root = over(env, 1)
    root["done"] = root["terminated"] = torch.tensor([[True], [False]])
    batch = env.rollout(2, auto_reset=False, tensordict=root)
    assert batch["observation"].tolist() == [[[2, 0], [2, 1]], [[1, 1], [1, 2]]]


def test_a_root_without_done_flags_goes_on():
    env = EpisodeStepEnv([(9, "terminated")])
    root = over(env, 1).select("observation")
    assert env.rollout(2, auto_reset=False, tensordict=root)["observation"].tolist() == [
        [0, 1],
        [0, 2],
    ]


def test_a_single_row_that_is_done_is_stepped_by_step_alone():
    env = EpisodeStepEnv([(2, "terminated")])
    assert env.step(env.rand_action(over(env)))["next", "observation"].tolist() == [0, 3]


def test_an_entry_that_resets_lack_is_warned_of_as_it_makes_a_lazy_stack():
    class Tells(EpisodeStepEnv):
        def _step(self, tensordict):
            return super()._step(tensordict).set("told", torch.ones(1))

    with pytest.warns(UserWarning, match=r"\['told'\] are in some steps only.*Give each a spec"):
        Tells([(9, "terminated")]).rollout(3)
