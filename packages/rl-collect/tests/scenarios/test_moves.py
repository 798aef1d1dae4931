"""A collector whose environment was moved by somebody else makes no impossible transition."""

import contextlib

import pytest
import torch

from rl_collect import Collector
from rl_envs import GymEnv, GymVectorEnv, ParallelEnv, Pendulums, SerialEnv, TransformedEnv
from rl_envs.testing import CountingEnv
from rl_layout import check_layout
from rl_transforms import FrameSkip, InitTracker, StepCounter

MOVED = "was stepped, reset or given a state by somebody else"


class Buffer(list):
    """Stores every batch, step by step or batch by batch."""

    def extend(self, batch):
        self.append(batch)

    def add(self, step):
        self.append(step.unsqueeze(0))


def cart_pole():
    return GymEnv("CartPole-v1")


def vector(mode):
    return GymVectorEnv("CartPole-v1", 3, vectorization_mode=mode)


ENVIRONMENTS = {
    "gym": cart_pole,
    "serial": lambda: SerialEnv(3, cart_pole),
    "serial, transformed inside": lambda: SerialEnv(
        3, lambda: TransformedEnv(cart_pole(), StepCounter(30))
    ),
    "parallel": lambda: ParallelEnv(3, cart_pole, num_processes=2, mp_start_method="fork"),
    "transformed": lambda: TransformedEnv(cart_pole(), StepCounter(30)),
    "transformed parallel": lambda: TransformedEnv(
        ParallelEnv(2, cart_pole, mp_start_method="fork"), InitTracker()
    ),
    "vector": lambda: vector("sync"),
    "transformed vector": lambda: TransformedEnv(vector("sync"), StepCounter()),
    "native vector": lambda: vector("vector_entry_point"),
    "transformed native vector": lambda: TransformedEnv(
        vector("vector_entry_point"), StepCounter()
    ),
}


def reset(env):
    env.reset()


def steps(env):
    env.step(env.rand_action(env.reset()))


def evaluate(env):
    env.rollout(5)


def collect(env):
    Collector(env, frames_per_batch=12).next()


def load(env):
    env.load_state_dict(env.state_dict())


MOVES = [reset, steps, evaluate, collect, load]


def is_possible(batch):
    """Whether each step of a pole on a cart is one: the place changes by 0.02 s of the speed."""
    root, after = batch["observation"], batch["next", "observation"]
    return torch.allclose(after[..., 0], root[..., 0] + 0.02 * root[..., 1], atol=1e-5)


def checked(batches):
    """Every transition is possible, rows of one id follow each other, and no id comes back."""
    whole = torch.cat([batch.reshape(*batch.batch_size) for batch in batches], -1)
    assert is_possible(whole)
    for row in whole.reshape(-1, whole.shape[-1]):
        assert not check_layout(row).errors
    return whole


# vectors of gymnasium do not save their state
CASES = [
    (name, move)
    for name in ENVIRONMENTS
    for move in MOVES
    if not (move is load and "vector" in name)
]


@pytest.mark.parametrize(
    ("name", "move"), CASES, ids=[f"{move.__name__}, {name}" for name, move in CASES]
)
def test_rows_behind_a_move_of_somebody_else_begin_new_trajectories(name, move):
    env = ENVIRONMENTS[name]()
    with contextlib.closing(env):
        env.set_seed(0)
        collector = Collector(env, frames_per_batch=24)
        before = [collector.next(), collector.next()]
        move(env)
        with pytest.warns(UserWarning, match=MOVED):
            after = [collector.next()]
        after.append(collector.next())
        assert bool(after[0]["is_init"][..., 0, :].all())
        assert not set(checked(before)["collector", "traj_ids"].flatten().tolist()) & set(
            checked(after)["collector", "traj_ids"].flatten().tolist()
        )


INSIDE = {
    "beneath a transform": (
        lambda: TransformedEnv(cart_pole(), StepCounter()),
        lambda env: env.base_env,
    ),
    "driven": (lambda: TransformedEnv(cart_pole(), FrameSkip(2)), lambda env: env.base_env),
    "serial beneath a transform": (
        lambda: TransformedEnv(SerialEnv(2, cart_pole), StepCounter()),
        lambda env: env.base_env.envs[1],
    ),
    "vector beneath a transform": (
        lambda: TransformedEnv(vector("vector_entry_point"), StepCounter()),
        lambda env: env.base_env,
    ),
    "one of three": (lambda: SerialEnv(3, cart_pole), lambda env: env.envs[1]),
    "base of one of three": (
        lambda: SerialEnv(3, lambda: TransformedEnv(cart_pole(), StepCounter())),
        lambda env: env.envs[2].base_env,
    ),
}


@pytest.mark.parametrize("name", INSIDE)
def test_a_move_of_an_environment_inside_is_seen(name):
    make, part = INSIDE[name]
    env = make()
    collector = Collector(env, frames_per_batch=18)
    collector.next()
    part(env).reset()
    with pytest.warns(UserWarning, match=MOVED):
        assert bool(collector.next()["is_init"][..., 0, :].all())


def test_a_move_around_the_environment_of_a_collector_is_seen():
    env = cart_pole()
    collector = Collector(env, frames_per_batch=18)
    collector.next()
    TransformedEnv(env, StepCounter()).rollout(3)
    with pytest.warns(UserWarning, match=MOVED):
        assert is_possible(collector.next())


def test_a_move_of_tensors_alone_is_seen():
    env = Pendulums(3)
    collector = Collector(env, frames_per_batch=12)
    before = collector.next()
    env.rollout(2, break_when_any_done=False)
    with pytest.warns(UserWarning, match=MOVED):
        after = collector.next()
    assert bool(after["is_init"][:, 0].all())
    assert after["collector", "traj_ids"].min() > before["collector", "traj_ids"].max()


def test_two_collectors_of_one_environment_tell_once_each_and_join_nothing():
    env = cart_pole()
    one, other = (Collector(env, frames_per_batch=10) for _ in range(2))
    with pytest.warns(UserWarning, match=MOVED) as seen:
        batches = [collector.next() for _ in range(4) for collector in (one, other)]
    assert len(seen) == 2
    assert all(is_possible(batch) for batch in batches)
    assert all(bool(batch["is_init"][0]) for batch in batches)


def test_a_move_in_the_middle_of_a_batch_cuts_there():
    env, buffer = cart_pole(), Buffer()
    steps = iter(range(8))
    collector = Collector(
        env,
        frames_per_batch=8,
        replay_buffer=buffer,
        extend_buffer=False,
        post_collect_hook=lambda step: env.rollout(2) if next(steps) == 3 else None,
    )
    env.set_seed(0)
    with pytest.warns(UserWarning, match=MOVED):
        collector.next()
    whole = torch.cat(buffer)
    assert is_possible(whole)
    assert bool(whole["is_init"][4])
    assert whole["collector", "traj_step"].tolist()[:6] == [0, 1, 2, 3, 0, 1]


def test_pieces_before_a_move_are_handed_out_as_truncations():
    env = CountingEnv(max_steps=6)
    collector = Collector(env, frames_per_batch=4, total_frames=16, trajs_per_batch=1)
    first = collector.next()  # eight frames are played: this trajectory, and two steps of another
    env.reset()
    with pytest.warns(UserWarning, match=MOVED):
        batches = [first, *collector]
    found = [
        (len(batch), bool(batch["next", "truncated"][-1]), bool(batch["next", "done"][-1]))
        for batch in batches
    ]
    assert found[:2] == [(6, False, True), (2, True, True)]
    assert sum(length for length, *_ in found) == 16


def test_a_collector_that_nobody_disturbs_is_silent():
    env = SerialEnv(2, lambda: TransformedEnv(cart_pole(), StepCounter(9)))
    collector = Collector(env, frames_per_batch=10)
    batches = [collector.next() for _ in range(3)]
    state = collector.state_dict()
    collector.load_state_dict(state)
    batches.append(collector.next())
    checked(batches)
    assert not bool(batches[1]["is_init"][:, 0].all())


def test_a_state_saved_behind_a_move_begins_new_trajectories():
    env = cart_pole()
    collector = Collector(env, frames_per_batch=7)
    collector.next()
    env.rollout(3)
    with pytest.warns(UserWarning, match=MOVED):
        state = collector.state_dict()
    fresh = Collector(cart_pole(), frames_per_batch=7)
    fresh.load_state_dict(state)
    batch = fresh.next()
    assert bool(batch["is_init"][0])
    assert is_possible(batch)


def test_a_reset_before_each_batch_is_no_reason_to_warn():
    env = cart_pole()
    collector = Collector(env, frames_per_batch=7, reset_at_each_iter=True)
    for _ in range(3):
        assert is_possible(collector.next())
        env.rollout(2)


def test_a_closed_environment_is_refused_by_name():
    env = cart_pole()
    collector = Collector(env, frames_per_batch=7)
    collector.next()
    env.close()
    with pytest.raises(RuntimeError, match="GymEnv is closed"):
        collector.next()
