import pytest
import torch

from rl_layout.testing import trajectories
from rl_replay import (
    ConsumingSampler,
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StalenessAwareSampler,
    TensorDictReplayBuffer,
)

WEIGHTS = {"alpha": 0.7, "beta": 0.5}
OF_ROWS = {**WEIGHTS, "first": [0], "counts": [0]}


@pytest.mark.parametrize("replacement", [None, 0, torch.zeros(2)])
@pytest.mark.parametrize("kind", [RandomSampler, SliceSampler])
def test_a_replacement_that_is_no_flag_is_named(kind, replacement):
    with pytest.raises(TypeError, match="replacement: expected True or False, got"):
        kind(replacement=replacement)


@pytest.mark.parametrize(
    "sampler", [SamplerWithoutReplacement(), SliceSamplerWithoutReplacement(slice_len=2)]
)
def test_an_epoch_begins_anew_in_the_buffer_that_a_sampler_is_moved_to(sampler):
    one, two = (TensorDictReplayBuffer(storage=LazyTensorStorage(12)) for _ in range(2))
    one.set_sampler(sampler)
    for buffer, first_id in ((one, 1), (two, 11)):
        buffer.extend(trajectories([2] * 6, first_id=first_id))
    one.sample(4)
    two.set_sampler(sampler)
    ids = two.sample(12)["collector", "traj_ids"]
    assert sorted(ids.tolist()) == sorted([*range(11, 17)] * 2)


@pytest.mark.parametrize(
    ("sampler", "state", "message"),
    [
        (SamplerWithoutReplacement(), WEIGHTS, r"lacks \['order', 'place', 'seen', 'ran_out'\]"),
        (SamplerWithoutReplacement(), {"order": [1], "place": 0}, r"lacks \['seen', 'ran_out'\]"),
        (SliceSamplerWithoutReplacement(slice_len=2), {}, r"lacks \['slots', 'born', 'ran_out'\]"),
        (ConsumingSampler(3), WEIGHTS, r"lacks \['rows', 'drawn', 'next', 'ran_out'\]"),
        (StalenessAwareSampler(), WEIGHTS, r"lacks .*, and has \['alpha', 'beta'\]"),
        (PrioritizedSampler(9, 1.0, 1.0), {"order": [1]}, r"lacks \['alpha', 'beta'\]"),
        (PrioritizedSampler(9, 1.0, 1.0), OF_ROWS, r"lacks \['priorities', 'highest'\]"),
        (
            PrioritizedSliceSampler(9, 1.0, 1.0, slice_len=2),
            OF_ROWS,
            r"this is no state of PrioritizedSliceSampler: it lacks \['priorities', 'highest'\]",
        ),
        (SamplerEnsemble(RandomSampler()), WEIGHTS, r"lacks \['p', 'num_buffer_sampled'\]"),
        (RandomSampler(), WEIGHTS, "a RandomSampler has no state, and .*alpha"),
        (SliceSampler(slice_len=2), WEIGHTS, "a SliceSampler has no state"),
    ],
)
def test_a_state_of_another_sampler_is_refused_and_changes_nothing(sampler, state, message):
    before = repr(sampler.state_dict())
    with pytest.raises(ValueError, match=message):
        sampler.load_state_dict(state)
    assert repr(sampler.state_dict()) == before


def test_a_state_that_is_no_mapping_is_refused():
    for sampler in (SamplerWithoutReplacement(), PrioritizedSampler(9, 1.0, 1.0)):
        with pytest.raises(TypeError, match=r"state: expected what .* returned, got 3 \(int\)"):
            sampler.load_state_dict(3)


class Counted(RandomSampler):
    """A sampler of its own state that calls its base."""

    seen = 0

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.seen = state["seen"]


def test_a_sampler_with_a_state_of_its_own_may_pass_it_to_its_base():
    sampler = Counted()
    sampler.load_state_dict({"seen": 3})
    assert sampler.seen == 3
