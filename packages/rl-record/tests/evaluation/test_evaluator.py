import contextlib
import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict.nn import InteractionType, TensorDictModule
from tensordict.nn.probabilistic import interaction_type
from torch import nn

from rl_envs import GymEnv, ParallelEnv, SerialEnv, TransformedEnv
from rl_envs.testing import EpisodeStepEnv, GroupsEnv
from rl_record import BackgroundEvaluator, Evaluation, Evaluator, JSONLLogger, read_run
from rl_record.evaluation.episode_tally import EpisodeTally
from rl_record.evaluation.evaluation import interquartile_mean
from rl_transforms import StepCounter, VecNorm
from rl_workers import WorkerDied


class Right(nn.Module):
    """Always takes the second of two actions, and records its inputs."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seen = []

    def forward(self, observation):
        self.seen.append((self.training, interaction_type()))
        return observation.new_tensor([0, 1]).bool().expand(*observation.shape[:-1], 2)


def acting(network=None):
    return TensorDictModule(network or Right(), ["observation"], ["action"])


def by_hand(rewards, done, real, num_episodes):
    """Returns and lengths of the first episodes of each row, step by step."""
    found = []
    for row in range(len(rewards)):
        total, length, ended = 0.0, 0, 0
        for reward, end, counts in zip(rewards[row], done[row], real[row], strict=True):
            if not counts or ended == num_episodes:
                continue
            total, length = total + reward, length + 1
            if end:
                found.append((total, length, row))
                total, length, ended = 0.0, 0, ended + 1
    return found


@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_first_episodes_of_each_row_are_counted_whatever_the_chunks(data, rows, num, seed):
    rng = np.random.default_rng(seed)
    length = data.draw(st.integers(1, 30))
    rewards = rng.integers(-9, 9, (rows, length)).astype(float)
    done, real = rng.random((rows, length)) < 0.3, rng.random((rows, length)) < 0.9
    tally, begin = EpisodeTally(rows, num), 0
    while begin < length:
        end = begin + data.draw(st.integers(1, 9))
        tally.add(*(column[:, begin:end] for column in (rewards, done, real)))
        begin = end
    found, expected = tally.result(), by_hand(rewards, done, real, num)
    assert list(zip(found.returns, found.lengths, found.rows, strict=True)) == expected
    assert tally.is_complete == (len(expected) == rows * num)
    assert found.num_unfinished == sum((found.rows == row).sum() < num for row in range(rows))


def test_mean_does_not_favour_short_episodes():
    # half of the episodes take 1 step and are worth 1, half take 200: the mean is 10,050.5
    env = EpisodeStepEnv([(1, "terminated"), (200, "terminated")], batch_size=[2])
    found = Evaluator(env, env.rand_step, num_episodes=3).evaluate()
    assert found.returns.tolist() == [1.0] * 3 + [20100.0] * 3
    assert found.rows.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_vectors_play_their_episodes_row_by_row(make):
    makers = [
        lambda: EpisodeStepEnv([(3, "truncated")]),
        lambda: EpisodeStepEnv([(5, "truncated")]),
    ]
    options = {"mp_start_method": "fork"} if make is ParallelEnv else {}
    env = make(2, makers, **options)
    found = Evaluator(env, acting(), num_episodes=2).evaluate()
    env.close()
    assert found.lengths.tolist() == [3, 3, 5, 5]


def test_evaluation_that_is_cut_reports_unfinished_episodes():
    env = EpisodeStepEnv([(4, "terminated")], batch_size=[3])
    found = Evaluator(env, acting(), num_episodes=5, max_steps=10).evaluate()
    assert (len(found.returns), found.num_unfinished) == (6, 3)
    assert "3 unfinished" in repr(found)


@pytest.mark.parametrize("deterministic", [True, False])
def test_modes_and_random_numbers_of_training_stay(deterministic):
    policy = acting()
    policy.module.train()
    before = torch.get_rng_state()
    env = EpisodeStepEnv()
    Evaluator(env, policy, 1, deterministic=deterministic).evaluate()
    kind = InteractionType.DETERMINISTIC if deterministic else InteractionType.RANDOM
    assert set(policy.module.seen) == {(False, kind)}
    assert policy.module.training
    assert torch.equal(torch.get_rng_state(), before)


class NoisyRewards(EpisodeStepEnv):
    def _finish(self, after, terminated, truncated):
        super()._finish(after, terminated, truncated)
        after.set("reward", torch.rand(1))


def test_without_a_seed_no_evaluation_draws_what_another_drew():
    before = torch.get_rng_state()
    evaluator = Evaluator(NoisyRewards(), acting(), 2, seed=None)
    found = [total for _ in range(3) for total in evaluator.evaluate().returns.tolist()]
    other = BackgroundEvaluator(NoisyRewards, acting(), 2, seed=None, start_method="fork")
    with contextlib.closing(other):
        for _ in range(3):
            other.trigger_eval()
            found += other.wait().returns.tolist()
    assert len(set(found[:6])) == len(set(found[6:])) == 6
    assert torch.equal(torch.get_rng_state(), before)


def test_one_seed_gives_the_same_episodes_each_time():
    env = GymEnv("CartPole-v1")
    evaluator = Evaluator(env, env.rand_step, num_episodes=3, seed=5)
    first, second = evaluator.evaluate(), evaluator.evaluate()
    assert first.returns.tolist() == second.returns.tolist()
    assert len(set(first.returns)) > 1


def test_running_statistics_are_refused_and_fixed_ones_taken():
    norm = VecNorm()
    env = TransformedEnv(EpisodeStepEnv(), norm)
    with pytest.raises(ValueError, match=r"VecNorm.*to_observation_norm\(\)"):
        Evaluator(env, acting())
    env.rollout(9, break_when_any_done=False)
    before = norm.state_dict()
    make = lambda: TransformedEnv(EpisodeStepEnv(), norm.to_observation_norm())  # noqa: E731
    assert Evaluator(make, acting(), 2).evaluate().lengths.tolist() == [3, 2]
    assert str(norm.state_dict()) == str(before)
    members = SerialEnv(2, lambda: TransformedEnv(EpisodeStepEnv(), VecNorm()))
    with pytest.raises(ValueError, match="VecNorm"):
        Evaluator(TransformedEnv(members, StepCounter()), acting())
    with pytest.raises(ValueError, match="VecNorm"):
        Evaluator(lambda: TransformedEnv(EpisodeStepEnv(), VecNorm()), acting()).evaluate()


def test_environment_that_was_made_is_closed_after_an_error():
    made = []

    def make():
        made.append(EpisodeStepEnv())
        return made[0]

    def fail(root):
        raise OSError("no action")

    with pytest.raises(OSError, match="no action"):
        Evaluator(make, fail).evaluate()
    assert made[0].is_closed


def test_evaluation_is_logged(tmp_path):
    with JSONLLogger("run", tmp_path) as logger:
        Evaluator(EpisodeStepEnv(), acting(), 2, logger=logger, name="test").evaluate(step=7)
    run = read_run(tmp_path / "run")
    assert run["test/return"].steps.tolist() == [7]
    assert run["test/return"].values.tolist() == [4.5]  # 1 + 2 + 3 and 1 + 2
    assert set(run) == {
        f"test/{n}"
        for n in ("return", "iqm", "iqm_low", "iqm_high", "length", "episodes", "unfinished")
    }


def test_interquartile_mean_by_hand():
    assert interquartile_mean(np.array([100.0, 1, 2, 3, -50])) == 2
    assert interquartile_mean(np.array([7.0])) == 7
    low, high = Evaluation(np.arange(100.0), np.ones(100), np.zeros(100), 0).interval
    assert low < 49.5 < high
    # the deviation of the mean of 50 of these is near 29 / 100 ** 0.5, as for the mean of all
    assert 6 < high - low < 25


def test_evaluation_in_the_background_plays_the_weights_of_its_start(tmp_path):
    policy = acting(nn.Sequential(nn.Linear(2, 2), Sharp()))
    with JSONLLogger("run", tmp_path) as logger:
        evaluator = BackgroundEvaluator(
            Counted, policy, 2, logger=logger, start_method="fork", seed=None
        )
        assert evaluator.poll() is None  # none was begun
        for number in (1.0, 2.0):
            nn.init.constant_(policy.module[0].bias, number)
            evaluator.trigger_eval(step=int(number))
            nn.init.constant_(policy.module[0].bias, 9.0)
            found = evaluator.wait()
            assert found.returns.tolist() == [3 * number, 3 * number]
        evaluator.close()
    assert read_run(tmp_path / "run")["eval/return"].values.tolist() == [3.0, 6.0]


class Fragile(nn.Module):
    """Ends its process if the weight is 1, raises if it is 2."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, observation):
        if self.weight == 1:
            os._exit(3)
        if self.weight == 2:
            raise OSError("no action")
        return torch.tensor([0, 1]).bool()

    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        assert state == {"version": 1}


def test_process_that_has_ended_is_replaced_for_the_next_evaluation():
    policy = TensorDictModule(Fragile(), ["observation"], ["action"])
    evaluator = BackgroundEvaluator(EpisodeStepEnv, policy, 1, start_method="fork")
    for weight, error in ((1.0, WorkerDied), (0.0, None), (2.0, OSError), (0.0, None)):
        nn.init.constant_(policy.module.weight, weight)
        evaluator.trigger_eval()
        if error is None:
            assert evaluator.wait().lengths.tolist() == [3]
        else:
            with pytest.raises(error):
                evaluator.wait()
    (worker,) = multiprocessing.active_children()
    pid = worker.pid
    os.kill(pid, signal.SIGKILL)  # between two evaluations
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    evaluator.trigger_eval()
    assert evaluator.wait().lengths.tolist() == [3]
    evaluator.close()


class Sharp(nn.Module):
    def forward(self, scores):
        return scores


class Counted(EpisodeStepEnv):
    """Pays the first number of the action for each of three steps."""

    def __init__(self):
        super().__init__([(3, "terminated")])
        from rl_specs import Unbounded

        self.action_spec = Unbounded((2,))

    def _reset(self, tensordict, **kwargs):
        return super()._reset(tensordict, **kwargs).zero_()

    def _step(self, tensordict):
        after = super()._step(tensordict)
        after["observation"] = torch.zeros(2)
        after["reward"] = tensordict["action"][:1]
        return after


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Evaluator(EpisodeStepEnv(), acting(), 0), ValueError, "num_episodes: .* least 1"),
        (lambda: Evaluator("CartPole-v1", acting()), TypeError, "env: expected an environment"),
        (lambda: Evaluator(list, acting()).evaluate(), TypeError, "a function that makes an env"),
        (
            lambda: Evaluator(GroupsEnv(), GroupsEnv().rand_step).evaluate(),
            KeyError,
            "no reward 'reward': it has",
        ),
        (
            lambda: BackgroundEvaluator(EpisodeStepEnv, list),
            TypeError,
            "policy: expected a module",
        ),
        (
            lambda: BackgroundEvaluator(EpisodeStepEnv(), acting()),
            TypeError,
            "env: expected a function",
        ),
    ],
)
def test_wrong_arguments_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
