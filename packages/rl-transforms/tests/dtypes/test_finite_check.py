import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import trajectories
from rl_transforms import FiniteTensorDictCheck


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_is_refused_by_name(bad):
    batch = trajectories([3, 4])
    assert FiniteTensorDictCheck()(batch) is batch
    batch["next", "reward"][2] = bad
    message = r"\('next', 'reward'\) has 1 of 7 numbers NaN or infinite"
    for call in (FiniteTensorDictCheck().forward, FiniteTensorDictCheck().inv):
        with pytest.raises(ValueError, match=message):
            call(batch)


def test_steps_and_resets_are_looked_at():
    bad = TensorDict({"observation": torch.tensor([torch.nan, 1.0])}, [2])
    good = TensorDict({"count": torch.tensor([1, 2])}, [2])
    with pytest.raises(ValueError, match="'observation' has 1 of 2"):
        FiniteTensorDictCheck().reset(bad)
    with pytest.raises(ValueError, match="'observation' has 1 of 2"):
        FiniteTensorDictCheck().step(good, bad)
    assert FiniteTensorDictCheck().step(bad, good) is good
