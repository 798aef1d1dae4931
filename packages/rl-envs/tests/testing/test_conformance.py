import pytest
import torch

from rl_envs.testing import CountingEnv, EpisodeStepEnv
from rl_envs.testing.conformance import check_conformance


class Unseeded(CountingEnv):
    calls = 0

    def _step(self, tensordict):
        Unseeded.calls += 1
        return super()._step(tensordict).set("reward", torch.tensor([float(Unseeded.calls)]))


class ResetsAll(EpisodeStepEnv):
    def _reset(self, tensordict):
        fresh = super()._reset(None)
        # a mask of rows that are done is the flag of the step itself, which is refused
        if tensordict is not None and not tensordict["done"].any():
            tensordict["_reset"].fill_(True)
        return fresh


class ForgetsTheMask(EpisodeStepEnv):
    """Starts every row anew where one is to be reset."""

    def _reset(self, tensordict):
        return super()._reset(None)


class Forgets(EpisodeStepEnv):
    def _set_state(self, state):
        """Nothing is put back."""


class NeverCloses(CountingEnv):
    def close(self):
        """Nothing is closed."""


@pytest.mark.parametrize(
    ("make", "promise"),
    [
        (Unseeded, "the same seed gives the same rollout, .*reward"),
        (lambda: ResetsAll(batch_size=(3,)), "a partial reset keeps the other rows"),
        (lambda: ForgetsTheMask(batch_size=(3,)), "leaves the state of the other rows alone, obs"),
        (Forgets, "a loaded state continues as the saved one"),
        (NeverCloses, "a closed environment is refused"),
    ],
)
def test_each_broken_promise_is_named(make, promise):
    with pytest.raises(AssertionError, match=promise):
        check_conformance(make)


def test_an_environment_need_not_save_its_state():
    class Unsaved(CountingEnv):
        def _get_state(self):
            raise NotImplementedError

    check_conformance(Unsaved)
