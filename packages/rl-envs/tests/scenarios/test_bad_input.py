"""Mistakes of new users, in every class of environments: an immediate error that names them."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from rl_envs import GymEnv, GymVectorEnv, ParallelEnv, SerialEnv, TransformedEnv
from rl_envs.testing import CountingEnv, MultiAgentEnv
from rl_transforms import Compose, InitTracker, RewardSum, StepCounter

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    # Gymnasium tells as warnings what it raises next
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Faulty(gymnasium.Env):
    """Does something wrong on its second step."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fault=None):
        self.fault = fault

    def reset(self, seed=None, options=None):
        self.count = 0
        if self.fault == "reset":
            raise LookupError("no level left")
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.count += 1
        seen = np.zeros(3, np.float32)
        if self.count == 2 and self.fault == "raises":
            raise ZeroDivisionError("no level left")
        if self.count == 2 and self.fault == "shape":
            seen = np.zeros(4, np.float32)
        elif self.count == 2 and self.fault:
            seen[1] = {"nan": np.nan, "outside": 7}[self.fault]
        return seen, 1.0, False, False, {}


class FaultyRows(VectorEnv):
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, fault):
        self.rows, self.num_envs = [Faulty(fault) for _ in range(2)], 2
        self.single_observation_space = Faulty.observation_space
        self.single_action_space = Faulty.action_space

    def reset(self, *, seed=None, options=None):
        return np.stack([row.reset()[0] for row in self.rows]), {}

    def step(self, actions):
        seen = [row.step(action)[0] for row, action in zip(self.rows, actions, strict=True)]
        return np.stack(seen), np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {}


def vector(kind, mode):
    return lambda fault: GymVectorEnv(kind([lambda: Faulty(fault)] * 2, autoreset_mode=mode))


def parallel(fault):
    return ParallelEnv(2, lambda: GymEnv(Faulty(fault)), mp_start_method="fork", timeout_s=20)


def transformed(make):
    changes = lambda: Compose(InitTracker(), StepCounter(), RewardSum())  # noqa: E731
    return lambda fault: TransformedEnv(make(fault), changes())


BASES = {
    "gym": lambda fault: GymEnv(Faulty(fault)),
    **{f"sync {mode.name}": vector(SyncVectorEnv, mode) for mode in AutoresetMode},
    "async": vector(AsyncVectorEnv, AutoresetMode.DISABLED),
    "native": lambda fault: GymVectorEnv(FaultyRows(fault)),
    "serial": lambda fault: SerialEnv(2, lambda: GymEnv(Faulty(fault))),
    "parallel": parallel,
}
ENVS = BASES | {
    f"transformed {name}": transformed(BASES[name]) for name in ("gym", "native", "parallel")
}


@pytest.fixture(params=ENVS)
def make(request):
    """Makes environments of one class, and closes them."""
    made = []

    def make(fault=None):
        made.append(ENVS[request.param](fault))
        return made[-1]

    yield make
    for env in made:
        env.close()


def by_hand(env):
    root = env.reset()
    for _ in range(3):
        root = env.step_and_maybe_reset(env.rand_action(root))[1]


def test_actions_and_roots_that_do_not_fit_are_refused(make):
    env = make()
    sizes = env.batch_size
    with pytest.raises(RuntimeError, match=r"not reset yet: call reset\(\)"):
        env.step(env.rand_action())
    root = env.reset()
    root = env.reset()
    with pytest.raises(KeyError, match="the action 'action' is missing: the policy left"):
        env.step(root)
    with pytest.raises(ValueError, match=r"'action': expected shape \(.*2,?\), got \(.*5,?\)"):
        env.step(root.copy().set("action", torch.zeros(*sizes, 5, dtype=torch.bool)))
    with pytest.raises(TypeError, match=r"'action': expected dtype torch\.bool, got"):
        env.step(root.copy().set("action", torch.full((*sizes, 2), 0.5)))
    with pytest.raises(ValueError, match="expected batch size"):
        env.step(TensorDict({}, [9]))
    with pytest.raises(TypeError, match="expected a tensordict with the action: got None"):
        env.step(None)
    with pytest.raises(TypeError, match=r"'_reset': expected dtype torch\.bool, got"):
        env.reset(root.copy().set("_reset", torch.ones(*sizes, 1)))


def test_arguments_of_another_kind_are_refused(make):
    env = make()
    with pytest.raises(TypeError, match=r"max_steps: expected a whole number, got 2\.5"):
        env.rollout(2.5)
    with pytest.raises(ValueError, match="max_steps: expected at least 1, got 0"):
        env.rollout(0)
    with pytest.raises(TypeError, match="seed: expected a whole number, got 'one'"):
        env.set_seed("one")
    with pytest.raises(KeyError, match=r"no state of an environment: it lacks \['state'\]"):
        env.load_state_dict({"is_started": True})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GymEnv(7), "expected an id or a gymnasium.Env: got int"),
        (
            lambda: GymEnv(gymnasium.make_vec("CartPole-v1", 2)),
            "makes one of a vector of Gymnasium",
        ),
        (lambda: SerialEnv(2, CountingEnv()), "a function that makes an environment, got Counting"),
        (lambda: ParallelEnv(2, CountingEnv()), "a function that makes an environment, got Count"),
        (lambda: SerialEnv(2.5, CountingEnv), "num_workers: expected a whole number, got 2.5"),
        (lambda: TransformedEnv("CartPole-v1"), "expected an environment: got 'CartPole-v1'"),
    ],
)
def test_constructors_say_what_they_take(make, words):
    with pytest.raises(TypeError, match=words):
        make()


def test_policies_that_do_not_fit_are_refused(make):
    env = make()
    sizes, calls = env.batch_size, []

    def act(function, in_keys=("observation",), out_keys=("action",)):
        return TensorDictModule(function, list(in_keys), list(out_keys))

    def changes_its_mind(kind):
        def choose(seen):
            calls.append(seen)
            good = torch.eye(2)[0].bool().expand(*sizes, 2)
            return good if len(calls) % 5 else kind(good)

        return act(choose)

    with pytest.raises(ValueError, match=r"'action': expected shape"):
        env.rollout(3, act(lambda seen: torch.zeros(*sizes, 5, dtype=torch.bool)))
    with pytest.raises(TypeError, match=r"'action': expected dtype"):
        env.rollout(3, act(lambda seen: torch.full((*sizes, 2), torch.nan)))
    with pytest.raises(ValueError, match=r"'action': expected .* as in the steps before"):
        env.rollout(9, changes_its_mind(lambda good: good.float()))
    with pytest.raises(ValueError, match=r"'action': expected .* as in the steps before"):
        env.rollout(9, changes_its_mind(lambda good: good[..., :1]))
    for lacking in ("hidden", "action"):
        with pytest.raises(KeyError, match=f"reads .*{lacking}.* it shows .*'observation'"):
            env.rollout(3, act(lambda seen: seen, [lacking]))
    with pytest.raises(KeyError, match="the action 'action' is missing"):
        env.rollout(3, act(lambda seen: seen, out_keys=["other"]))
    with pytest.raises(TypeError, match="policy: expected a function or a module, got 7"):
        env.rollout(3, 7)


def test_a_closed_environment_says_so(make):
    env = make()
    root = env.rand_action(env.reset())
    env.close()
    env.close()
    for call in (
        env.reset,
        lambda: env.step(root),
        lambda: env.rollout(2),
        lambda: env.set_seed(1),
        env.state_dict,
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()


@pytest.mark.parametrize("play", [by_hand, lambda env: env.rollout(4)], ids=["by hand", "rollout"])
@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("nan", ValueError, "step 'observation' holds NaN"),
        ("outside", ValueError, "step 'observation' is outside its spec"),
        ("shape", ValueError, None),
        ("raises", ZeroDivisionError, "no level left"),
        ("reset", LookupError, "no level left"),
    ],
)
def test_environments_that_break_their_word_are_found_out(make, play, fault, error, words):
    with pytest.raises(error, match=words) as caught:
        play(make(fault))
    if fault == "shape":  # Gymnasium's own vectors name no key
        told = [str(caught.value), *getattr(caught.value, "__notes__", [])]
        assert any("'observation': expected shape" in text or "Box(" in text for text in told)


def test_a_failed_vector_of_processes_is_not_used_again():
    with vector(AsyncVectorEnv, AutoresetMode.DISABLED)("raises") as env:
        with pytest.raises(ZeroDivisionError):
            env.rollout(3)
        with pytest.raises(RuntimeError, match="is broken: one of its environments has failed"):
            env.reset()


def test_a_refused_reset_breaks_nothing():
    with vector(AsyncVectorEnv, AutoresetMode.SAME_STEP)(None) as env:
        root = env.reset()
        with pytest.raises(RuntimeError, match=r"rows \[1\] continue"):
            env.reset(root.copy().set("_reset", torch.tensor([[False], [True]])))
        assert env.rand_step(root)["next", "reward"].flatten().tolist() == [1, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: CountingEnv(1, batch_size=(3,)),
        lambda: SerialEnv(3, lambda: CountingEnv(1)),
        lambda: GymVectorEnv("CartPole-v1", 3, max_episode_steps=1),
        lambda: GymVectorEnv(
            "CartPole-v1", 3, max_episode_steps=1, vectorization_mode="vector_entry_point"
        ),
    ],
    ids=["alone", "serial", "sync", "native"],
)
def test_episodes_of_one_step_are_all_first_and_last(make):
    changes = Compose(InitTracker(), StepCounter(), RewardSum())
    with TransformedEnv(make(), changes) as env:
        batch = env.rollout(5, break_when_any_done=False)
    assert batch.shape == (3, 5)
    assert batch["is_init"].all()
    assert batch["next", "done"].all()
    assert (batch["next", "step_count"] == 1).all()
    assert torch.equal(batch["next", "episode_reward"], batch["next", "reward"])


@pytest.mark.parametrize("kind", ["alone", "serial", "parallel"])
def test_a_partial_reset_with_done_flags_in_groups_leaves_the_other_rows(kind):
    inner = lambda: MultiAgentEnv(4, [(9, "terminated")])  # noqa: E731
    env = {
        "alone": lambda: MultiAgentEnv(4, [(9, "terminated")], batch_size=(2,)),
        "serial": lambda: SerialEnv(2, inner),
        "parallel": lambda: ParallelEnv(2, inner, mp_start_method="fork", timeout_s=20),
    }[kind]()
    with TransformedEnv(env, InitTracker()) as env:
        root = env.reset()
        for _ in range(3):
            root = env.step_and_maybe_reset(env.rand_action(root))[1]
        assert root["agents", "done"][..., 0].tolist() == [[True, True, True, False]] * 2
        root = env.reset(root.copy().set("_reset", torch.tensor([[True], [False]])))
    assert root["agents", "observation"][:, 0, 0].tolist() == [0, 3]
    assert root["agents", "done"][..., 0].tolist() == [[False] * 4, [True] * 3 + [False]]
    assert root["is_init"].flatten().tolist() == [True, False]
    assert root["agents", "is_init"][..., 0].tolist() == [[True] * 4, [False] * 4]


class Drifts(gymnasium.Env):
    """Shows uint8 at first, and halves from its second step on."""

    observation_space = spaces.Box(0, 255, (2,), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.count = 0
        return np.ones(2, np.uint8), {}

    def step(self, action):
        self.count += 1
        return self.seen(), 0.0, False, False, {}

    def seen(self):
        return np.ones(2, np.uint8) if self.count == 1 else np.full(2, 0.5)


class Wider(Drifts):
    """Shows whole numbers in another dtype, which are as good."""

    def seen(self):
        return np.full(2, 200.0 + self.count)


TOLD = r"'observation': expected uint8 as the space says, got float64 from 0.5 to 0.5"


@pytest.mark.parametrize(
    "make",
    [
        lambda kind: GymEnv(kind()),
        lambda kind: SerialEnv(2, lambda: GymEnv(kind())),
        lambda kind: TransformedEnv(GymEnv(kind()), StepCounter()),
    ],
    ids=["one", "serial", "transformed"],
)
def test_observations_in_another_dtype_than_at_the_start_are_refused_or_exact(make):
    with make(Drifts) as env, pytest.raises(TypeError, match=TOLD):
        env.rollout(3)
    with make(Wider) as env:
        seen = env.rollout(3)["next", "observation"]
        assert seen.dtype == torch.uint8
        assert seen.unique().tolist() == [201, 202, 203]


class Elsewhere(CountingEnv):
    """Returns an entry on another device from its second step on."""

    name = "observation"

    def _step(self, tensordict):
        after = super()._step(tensordict)
        if after["observation"].item() > 1:
            after[self.name] = after[self.name].to("meta")
        return after


class RewardsElsewhere(Elsewhere):
    name = "reward"


@pytest.mark.parametrize("kind", [Elsewhere, RewardsElsewhere])
def test_outputs_on_another_device_than_at_the_start_are_refused(kind):
    told = f"step '{kind.name}': expected it on cpu, where the environment lives, got it on meta"
    with pytest.raises(ValueError, match=told):
        kind(5).rollout(4)
    env = kind(5)
    step = env.rand_step(env.reset())
    with pytest.raises(ValueError, match=told):
        env.rand_step(env.next_root(step))
