"""States that belong to other environments."""

import pytest

from rl_envs import SerialEnv, TransformedEnv
from rl_envs.testing import EpisodeStepEnv
from rl_layout import step_mdp
from rl_transforms import Compose, RewardSum, StepCounter


def states():
    """Pairs of environments, the second of which has not what the first saves."""
    many = SerialEnv(2, EpisodeStepEnv)
    return {
        "transforms": (TransformedEnv(EpisodeStepEnv(), StepCounter()), EpisodeStepEnv()),
        "no transforms": (EpisodeStepEnv(), TransformedEnv(EpisodeStepEnv(), StepCounter())),
        "several": (many, EpisodeStepEnv()),
        "other transforms": (
            TransformedEnv(EpisodeStepEnv(), RewardSum()),
            TransformedEnv(EpisodeStepEnv(), StepCounter()),
        ),
        "a transform more": (
            TransformedEnv(EpisodeStepEnv(), Compose()),
            TransformedEnv(EpisodeStepEnv(), StepCounter()),
        ),
        "more of them": (SerialEnv(3, EpisodeStepEnv), SerialEnv(2, EpisodeStepEnv)),
        "one inside": (
            SerialEnv(2, [EpisodeStepEnv, lambda: TransformedEnv(EpisodeStepEnv(), Compose())]),
            SerialEnv(2, EpisodeStepEnv),
        ),
    }


@pytest.mark.parametrize("which", states())
def test_a_state_of_another_environment_changes_nothing(which):
    other, env = states()[which]
    other.rollout(4)
    root = step_mdp(env.rollout(3)[..., -1])
    before = env.state_dict()
    expected = env.rollout(3, auto_reset=False, tensordict=root)
    env.load_state_dict(before)
    with pytest.raises(ValueError, match=r"the state is of|expected the state of"):
        env.load_state_dict(other.state_dict())
    found = env.rollout(3, auto_reset=False, tensordict=root)
    assert (found["next"] == expected["next"]).all()
