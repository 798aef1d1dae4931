import pytest

from rl_envs import EnvCreator, ParallelEnv, TransformedEnv
from rl_envs.testing import CountingEnv
from rl_transforms import StepCounter, VecNorm


def normed(max_steps=5):
    return TransformedEnv(CountingEnv(max_steps), VecNorm(decay=1.0)).append_transform(
        StepCounter()
    )


def counted(env):
    return env.transform[0].statistics()[0]


def test_environments_share_their_statistics():
    make = EnvCreator(normed)
    one, other = make(), make.make_variant(max_steps=2)()
    one.rollout(3)
    assert counted(one) == counted(other) == 4
    other.rollout(9)
    assert counted(one) == counted(other) == 7
    apart = EnvCreator(normed, share_memory=False)()
    apart.rollout(3)
    assert counted(apart) == 4


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_environments_of_other_processes_too(method):
    make = EnvCreator(lambda: TransformedEnv(CountingEnv(5), VecNorm(decay=1.0)))
    here = make()
    with ParallelEnv(2, make, mp_start_method=method) as env:
        env.rollout(3)
        assert counted(here) == 8
        assert [norm.statistics()[0] for norm in (one.transform[0] for one in env)] == [8, 8]


def test_arguments():
    make = EnvCreator(CountingEnv, {"max_steps": 3}, batch_size=(2,))
    assert make().rollout(9).shape == (2, 3)
    assert make(max_steps=1).rollout(9).shape == (2, 1)
    with pytest.raises(TypeError, match=r"\['max_steps'\] in create_env_kwargs and as an argument"):
        EnvCreator(CountingEnv, {"max_steps": 3}, max_steps=4)
    with pytest.raises(TypeError, match="create_env_fn"):
        EnvCreator(CountingEnv())


def test_another_number_of_norms_is_refused():
    calls = iter([normed, CountingEnv])
    make = EnvCreator(lambda: next(calls)())
    with pytest.raises(ValueError, match=r"expected 1 VecNorm, .* got 0"):
        make()
