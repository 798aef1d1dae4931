"""Environments of POPGym: spaces of all its kinds."""

import pytest

from rl_envs import GymEnv, check_env_specs
from rl_layout import check_layout

popgym = pytest.importorskip("popgym.envs", reason="needs the extra popgym")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", popgym.ALL, ids=lambda kind: kind.__name__)
def test_an_environment_obeys_the_contract(kind):
    env = GymEnv(kind())
    check_env_specs(env)
    batch = env.rollout(30, break_when_any_done=False)
    assert batch.shape == (30,)
    assert check_layout(batch).ok
