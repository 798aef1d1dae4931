"""Wrong values returned by `_reset` and `_step` are refused with their names."""

import pytest
import torch
from tensordict import TensorDict

from rl_envs import ParallelEnv, Pendulums, SerialEnv, TransformedEnv
from rl_envs.testing import CountingEnv
from rl_layout.keys import DONE_KEYS
from rl_transforms import StepCounter

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

FAULTS = {
    "nothing": (lambda _: None, TypeError, "_step must return a tensordict .*: got None"),
    "a dictionary": (dict, TypeError, "_step must return a tensordict .*: got dict"),
    "another batch size": (
        lambda after: after.expand(3),
        ValueError,
        r"_step must return batch size \(\): got \(3,\)",
    ),
    "an entry next": (
        lambda after: TensorDict({"next": after}),
        ValueError,
        "_step must return .* at the root: got an entry 'next'",
    ),
    "no flags": (lambda after: after.exclude(*DONE_KEYS), KeyError, "'done' is missing"),
    "no reward": (lambda after: after.exclude("reward"), KeyError, "'reward' is missing"),
    "no observation": (
        lambda after: after.exclude("observation"),
        KeyError,
        "'observation' is missing",
    ),
}


class FaultyEnv(CountingEnv):
    """Counts; what its second step returns has gone through `change`."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def _step(self, tensordict):
        after = super()._step(tensordict)
        return self.change(after) if int(self._count) == 2 else after


@pytest.mark.parametrize(("change", "error", "message"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize(
    "around",
    [
        lambda make: make(),
        lambda make: SerialEnv(2, make),
        lambda make: ParallelEnv(2, make, mp_start_method="fork"),
        lambda make: TransformedEnv(make(), StepCounter()),
    ],
    ids=["alone", "serial", "parallel", "transformed"],
)
def test_a_step_that_an_environment_may_not_return_is_refused_by_name(
    change, error, message, around
):
    with around(lambda: FaultyEnv(change)) as env, pytest.raises(error, match=message):
        env.rollout(3)


@pytest.mark.parametrize(
    ("root", "error", "message"),
    [
        (None, TypeError, "_reset must return a tensordict .*: got None"),
        (TensorDict({}, [2]), ValueError, r"_reset must return batch size \(\): got \(2,\)"),
        (TensorDict({}, []), KeyError, "'observation' is missing"),
    ],
)
def test_a_root_that_an_environment_may_not_return_is_refused_by_name(root, error, message):
    env = CountingEnv()
    env._reset = lambda tensordict: root
    with pytest.raises(error, match=message):
        env.rollout(3)


class Absent(Pendulums):
    """Pendulums whose third step is missing."""

    def _step(self, tensordict):
        self.steps = getattr(self, "steps", 0) + 1
        return None if self.steps == 3 else super()._step(tensordict)


def test_a_later_step_on_tensors_is_looked_at_as_the_first_is():
    env = Absent(3)
    env.check_values = env.waits_for_device = False
    with pytest.raises(TypeError, match="_step must return a tensordict"):
        env.rollout(5, break_when_any_done=False)


def test_an_environment_that_is_not_batch_locked_may_return_more_rows():
    env = CountingEnv()
    env.batch_locked = False
    env._reset = lambda tensordict: TensorDict({"observation": torch.zeros(5, 1)}, [5])
    assert env.reset()["done"].shape == (5, 1)
