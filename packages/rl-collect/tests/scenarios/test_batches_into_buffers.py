"""Batches that go to a buffer as arrays are the ones that would go there as tensordicts."""

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_collect import Collector
from rl_envs import GymEnv, SerialEnv, TransformedEnv
from rl_replay import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from rl_specs import Bounded
from rl_transforms import InitTracker, RewardSum, StepCounter, Transform


def policy():
    torch.manual_seed(5)
    return TensorDictSequential(
        TensorDictModule(nn.Linear(4, 2), ["observation"], ["logits"]),
        TensorDictModule(
            lambda logits: nn.functional.one_hot(logits.argmax(-1), 2).bool(),
            ["logits"],
            ["action"],
        ),
    )


def collector_of(env, frames, buffer, **options):
    env.set_seed(3)
    named = {"frames_per_batch": frames, "producer": 7, "replay_buffer": buffer}
    return Collector(env, policy(), **named, **options)


class Noted(ReplayBuffer):
    """Notes how batches came."""

    def __init__(self, **options):
        super().__init__(**options)
        self.taken = []

    def extend_arrays(self, arrays, count):
        self.taken.append(super().extend_arrays(arrays, count))
        return self.taken[-1]


def one():
    return GymEnv("CartPole-v1")


ENVS = {
    "one": one,
    "counted": lambda: TransformedEnv(one(), StepCounter(13)),
    "first": lambda: TransformedEnv(one(), InitTracker()),
}


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("make", ENVS.values(), ids=ENVS)
@pytest.mark.parametrize("frames", [1, 4, 19])
def test_a_buffer_holds_what_it_would_of_tensordicts(frames, make, lossless):
    quick = Noted(storage=LazyTensorStorage(170, lossless=lossless))
    slow = ReplayBuffer(storage=LazyTensorStorage(170, lossless=lossless))
    seen = []
    for buffer, options in ((quick, {}), (slow, {"post_collect_hook": seen.append})):
        collector = collector_of(make(), frames, buffer, **options)
        for _ in range(200 // frames):
            assert collector.next() is None
        found = collector.stats()
        assert found["frames"] == 200 // frames * frames
    # the first batches make the columns and the rows
    if isinstance(make(), GymEnv):
        assert sum(quick.taken) >= len(seen) - 3
    assert (quick[:] == slow[:]).all()
    assert quick.storage.back.tolist() == slow.storage.back.tolist()
    assert (quick[:] == torch.cat(seen)[-len(quick) :]).all() if len(quick) < 170 else True
    assert found["episodes"] > 5


def test_the_ordinary_call_gives_arrays_and_counts_episodes_as_others_do():
    buffer = Noted(storage=LazyTensorStorage(100))
    collector = collector_of(one(), 5, buffer)
    other = collector_of(one(), 5, None)
    for _ in range(60):
        assert collector.next() is None
        other.next()
    assert buffer.taken == [True] * 58  # the first two batches make the columns
    assert other.stats()["episodes"] > 5
    assert collector.stats() == other.stats()


NEEDS = {
    "several": lambda: (SerialEnv(2, one), {}),
    "sum": lambda: (TransformedEnv(one(), RewardSum()), {}),  # waits for whole batches
    "truncated": lambda: (one(), {"set_truncated": True}),
    "compact": lambda: (one(), {"compact_obs": True}),
    "postproc": lambda: (one(), {"postproc": lambda batch: batch}),
    "reset": lambda: (one(), {"reset_at_each_iter": True}),
    "no ids": lambda: (one(), {"track_traj_ids": False}),
    "random": lambda: (one(), {"init_random_frames": 1000}),
}


@pytest.mark.parametrize("change", NEEDS.values(), ids=NEEDS)
def test_whoever_needs_a_batch_gets_one(change):
    env, options = change()
    buffer = Noted(storage=LazyTensorStorage(100))
    collector = collector_of(env, 6, buffer, **options)
    for _ in range(5):
        collector.next()
    assert not any(buffer.taken)
    assert len(buffer) == 30


def test_a_buffer_with_an_extend_of_its_own_gets_batches():
    class Own(ReplayBuffer):
        def extend(self, data):
            return super().extend(data.set("mine", torch.ones(data.shape)))

    buffer = Own(storage=LazyTensorStorage(100))
    collector = collector_of(one(), 5, buffer)
    plain = ReplayBuffer(storage=LazyTensorStorage(100))
    second = collector_of(one(), 5, plain)
    for _ in range(3):
        collector.next(), second.next()
    shapes, kept = [], plain.extend
    plain.extend = lambda data: (shapes.append(data.shape), kept(data))
    for _ in range(3):
        collector.next(), second.next()
    assert buffer[:]["mine"].sum() == 30
    assert shapes == [(5,)] * 3

    class Around:
        def __init__(self, buffer):
            self.buffer, self.count = buffer, 0

        def extend(self, data):
            self.count += 1
            return self.buffer.extend(data)

        def __getattr__(self, name):
            return getattr(self.buffer, name)

    around = Around(ReplayBuffer(storage=LazyTensorStorage(100)))
    third = collector_of(one(), 5, around)
    for _ in range(6):
        third.next()
    assert around.count == 6


class Doubled(Transform):
    """Rewards are written twice as large."""

    def invert_leaf(self, value):
        return 2 * value


BUFFERS = {
    "list": lambda: ReplayBuffer(storage=ListStorage(100)),
    "transform": lambda: ReplayBuffer(storage=LazyTensorStorage(100), transform=RewardSum()),
    "writes changed": lambda: ReplayBuffer(
        storage=LazyTensorStorage(100),
        transform=Doubled(in_keys=[], in_keys_inv=[("next", "reward")]),
    ),
    "tensordicts": lambda: TensorDictReplayBuffer(storage=LazyTensorStorage(100)),
    "priorities": lambda: TensorDictPrioritizedReplayBuffer(
        alpha=0.7, beta=0.5, storage=LazyTensorStorage(100), batch_size=6
    ),
    "slices": lambda: TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=3), batch_size=6
    ),
    "shared": lambda: ReplayBuffer(storage=LazyTensorStorage(100, lanes=2), shared=True),
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_any_buffer_is_filled(kind):
    buffer = BUFFERS[kind]()
    collector = collector_of(one(), 5, buffer)
    seen = []
    other = collector_of(one(), 5, None)
    for _ in range(8):
        collector.next()
        seen.append(other.next())
        if kind in ("priorities", "slices") and len(seen) > 1:
            assert buffer.sample()["index"].max() < len(buffer) == 5 * len(seen)
    assert len(buffer) == 40
    if isinstance(buffer.storage, ListStorage):
        rows = torch.stack([buffer[place] for place in range(40)])
    else:
        rows = buffer[:]
    if kind == "writes changed":
        assert (rows["next", "reward"] == 2).all()
    assert torch.equal(rows["next", "observation"], torch.cat(seen)["next", "observation"])
    assert torch.equal(rows["collector", "traj_ids"], torch.cat(seen)["collector", "traj_ids"])


def test_a_writer_that_keeps_the_best_rows_is_asked():
    writer = TensorDictMaxValueWriter(rank_key=("collector", "traj_step"))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), writer=writer)
    collector = collector_of(one(), 5, buffer)
    steps = []
    other = collector_of(one(), 5, None)
    for _ in range(30):
        collector.next()
        steps += other.next()["collector", "traj_step"].tolist()
    assert sorted(buffer[:]["collector", "traj_step"].tolist()) == sorted(steps)[-10:]


def test_rows_of_other_leaves_are_refused_by_name_as_those_of_a_batch():
    buffer = Noted(storage=LazyTensorStorage(100))
    collector_of(TransformedEnv(one(), StepCounter(7)), 5, buffer).next()
    collector = collector_of(one(), 5, buffer)
    with pytest.raises(KeyError, match="step_count"):
        collector.next()
    buffer.empty()
    collector.next()
    collector.next()
    assert len(buffer) == 10


def test_a_value_outside_its_spec_is_refused_and_what_follows_is_a_new_trajectory():
    env = one()
    buffer = Noted(storage=LazyTensorStorage(100))
    collector = collector_of(env, 5, buffer)
    for _ in range(3):
        collector.next()
    env.observation_spec = Bounded(7.0, 8.0, (4,))
    with pytest.raises(ValueError, match="'observation' is outside its spec"):
        collector.next()
    env.observation_spec = Bounded(-9.0, 9.0, (4,))
    collector.next()
    ids = buffer[:]["collector", "traj_ids"]
    assert len(buffer) == 20
    assert ids[15] != ids[14]
    assert buffer[:]["is_init"][15]


def test_a_policy_that_fails_leaves_whole_steps_and_begins_anew():
    fails_at = iter([False] * 23 + [True])

    def act(observation):
        if next(fails_at, False):
            raise RuntimeError("out of order")
        return torch.tensor([True, False])

    buffer = Noted(storage=LazyTensorStorage(100))
    acting = TensorDictModule(act, ["observation"], ["action"])
    collector = Collector(one(), acting, frames_per_batch=5, replay_buffer=buffer)
    with pytest.raises(RuntimeError, match="out of order"):
        list(collector)
    assert buffer.taken[-1]
    stored = len(buffer)
    collector.next()
    rows = buffer[:]
    assert len(rows) == stored + 5
    assert rows["is_init"][stored]
    assert rows["collector", "traj_ids"][stored] != rows["collector", "traj_ids"][stored - 1]


def test_policy_version_and_random_frames_are_those_of_each_step():
    buffer = Noted(storage=LazyTensorStorage(100))
    collector = collector_of(one(), 5, buffer, init_random_frames=10)
    for place in range(8):
        collector.next()
        if place == 5:
            collector.update_policy_weights_()
    assert buffer.taken[-1]
    assert buffer[:]["collector", "policy_version"].tolist() == [0] * 30 + [1] * 10
