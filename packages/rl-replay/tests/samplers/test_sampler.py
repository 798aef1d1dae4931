import pytest
import torch

from rl_replay import RandomSampler, SliceSampler


@pytest.mark.parametrize("replacement", [None, 0, torch.zeros(2)])
@pytest.mark.parametrize("kind", [RandomSampler, SliceSampler])
def test_a_replacement_that_is_no_flag_is_named(kind, replacement):
    with pytest.raises(TypeError, match="replacement: expected True or False, got"):
        kind(replacement=replacement)
