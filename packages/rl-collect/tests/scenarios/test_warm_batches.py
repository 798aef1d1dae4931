"""Batches after the first: what they have in common is set up once, and what changes shows."""

import cProfile
from collections import Counter

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_collect import Collector
from rl_envs import GymEnv, SerialEnv, TransformedEnv
from rl_replay import LazyTensorStorage, ReplayBuffer
from rl_specs import Bounded
from rl_transforms import InitTracker, RewardSum, StepCounter

MOST_CALLS = 95


def cart_pole():
    return GymEnv("CartPole-v1")


def chosen(logits):
    return nn.functional.one_hot(logits.argmax(-1), 2).bool()


def policy():
    return TensorDictSequential(
        TensorDictModule(nn.Linear(4, 2), ["observation"], ["logits"]),
        TensorDictModule(chosen, ["logits"], ["action"]),
    )


def warm(env, acting, frames=4, **options):
    """A collector that has played three batches."""
    collector = Collector(env, acting, frames_per_batch=frames, **options)
    for _ in range(3):
        collector.next()
    return collector


def calls_of(act):
    """Functions of our packages that are called, with how often."""
    with cProfile.Profile() as profile:
        act()
    found = Counter()
    for entry in profile.getstats():
        if "/rl_" in getattr(entry.code, "co_filename", ""):  # the code of a builtin is a string
            found[entry.code.co_qualname] += entry.callcount
    return found


@pytest.mark.parametrize("acting", [policy, lambda: None], ids=["policy", "random"])
@pytest.mark.parametrize("make", [cart_pole, lambda: SerialEnv(2, cart_pole)], ids=["one", "two"])
def test_a_warm_batch_makes_what_its_steps_need(make, acting):
    env = make()
    collector = warm(env, acting(), max(1, env.batch_size.numel()))
    found = calls_of(collector.next)
    assert found.total() <= MOST_CALLS * max(1, env.batch_size.numel())
    made = {"SetUp", "ColumnSteps.__init__", "Columns.add", "Columns.bind", "GymEnv.bind"}
    assert not made & found.keys()


@pytest.mark.parametrize(
    "transform", [lambda: StepCounter(9), RewardSum, InitTracker], ids=["limit", "sum", "first"]
)
def test_a_warm_batch_of_a_transformed_environment_is_not_set_up_again(transform):
    env = TransformedEnv(cart_pole(), transform())
    layer = nn.Linear(4, 2)
    read = ["observation", "is_init"] if transform is InitTracker else ["observation"]
    parts = [TensorDictModule(lambda seen, *_: chosen(layer(seen)), read, ["action"])]
    found = calls_of(warm(env, TensorDictSequential(*parts), 1).next)
    made = {"ColumnSteps.__init__", "Columns.add", "Columns.bind", "TransformedBinding.__init__"}
    assert not made & found.keys()
    assert found.total() <= 2.5 * MOST_CALLS  # rewards that are written to again are looked for


def test_a_warm_batch_takes_the_short_ways_where_nothing_stands_against_them():
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    acting = TensorDictSequential(
        TensorDictModule(network, ["observation"], ["logits"]), policy().module[1]
    )
    found = calls_of(warm(cart_pole(), acting).next)
    assert found["Layers.unpack.<locals>.run"] == 4  # without torch's call of each layer
    # observations of the dtype of their space are copied, batches on the CPU are moved nowhere,
    # and outputs that fit their columns are written by the function that is bound to them
    longer = ["writer_of_space.<locals>.write", "mover.<locals>.move", "Columns.writer"]
    assert not any(name.startswith(tuple(longer)) for name in found)


@pytest.mark.parametrize(("frames", "most"), [(1, 60), (4, 80)])
def test_a_warm_batch_goes_into_a_buffer_without_a_look_at_each_marker(frames, most):
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    collector = warm(cart_pole(), policy(), frames, replay_buffer=buffer)
    found = calls_of(collector.next)
    alone = calls_of(warm(cart_pole(), policy(), frames).next)
    assert found.total() - alone.total() <= most
    assert found["store_arrays"] == 1  # no tensordict is made, or read
    assert not {"Columns.batch", "branch", "insert_markers", "TensordictReader.of"} & found.keys()
    assert "Links.match" in found
    arrays = {"MarkerColumns.joined", "MarkerColumns.before_others", "Links._sort"}
    assert not arrays & found.keys()


def test_every_step_of_a_longer_batch_costs_the_same():
    few, more = (calls_of(warm(cart_pole(), policy(), n).next).total() for n in (1, 5))
    assert more - few <= 4 * 16


def test_weights_that_are_updated_act_in_the_next_batch():
    acting = policy()
    collector = warm(cart_pole(), acting)
    with torch.no_grad():
        for part in acting.parameters():
            part.fill_(0.5)
    batch = collector.next()
    with torch.no_grad():
        expected = acting[0].module(batch["observation"])
    torch.testing.assert_close(batch["logits"], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_part_that_is_replaced_acts_in_the_next_batch(dtype):
    acting = policy()
    collector = warm(cart_pole(), acting)
    before = collector.next()
    layer = nn.Linear(4, 2, dtype=dtype)
    act = lambda seen: layer(seen.to(dtype))  # noqa: E731
    acting.module[0] = TensorDictModule(act, ["observation"], ["logits"])
    batch = collector.next()
    assert batch["logits"].dtype == dtype
    with torch.no_grad():
        torch.testing.assert_close(batch["logits"], act(batch["observation"]))
    assert torch.equal(batch["observation"][0], before["next", "observation"][-1])


class Cast(nn.Module):
    """A network that computes in the dtype of its weights."""

    def __init__(self, *sizes):
        super().__init__()
        self.layer = nn.Linear(*sizes)

    def forward(self, seen):
        return self.layer(seen.to(self.layer.weight.dtype))


@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("make", [cart_pole, lambda: SerialEnv(2, cart_pole)], ids=["one", "two"])
def test_a_policy_in_another_dtype_acts_in_the_next_batch(make, frames):
    acting = policy()
    acting.module[0].module = Cast(4, 2)
    env = make()
    collector = warm(env, acting, frames * max(1, env.batch_size.numel()))
    for dtype, change in ((torch.float64, acting.double), (torch.float32, acting.float)):
        before = collector.next()
        change()
        for _ in range(2):
            batch = collector.next()
            assert batch["logits"].dtype == dtype
            with torch.no_grad():
                expected = acting[0].module(batch["observation"])
            torch.testing.assert_close(batch["logits"], expected)
            last = before["next", "observation"][..., -1, :]
            if not before["next", "done"].any():
                assert torch.equal(batch["observation"][..., 0, :], last)
            before = batch


def test_actions_in_another_dtype_are_cast_in_the_next_batch():
    dtypes = iter([torch.bool] * 12 + [torch.float32] * 4)
    act = lambda seen: torch.eye(2)[0].to(next(dtypes))  # noqa: E731
    collector = warm(cart_pole(), TensorDictModule(act, ["observation"], ["action"]))
    batch = collector.next()
    assert batch["action"].dtype == torch.bool
    assert batch["action"][:, 0].all()


def test_actions_that_cannot_be_cast_are_refused_in_the_next_batch():
    acting = TensorDictModule(Cast(3, 1), ["observation"], ["action"])
    collector = warm(GymEnv("Pendulum-v1"), acting)
    acting.double()
    with pytest.raises(TypeError, match=r"float32, got torch.float64 .* Let the policy write"):
        collector.next()


def test_an_output_in_another_shape_begins_the_next_batch_and_none_within_it():
    sizes = iter([2] * 12 + [3] * 4 + [2, 3])
    extra = TensorDictModule(lambda _: torch.zeros(next(sizes)), ["observation"], ["extra"])
    acting = TensorDictSequential(policy(), extra)
    collector = warm(cart_pole(), acting)
    assert collector.next()["extra"].shape == (4, 3)
    told = r"'extra': expected \(2,\) torch.float32 as in the steps before, got \(3,\)"
    with pytest.raises(ValueError, match=told):
        collector.next()


def test_specs_that_change_are_checked_in_the_next_batch():
    env = cart_pole()
    collector = warm(env, policy())
    env.observation_spec = Bounded(7.0, 8.0, (4,))
    with pytest.raises(ValueError, match="'observation' is outside its spec"):
        collector.next()
    env.check_values = False
    assert collector.next().shape == (4,)


def test_a_transform_that_counts_from_now_on_counts_in_the_next_batch():
    counter = StepCounter()
    collector = warm(TransformedEnv(cart_pole(), counter), policy(), reset_at_each_iter=True)
    counter.max_steps, counter.online = 2, True
    over = collector.next()["next", "truncated"].flatten().tolist()
    assert over == [False, True, False, True]


def test_a_closed_environment_is_refused_in_the_next_batch():
    env = cart_pole()
    collector = warm(env, policy())
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        collector.next()
