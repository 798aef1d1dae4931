"""Vectors that reset rows in the same step, with and without the last observations of episodes."""

import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from tensordict.nn import TensorDictModule

from rl_envs import GymVectorEnv, ParallelEnv, SerialEnv, TransformedEnv
from rl_layout import check_layout
from rl_transforms import Compose, InitTracker, ObservationNorm, RewardSum, StepCounter

SEEN = spaces.Box(-np.inf, np.inf, (2,), np.float32)
MISSING = ("collector", "next_missing")
FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Counters(VectorEnv):
    """Row i shows (i, step) and ends after i + 2 steps; resets in the same step."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs=2, gives=()):
        self.num_envs, self.gives = num_envs, gives  # the rows whose last observations it gives
        self.single_observation_space, self.single_action_space = SEEN, spaces.Discrete(2)

    def seen(self):
        return np.stack([np.arange(self.num_envs), self.count], 1).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.drawn = int(self.np_random.integers(10**6))
        self.count = np.zeros(self.num_envs, np.int64)
        return self.seen(), {}

    def step(self, actions):
        self.count += 1
        over, last = self.count == np.arange(self.num_envs) + 2, self.seen()
        self.count[over] = 0
        final = np.full(self.num_envs, None, object)
        has_final = over & np.isin(np.arange(self.num_envs), self.gives)
        for row in np.flatnonzero(has_final):
            final[row] = last[row]
        info = {"final_obs": final, "_final_obs": has_final} if has_final.any() else {}
        return self.seen(), np.ones(self.num_envs), over, np.zeros_like(over), info


def make(gives=(), around=None):
    env = GymVectorEnv(Counters(gives=gives))
    return env if around is None else TransformedEnv(env, around())


def test_a_vector_of_its_own_has_one_seed():
    drawn = []
    for seed in (3, 3, 4):
        env = make()
        env.set_seed(seed)
        env.reset()
        drawn.append(env.env.unwrapped.drawn)
    assert drawn[0] == drawn[1] != drawn[2]


def play(env, steps=6):
    policy = TensorDictModule(
        lambda seen: torch.eye(2, dtype=torch.bool)[torch.zeros(len(seen), dtype=torch.int64)],
        ["observation"],
        ["action"],
    )
    return env.rollout(steps, policy, break_when_any_done=False)


@pytest.mark.parametrize(
    "around",
    [None, RewardSum, lambda: Compose(InitTracker(), StepCounter())],
    ids=["bare", "waits", "in step"],
)
@pytest.mark.parametrize("gives", [(), (1,), (0, 1)])
def test_rows_without_their_last_observation_are_marked_and_no_others(gives, around):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch, whole = play(make(gives, around)), play(make((0, 1), around))
    done = batch["next", "done"].squeeze(-1)
    expected = done.clone()
    expected[[*gives]] = False
    assert torch.equal(batch[MISSING], expected)
    assert not whole[MISSING].any()
    same = (batch["next", "observation"] == whole["next", "observation"]).all(-1)
    assert torch.equal(same, ~expected)  # what is not marked is real
    rows, steps = done.nonzero(as_tuple=True)
    assert (whole["next", "observation"][rows, steps, 1] == rows + 2).all()
    assert not check_layout(whole).findings
    assert not check_layout(batch).findings


def test_a_switch_of_the_simulator_is_named_once():
    env = make()
    with pytest.warns(UserWarning, match=r"Counters resets .* gives no 'final_obs'") as found:
        play(env)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(env)
    assert len(found) == 1
    assert "compute_final_obs=True in Isaac Lab" in str(found[0].message)
    assert "next_missing" in str(found[0].message)


def test_steps_by_hand_cannot_be_marked_and_are_refused():
    env = make()
    root = env.rand_action(env.reset())
    _, root = env.step_and_maybe_reset(root)
    with pytest.raises(RuntimeError, match="Use rollout without a callback, or a collector"):
        env.step(env.rand_action(root))


def test_gymnasium_gives_them_and_nothing_is_marked():
    env = GymVectorEnv("CartPole-v1", 2, autoreset_mode=AutoresetMode.SAME_STEP)
    assert MISSING not in play(env, 30).keys(True)


def serial(number, make):
    return SerialEnv(number, make)


def parallel(number, make):
    return ParallelEnv(number, make, mp_start_method="fork")


def mixed(i):
    return lambda: make((0, 1) if i else ())


@FORKS
@pytest.mark.parametrize("batched", [serial, parallel])
@pytest.mark.parametrize("around", [None, lambda: Compose(InitTracker(), StepCounter())])
def test_vectors_in_a_batched_environment_are_marked_too(batched, around):
    with batched(2, make) as inside:
        env = inside if around is None else TransformedEnv(inside, around())
        with pytest.warns(UserWarning, match="final_obs") as found:
            batch = play_random(env)
        assert len([one for one in found if "final_obs" in str(one.message)]) == (
            1 if batched is parallel else 2  # each vector says it
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = play_random(env)
    for one in (batch, again):
        assert one["next", "done"].any()
        assert torch.equal(one[MISSING], one["next", "done"].squeeze(-1))
        assert not check_layout(one).findings


@FORKS
def test_only_rows_of_the_vector_that_lacks_them_are_marked_in_processes():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = play_random(SerialEnv(2, [mixed(0), mixed(1)]))
        with ParallelEnv(2, [mixed(0), mixed(1)], mp_start_method="fork") as env:
            batch = play_random(env)
            env.restart()
            again = play_random(env)
    assert told[MISSING][0].any()
    assert not told[MISSING][1].any()
    for key in (MISSING, ("next", "observation"), ("next", "done")):
        assert torch.equal(batch[key], told[key])
        assert torch.equal(again[key], told[key])


@FORKS
@pytest.mark.parametrize("around", [None, StepCounter])
def test_steps_by_hand_of_processes_cannot_be_marked_and_are_refused(around):
    with ParallelEnv(2, lambda: make((), around), mp_start_method="fork") as env:
        root = env.rand_action(env.reset())
        _, root = env.step_and_maybe_reset(root)
        with pytest.raises(RuntimeError, match="which mark such rows"):
            env.step(env.rand_action(root))


def around_of(names):
    kinds = {
        "counts": lambda: Compose(InitTracker(), StepCounter()),
        "sums": RewardSum,
        "norms": lambda: ObservationNorm(loc=1.0, scale=2.0, in_keys=["observation"]),
    }
    return lambda: Compose(*[kinds[name]() for name in names.split()])


def test_a_repeated_observation_passes_transforms_once():
    env = TransformedEnv(
        make(), ObservationNorm(loc=1.0, scale=2.0, in_keys=["observation"]), StepCounter()
    )
    with pytest.warns(UserWarning, match="final_obs"):
        batch = play(env)
    before, after = batch[MISSING], batch["next", "observation"]
    assert before.any()
    assert torch.equal(after[before], batch["observation"][before])


@FORKS
@pytest.mark.parametrize("names", ["counts", "sums", "norms counts", "norms sums counts"])
@pytest.mark.parametrize("batched", [serial, parallel])
def test_vectors_with_transforms_of_their_own_are_marked_in_batched_environments(batched, names):
    around = around_of(names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = [play_random(make((), around)) for _ in range(2)]
        with batched(2, lambda: make((), around)) as env:
            batch, again = play_random(env), play_random(env)
    assert batch["next", "done"].any()
    for one in (batch, again):
        assert not check_layout(one).findings
        for row in range(2):
            for key in told[0].keys(True, True):
                if key != "action":
                    assert torch.equal(one[row][key], told[row][key]), key


def play_random(env):
    return env.rollout(6, break_when_any_done=False)
