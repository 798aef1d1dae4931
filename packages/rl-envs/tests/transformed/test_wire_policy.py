import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_envs import GymEnv, SerialEnv, TransformedEnv, wire_policy
from rl_envs.testing import CountingEnv, MultiAgentEnv
from rl_specs import Composite, Unbounded
from rl_transforms import InitTracker, SelectTransform, StepCounter, TensorDictPrimer


class Memory(nn.Module):
    def __init__(self, key="hidden", in_keys=("observation", "hidden", "is_init"), rows=()):
        super().__init__()
        self.key, self.in_keys, self.rows = key, list(in_keys), rows

    def make_tensordict_primer(self):
        primers = Composite()
        primers[self.key] = Unbounded((*self.rows, 3))
        return TensorDictPrimer(primers, expand_specs=True)

    def forward(self, seen):
        return seen


def names(env):
    return [type(one).__name__ for one in env.transforms]


def test_a_recurrent_policy_gets_its_state_and_its_marks():
    env = CountingEnv(batch_size=(2,), policy=Memory())
    root = env.reset()
    assert root["hidden"].shape == (2, 3)
    assert root["is_init"].all()
    assert env.rollout(3)["is_init"][0].flatten().tolist() == [True, False, False]


@pytest.mark.parametrize(
    "make",
    [
        lambda policy: CountingEnv(policy=policy),
        lambda policy: GymEnv("CartPole-v1", policy=policy),
        lambda policy: SerialEnv(2, CountingEnv, policy=policy),
        lambda policy: TransformedEnv(CountingEnv(), StepCounter(), policy=policy),
    ],
    ids=["own", "gym", "serial", "transformed"],
)
def test_every_constructor_takes_a_policy(make):
    env = make(Memory())
    assert names(env)[-2:] == ["InitTracker", "TensorDictPrimer"]


def test_wiring_twice_changes_nothing():
    env = CountingEnv(policy=Memory())
    assert wire_policy(env, Memory()) is env
    assert names(env) == ["InitTracker", "TensorDictPrimer"]


def test_wire_policy_counts_primers_of_inner_environments():
    env = SerialEnv(2, lambda: CountingEnv(policy=Memory()))
    assert wire_policy(env, Memory()) is env


def test_a_policy_without_memory_changes_nothing():
    env = CountingEnv()
    assert wire_policy(env, nn.Linear(3, 2)) is env
    assert wire_policy(env, lambda td: td) is env


def test_memories_are_found_inside_and_each_once():
    first, second = Memory(), Memory("other")
    wrapped = TensorDictModule(first, ["observation"], ["out"])
    policy = TensorDictSequential(wrapped, TensorDictModule(second, ["out"], ["action"]))
    env = CountingEnv(policy=policy)
    assert names(env) == ["InitTracker", "TensorDictPrimer", "TensorDictPrimer"]
    assert {"hidden", "other"} <= set(env.reset().keys())


def test_marks_come_ahead_of_a_selection_and_primers_behind_it():
    env = TransformedEnv(CountingEnv(), SelectTransform("observation"))
    env = wire_policy(env, Memory())
    assert names(env) == ["InitTracker", "SelectTransform", "TensorDictPrimer"]
    assert {"is_init", "hidden"} <= set(env.rollout(2).keys())


def test_nested_keys_are_wired():
    memory = Memory(("agents", "hidden"), [("agents", "observation"), ("agents", "is_init")], (5,))
    env = MultiAgentEnv(5, policy=memory)
    root = env.reset()
    assert root["agents", "is_init"].shape == (5, 1)
    assert root["agents", "hidden"].shape == (5, 3)
    assert wire_policy(env, memory) is env


def test_some_states_of_many_are_refused():
    class Two(Memory):
        def make_tensordict_primer(self):
            return TensorDictPrimer(h=Unbounded((3,)), c=Unbounded((3,)), expand_specs=True)

    primer = TensorDictPrimer(h=Unbounded((3,)), expand_specs=True)
    env = TransformedEnv(CountingEnv(), primer)
    with pytest.raises(ValueError, match=r"lacks \['c'\]"):
        wire_policy(env, Two())


def test_a_tracker_that_is_there_is_not_doubled():
    env = TransformedEnv(CountingEnv(), InitTracker())
    assert names(wire_policy(env, Memory())) == ["InitTracker", "TensorDictPrimer"]


def test_states_start_again_after_a_reset():
    env = GymEnv("CartPole-v1", policy=Memory())

    def policy(root):
        root["next", "hidden"] = root["hidden"] + 1
        return env.rand_action(root)

    batch = env.rollout(60, policy, break_when_any_done=False)
    starts = batch["is_init"].flatten()
    assert starts.sum() > 1
    assert torch.equal(batch["hidden"][:, 0] == 0, starts)
