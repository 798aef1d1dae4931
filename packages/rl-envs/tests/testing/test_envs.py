import multiprocessing
import signal

import pytest

from rl_envs.testing import (
    CountingEnv,
    DyingEnv,
    EpisodeStepEnv,
    GroupsEnv,
    MultiAgentEnv,
    NestedEnv,
    RaisingEnv,
    check_conformance,
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CountingEnv(1),
        lambda: CountingEnv(3, (2,), "truncated"),
        lambda: EpisodeStepEnv(batch_size=(2, 3)),
        lambda: NestedEnv(batch_size=(2,)),
        GroupsEnv,
        lambda: MultiAgentEnv(3, batch_size=(2,)),
        lambda: RaisingEnv(at_step=99),
    ],
    ids=["first step", "counting", "proved", "nested", "groups", "agents", "raising"],
)
def test_every_one_of_them_keeps_every_promise(make):
    check_conformance(make)


def test_steps_of_a_batch_all_differ():
    env = EpisodeStepEnv([(2, "terminated"), (3, "truncated")], batch_size=(3,), first_episode=10)
    seen = env.rollout(11, break_when_any_done=False)["observation"].flatten(0, 1)
    assert len(seen.unique(dim=0)) == 33
    assert seen[:, 0].min() == 10


def test_an_episode_can_end_on_its_first_step():
    batch = CountingEnv(1).rollout(3, break_when_any_done=False)
    assert batch["next", "terminated"].all()
    assert not batch["observation"].any()


def test_raising_env_raises():
    with pytest.raises(ZeroDivisionError, match="step 2 of this environment always fails"):
        RaisingEnv(at_step=2).rollout(5)


def test_dying_env_dies():
    process = multiprocessing.get_context("fork").Process(target=lambda: DyingEnv(2).rollout(5))
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
