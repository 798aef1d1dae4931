"""An environment on tensors alone: right, resumable, and never waited for."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from rl_envs import GymEnv, TransformedEnv, policy_plan
from rl_envs.pendulums import Pendulums
from rl_envs.rollouts import RolloutPlayer, RolloutRequest
from rl_envs.testing import CountingEnv, EpisodeStepEnv, MultiAgentEnv, check_conformance
from rl_transforms import Compose, InitTracker, RewardSum, StepCounter

ENDINGS = [(2, "terminated"), (3, "truncated"), (1, "terminated")]


def plays_tensors(env, request, policy=None, root=None):
    return RolloutPlayer(env, policy).explain(request, root).startswith("on tensors")


def policy():
    return TensorDictModule(torch.nn.Linear(3, 1), ["observation"], ["action"])


def play_unseen(env, *policies):
    """Play with tensors that have no values, so that whatever looks at one raises."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return env.rollout(11, *policies, break_when_any_done=False)


def test_every_promise_is_kept():
    check_conformance(lambda: Pendulums(3, max_steps=7))


def test_pendulums_move_as_the_one_of_gymnasium():
    plain = gymnasium.make("Pendulum-v1").unwrapped
    env = Pendulums(3)
    env.reset()
    state = env.state_dict()["state"]
    start = state["angle"], state["speed"]
    torques = torch.empty(9, 3, 1).uniform_(-3, 3)
    torques[0] = 2.0
    steps = [
        env.step(TensorDict({"action": torque.clamp(-2, 2)}, [3]))["next"] for torque in torques
    ]
    for row in range(3):
        plain.reset()
        plain.state = np.array([float(part[row]) for part in start])
        for step, torque in zip(steps, torques, strict=True):
            seen, reward, *_ = plain.step(torque[row].numpy())
            # Gymnasium computes in double precision
            assert np.allclose(step["observation"][row].numpy(), seen, atol=1e-4)
            assert math.isclose(step["reward"][row], reward, rel_tol=1e-4, abs_tol=1e-4)


def test_rows_are_truncated_and_begin_anew():
    batch = Pendulums(5, max_steps=4).rollout(10, break_when_any_done=False)
    over = batch["next", "truncated"].squeeze(-1)
    assert over.tolist() == [[t in (3, 7) for t in range(10)]] * 5
    assert not batch["next", "terminated"].any()
    after, seen = batch["next", "observation"][:, :-1], batch["observation"][:, 1:]
    same = (after == seen).all(-1)
    assert torch.equal(same, ~over[:, :-1])
    assert (seen[~same][:, 2].abs() <= 1).all()  # an episode begins slowly


def test_single_rows_are_reset_by_a_mask():
    env = Pendulums(3)
    root = env.step(env.rand_action(env.reset()))["next"].exclude("reward")
    mask = torch.tensor([[False], [True], [False]])
    fresh = env.reset(root.copy().set("_reset", mask))
    same = (fresh["observation"] == root["observation"]).all(-1)
    assert same.tolist() == [True, False, True]
    assert env.state_dict()["state"]["count"].flatten().tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "around",
    [None, lambda: Compose(InitTracker(), StepCounter(max_steps=3), RewardSum())],
    ids=["bare", "transformed"],
)
@pytest.mark.parametrize("is_random", [True, False], ids=["random", "policy"])
def test_steps_read_no_value_on_the_host(around, is_random):
    env = Pendulums(5, max_steps=4)
    if around is not None:
        env = TransformedEnv(env, around())
    plan = policy_plan(policy())
    env.rollout(2, plan, break_when_any_done=False)  # the first call compares it with its policy
    batch = play_unseen(env, *([] if is_random else [plan]))
    assert not plan.stats()["fallback"]
    assert batch.shape == (5, 11)
    assert batch["next", "done"].shape == (5, 11, 1)


def scripted():
    env = EpisodeStepEnv(ENDINGS, batch_size=(4,))
    env.waits_for_device = env.check_values = False
    return env


def choose(seen):
    lots = torch.rand(len(seen), 2)
    return lots == lots.max(-1, keepdim=True).values, lots


@pytest.mark.parametrize(
    ("make", "act"),
    [
        (lambda: Pendulums(4, max_steps=3), None),
        (lambda: Pendulums(4, max_steps=3), policy()),
        (scripted, None),
        (scripted, TensorDictModule(choose, ["observation"], ["action", "lots"])),
    ],
    ids=["pendulums", "a policy", "scripted", "a policy that draws"],
)
@pytest.mark.parametrize("from_root", [True, False])
def test_the_fast_path_does_what_the_slow_one_does(make, act, from_root):
    batches = []
    for callback in (None, lambda env, step: None):  # which needs the slow one
        env = make()
        env.set_seed(5)
        torch.manual_seed(3)
        request = RolloutRequest(11, callback, break_when_any_done=False)
        assert plays_tensors(env, request, act) == (callback is None)
        root = {"auto_reset": False, "tensordict": env.reset()} if from_root else {}
        batch = env.rollout(
            11, act, callback, break_when_any_done=False, set_truncated=True, **root
        )
        batches.append(batch)
    fast, slow = batches
    assert fast.names == slow.names
    assert fast["next", "done"].sum() > 12
    assert set(fast.keys(True, True)) == set(slow.keys(True, True))
    assert (fast == slow).all()


def test_partial_reset_ignores_values_of_rows_that_continue():
    class Careless(Pendulums):
        def _reset(self, tensordict, **kwargs):
            fresh = super()._reset(tensordict, **kwargs)
            if tensordict is None:
                return fresh
            seen = torch.where(tensordict["_reset"], fresh["observation"], 9.0)
            return fresh.set("observation", seen)

    batch = Careless(4, max_steps=3).rollout(7, break_when_any_done=False)
    after, seen = batch["next", "observation"][:, :-1], batch["observation"][:, 1:]
    assert torch.equal((after == seen).all(-1), ~batch["next", "done"][:, :-1].squeeze(-1))


def test_device_steps_leaves_unsupported_policies_to_the_plain_loop():
    request = RolloutRequest(5, break_when_any_done=False)
    carries = TensorDictModule(lambda o: (o, o), ["observation"], ["action", ("next", "state")])
    assert not plays_tensors(Pendulums(3), request, carries)
    assert not plays_tensors(Pendulums(3), request, print)
    assert not plays_tensors(MultiAgentEnv(3), request)
    env = Pendulums(3)
    root = env.reset()
    assert plays_tensors(env, request, root=root)
    assert not plays_tensors(env, request, root=root.set("more", torch.zeros(3)))


def test_wrong_actions_are_refused():
    env = Pendulums(3)
    short = TensorDictModule(lambda seen: seen[:, 0], ["observation"], ["action"])
    with pytest.raises(ValueError, match=r"expected shape \(3, 1\), got \(3,\)"):
        env.rollout(5, short, break_when_any_done=False)
    blind = TensorDictModule(lambda seen: seen, ["pixels"], ["action"])
    with pytest.raises(KeyError, match=r"reads \['pixels'\], which the environment lacks"):
        env.rollout(5, blind, break_when_any_done=False)


def test_looking_at_a_value_is_noticed():
    class Looking(Pendulums):
        def _step(self, tensordict):
            after = super()._step(tensordict)
            assert not after["reward"].isnan().any()
            return after

    with pytest.raises(DataDependentOutputException):
        play_unseen(Looking(5))
    with pytest.raises(DataDependentOutputException):
        play_unseen(CountingEnv(3, (5,)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: EpisodeStepEnv(ENDINGS, batch_size=(4,)),
        lambda: MultiAgentEnv(3, ENDINGS, batch_size=(4,)),
    ],
    ids=["plain", "agents"],
)
def test_batches_equal_those_of_a_loop_that_waits(make):
    batches = []
    for waits in (True, False):
        env = make()
        env.waits_for_device = env.check_values = waits
        env = TransformedEnv(env, Compose(InitTracker(), StepCounter(max_steps=2)))
        torch.manual_seed(3)
        batches.append(env.rollout(12, break_when_any_done=False))
    assert batches[0]["next", "done"].sum() > 12
    assert set(batches[0].keys(True, True)) == set(batches[1].keys(True, True))
    assert (batches[0] == batches[1]).all()


def test_a_saved_state_goes_on_bit_for_bit():
    env, other = Pendulums(3, max_steps=4), Pendulums(3, max_steps=4)
    env.set_seed(3)
    first = env.rollout(6, break_when_any_done=False)
    other.load_state_dict(env.state_dict())
    root = env.next_root(first[:, -1])
    batches = []
    for one in (env, other):
        torch.manual_seed(5)
        batches.append(one.rollout(9, auto_reset=False, tensordict=root, break_when_any_done=False))
    assert (batches[0] == batches[1]).all()


def test_an_ordinary_environment_still_waits():
    assert GymEnv("CartPole-v1").waits_for_device
    root = CountingEnv().reset()
    env = CountingEnv()
    env.reset()
    assert env.maybe_reset(root) is root


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_steps_do_not_synchronise_with_the_device():
    env = Pendulums(64, max_steps=4, device="cuda")
    actor = policy_plan(policy().to("cuda"))
    env.rollout(5, actor, break_when_any_done=False)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = env.rollout(11, actor, break_when_any_done=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert batch["next", "truncated"].sum() == 2 * 64
