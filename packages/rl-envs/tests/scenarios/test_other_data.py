"""Observations that are no plain tensors: objects, and agents whose entries differ in shape."""

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from rl_envs import EnvBase, ParallelEnv, RandomPolicy, SerialEnv, TransformedEnv, check_env_specs
from rl_specs import Composite, NonTensor, OneHot, Unbounded, stack_specs
from rl_transforms import InitTracker, RewardScaling, RewardSum, StepCounter

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Counted(EnvBase):
    """Terminates after `length` steps; subclasses say what it shows."""

    def __init__(self, length=3):
        super().__init__()
        self.length, self.count = length, 0
        self.describe()

    def _reset(self, tensordict):
        self.count = 0
        return self.show()

    def _step(self, tensordict):
        self.count += 1
        return self.rewarded(
            self.show().set("terminated", torch.tensor([self.count == self.length]))
        )

    def rewarded(self, after):
        return after.set("reward", torch.ones(1))

    def _set_seed(self, seed):
        """Nothing is random."""


class Words(Counted):
    """Shows its count as a text."""

    def describe(self):
        text = NonTensor((), example_data="nothing yet")
        self.observation_spec = Composite(text=text, observation=Unbounded((1,)))
        self.action_spec = OneHot(2)

    def show(self):
        seen = TensorDict({"observation": torch.full((1,), float(self.count))}, [])
        return seen.set_non_tensor("text", f"step {self.count}")


class Examples(Words):
    """Shows what its own spec makes: data on the device of the spec."""

    def show(self):
        return self.observation_spec.zero()


class Agents(Counted):
    """Two agents that see 2 and 3 numbers and choose among 2 and 4 actions."""

    def describe(self):
        sizes = ((2, 2), (3, 4))
        self.observation_spec = Composite(
            agents=stack_specs([Composite(observation=Unbounded((n,))) for n, _ in sizes], 0)
        )
        self.action_spec = Composite(
            agents=stack_specs([Composite(action=OneHot(n)) for _, n in sizes], 0)
        )
        reward = Unbounded((2, 1))
        self.reward_spec = Composite(agents=Composite(reward=reward, shape=(2,)))

    def show(self):
        seen = self.observation_spec.zero()
        for agent in seen["agents"].unbind(0):
            agent["observation"] += self.count
        return seen

    def rewarded(self, after):
        return after.set(("agents", "reward"), torch.ones(2, 1))


def alone(make):
    return make()


def serial(make):
    return SerialEnv(2, make)


def parallel(make):
    return ParallelEnv(2, make, mp_start_method="fork")


def transformed(make):
    return TransformedEnv(make(), InitTracker(), StepCounter())


def transformed_serial(make):
    return TransformedEnv(SerialEnv(2, make), InitTracker(), StepCounter())


def transformed_parallel(make):
    return TransformedEnv(ParallelEnv(2, make, mp_start_method="fork"), InitTracker())


def serial_transformed(make):
    return SerialEnv(2, lambda: TransformedEnv(make(), StepCounter()))


AROUND = [
    alone,
    serial,
    parallel,
    transformed,
    transformed_serial,
    transformed_parallel,
    serial_transformed,
]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("make", [Words, Examples, Agents])
def test_non_tensor_observations_pass_the_check_of_specs(make, around):
    with around(make) as env:
        check_env_specs(env, num_steps=5)


@pytest.mark.parametrize("around", AROUND)
def test_texts_are_those_of_their_steps(around):
    with around(Words) as env:
        batch = env.rollout(5, break_when_any_done=False)
    rows = [batch] if batch.ndim == 1 else batch.unbind(0)
    for row in rows:
        assert [step["text"] for step in row] == [f"step {n}" for n in (0, 1, 2, 0, 1)]
        assert [step["next", "text"] for step in row] == [f"step {n}" for n in (1, 2, 3, 1, 2)]


@pytest.mark.parametrize("around", AROUND)
def test_data_from_their_own_spec_stack_in_a_rollout(around):
    with around(Examples) as env:
        batch = env.rollout(5, break_when_any_done=False)
    assert {step["next", "text"] for step in batch.reshape(-1)} == {"nothing yet"}


@pytest.mark.parametrize("around", AROUND)
def test_agents_that_differ_in_shape_are_played_agent_by_agent(around):
    with around(Agents) as env:
        batch = env.rollout(5, break_when_any_done=False)
    one, other = batch["next", "agents"].unbind(-1)
    assert one["observation"].shape[-2:] == (5, 2)
    assert other["observation"].shape[-2:] == (5, 3)
    assert other["observation"].reshape(-1, 5, 3)[0, :, 0].tolist() == [1, 2, 3, 1, 2]
    first = batch["agents"].unbind(-1)[1]
    assert first["observation"].reshape(-1, 5, 3)[0, :, 0].tolist() == [0, 1, 2, 0, 1]
    assert first["action"].sum(-1).eq(1).all()
    assert batch["next", "agents", "reward"].shape == (*batch.shape, 2, 1)


@pytest.mark.parametrize("make", [Words, Agents])
def test_rows_that_go_on_keep_such_observations_at_a_partial_reset(make):
    env = TransformedEnv(SerialEnv(2, [lambda: make(2), lambda: make(9)]), StepCounter())
    batch = env.rollout(4, break_when_any_done=False)
    assert batch["step_count"][..., 0].tolist() == [[0, 1, 0, 1], [0, 1, 2, 3]]
    if make is Words:
        assert [row["text"] for row in batch[1]] == [f"step {n}" for n in range(4)]
    else:
        assert batch["agents"][1, :, 0]["observation"][:, 0].tolist() == [0, 1, 2, 3]


def test_rewards_of_agents_that_differ_pass_transforms():
    summed = RewardSum(in_keys=[("agents", "reward")])
    env = TransformedEnv(Agents(), RewardScaling(0, 3.0, [("agents", "reward")]), summed)
    check_env_specs(env)
    total = env.rollout(3)["next", "agents", "episode_reward"]
    assert total[..., 0].tolist() == [[3, 3], [6, 6], [9, 9]]


def test_a_random_policy_leaves_what_agents_see():
    env = Agents()
    policy = RandomPolicy(env.full_action_spec)
    assert policy.out_keys == [("agents", "action")]
    batch = env.rollout(3, policy)
    assert batch["agents"][..., 1]["observation"].shape == (3, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one.exclude("action"), "'action'.* is missing"),
        (lambda one: one.set("action", torch.ones(5, dtype=torch.bool)), "expected shape"),
        (lambda one: one.set("action", torch.ones(2)), "expected dtype torch.bool"),
    ],
)
def test_a_wrong_action_of_one_agent_is_named(change, message):
    env = Agents()
    root = env.rand_action(env.reset())
    one, other = root["agents"].unbind(0)
    root["agents"] = LazyStackedTensorDict(change(one.copy()), other, stack_dim=0)
    with pytest.raises((KeyError, TypeError, ValueError), match=message):
        env.step(root)


def test_an_object_of_another_shape_is_told_the_shape_of_its_spec():
    class Unfit(Words):
        def describe(self):
            super().describe()
            self.observation_spec = Composite(
                text=NonTensor(example_data="a"), observation=Unbounded((1,))
            )

    with pytest.raises(ValueError, match=r"'text'.*Give the spec shape=\(\)"):
        Unfit().reset()
