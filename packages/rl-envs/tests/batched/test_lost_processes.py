"""Environments whose process raises, dies or hangs, and their replacements."""

import multiprocessing
import os
import select
import signal

import pytest
import torch

from rl_envs import GymEnv, SerialEnv, testing
from rl_envs.batched.parallel import ParallelEnv
from rl_workers import WorkerDied, WorkerTimeout, WorkerTraceback

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class StuckEnv(testing.CountingEnv):
    """Never comes back from a step."""

    def _step(self, tensordict):
        select.poll().poll()


def cartpole():
    return GymEnv("CartPole-v1")


def make(count, *arguments, **options):
    return ParallelEnv(
        count, *arguments, **({"mp_start_method": "fork", "timeout_s": 20} | options)
    )


def test_an_exception_in_a_step_arrives_with_its_traceback():
    with make(2, [testing.CountingEnv, lambda: testing.RaisingEnv(2)]) as env:
        with pytest.raises(ZeroDivisionError, match="step 2 of this") as caught:
            env.rollout(3)
        assert isinstance(caught.value.__cause__, WorkerTraceback)
        assert "env worker 1 (process" in str(caught.value.__cause__)
        assert "in _step" in str(caught.value.__cause__)
        assert env.reset()["observation"].tolist() == [[0], [0]]


def test_an_exception_in_a_constructor_leaves_no_process():
    before = multiprocessing.active_children()
    with pytest.raises(Exception, match="NoSuchGame") as caught:
        make(2, [cartpole, lambda: GymEnv("NoSuchGame-v1")])
    assert type(caught.value).__name__ == "NameNotFound"
    assert multiprocessing.active_children() == before


def test_an_environment_that_kills_its_process_is_a_death():
    with make(2, [testing.CountingEnv, lambda: testing.DyingEnv(2)]) as env:
        with pytest.raises(WorkerDied, match=r"env worker 1 .* killed by SIGKILL in 'step'"):
            env.rollout(3)
        with pytest.raises(WorkerDied, match="env worker 1"):
            env.reset()


def test_a_process_killed_between_steps_is_a_death():
    with make(2, cartpole) as env:
        root = env.reset()
        os.kill(env.pool.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="env worker 0"):
            env.step(env.rand_action(root))


def test_a_step_that_takes_too_long_says_who_was_waited_for():
    with make(2, [testing.CountingEnv, StuckEnv], timeout_s=0.2) as env:
        root = env.reset()
        with pytest.raises(WorkerTimeout, match=r"env worker 1 .* 'step' within 0.2 s"):
            env.step(env.rand_action(root))
        env.pool.close(timeout_s=0.1)


class OnceStuckEnv(testing.CountingEnv):
    """Never comes back from its second step, unless a file says that one like it already did so."""

    def __init__(self, marker, ending):
        super().__init__(4)
        self.marker, self.ending = marker, ending

    def _step(self, tensordict):
        after = super()._step(tensordict)
        if int(self._count) == 2 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), self.ending)
        return after


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("base", ["counts", "rows"])
def test_a_process_lost_in_mid_step_can_be_replaced(base, ending, tmp_path):
    once = lambda: OnceStuckEnv(tmp_path / "marker", ending)  # noqa: E731
    counting = lambda: testing.CountingEnv(4)  # noqa: E731
    makers = [counting, counting, once, counting]
    if base == "rows":
        wrap = lambda inner: lambda: SerialEnv(2, inner)  # noqa: E731
        makers = [wrap(inner) for inner in makers]
    limit = 20 if ending == signal.SIGKILL else 0.5
    with make(4, makers, num_processes=2, timeout_s=limit) as env:
        env.reset()
        old = env.pool.pids
        with pytest.raises((WorkerDied, WorkerTimeout), match="env worker 1"):
            env.rollout(3)
        assert env.restart(timeout_s=limit) == [2, 3]
        assert [one == other for one, other in zip(old, env.pool.pids, strict=True)] == [
            True,
            False,
        ]
        with pytest.raises(RuntimeError, match=r"not reset yet: call reset\(\)"):
            env.step(env.rand_action())
        batch = env.rollout(9, break_when_any_done=False)
        seen = batch["next", "observation"].flatten(0, -3).squeeze(-1)
        assert (seen == torch.tensor([1, 2, 3, 4, 1, 2, 3, 4, 1])).all()
        assert env.restart() == []


def test_a_process_killed_while_idle_can_be_replaced_and_seeded(assert_same):
    with make(3, cartpole) as env, SerialEnv(3, cartpole) as serial:
        env.rollout(5, break_when_any_done=False)
        os.kill(env.pool.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="env worker 0"):
            env.reset()
        assert env.restart() == [0]
        batches = []
        for one in (env, serial):
            one.set_seed(3)
            torch.manual_seed(3)
            batches.append(one.rollout(20, break_when_any_done=False))
        assert_same(*batches)


def test_a_replaced_environment_must_be_like_the_old_one(tmp_path):
    def changing():
        if (tmp_path / "made").exists():
            return testing.EpisodeStepEnv()
        (tmp_path / "made").touch()
        return testing.CountingEnv()

    with make(2, [testing.CountingEnv, changing]) as env:
        os.kill(env.pool.pids[1], signal.SIGKILL)
        with pytest.raises(ValueError, match="worker 1 differs from worker 0 in observation_spec"):
            env.restart()


def test_a_closed_environment_is_not_restarted():
    env = make(2, testing.CountingEnv)
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.restart()


@pytest.mark.alone
def test_close_leaves_no_process_and_no_shared_memory():
    processes, memory = multiprocessing.active_children(), set(os.listdir("/dev/shm"))
    descriptors = len(os.listdir("/proc/self/fd"))
    with make(3, cartpole) as env:
        env.rollout(3)
    del env
    assert multiprocessing.active_children() == processes
    assert set(os.listdir("/dev/shm")) <= memory
    assert len(os.listdir("/proc/self/fd")) <= descriptors
