"""Means over flat tokens, against a loop over sequences."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_layout import Segments
from rl_value import token_mean

SAMPLES = st.lists(  # of each sequence its group and which of its tokens count
    st.tuples(st.integers(0, 2), st.lists(st.booleans(), min_size=1, max_size=5)),
    min_size=1,
    max_size=7,
)


def by_loop(values, counted, groups, over):
    """The mean as its definition says, from one list a sequence."""
    parts = {}
    for place, (numbers, flags) in enumerate(zip(values, counted, strict=True)):
        part = {"token": 0, "group": groups[place]}.get(over, place)
        parts.setdefault(part, []).extend(n for n, flag in zip(numbers, flags, strict=True) if flag)
    sums = [
        sum(found) / (1 if over == "sequence_sum" else len(found))
        for found in parts.values()
        if found
    ]
    return sum(sums) / len(sums) if sums else 0.0


@pytest.mark.parametrize("over", ["token", "sequence", "sequence_sum", "group"])
@given(samples=SAMPLES, seed=st.integers(0, 99), shape=st.sampled_from(["[N]", "[N, 1]"]))
def test_means_are_those_of_a_loop_over_sequences(over, samples, seed, shape):
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(len(flags), generator=generator) for _, flags in samples]
    flags = [flags for _, flags in samples]
    groups = [group for group, _ in samples]
    wanted = by_loop([v.double().tolist() for v in values], flags, groups, over)
    segments = Segments.from_lengths(torch.tensor([len(v) for v in values]))
    flat = torch.cat(values)
    found = token_mean(
        flat if shape == "[N]" else flat.unsqueeze(-1),
        segments,
        over,
        counted=torch.tensor([flag for one in flags for flag in one]),
        groups=segments.spread(torch.tensor(groups)),
    )
    torch.testing.assert_close(found.item(), wanted, rtol=1e-6, atol=1e-6)
    # the same samples padded, where cells without a token hold NaN
    mask, cells = segments.pad_mask, segments.pad(flat, torch.nan)
    ids = segments.pad(segments.ids, -1)
    again = token_mean(
        cells,
        Segments.from_ids(ids, mask=mask),
        over,
        counted=segments.pad(torch.tensor([flag for one in flags for flag in one])),
        groups=segments.pad(segments.spread(torch.tensor(groups))),
    )
    torch.testing.assert_close(again, found, rtol=1e-6, atol=1e-6)


def test_mean_over_tokens_counts_every_real_one_where_nothing_is_said():
    segments = Segments.from_lengths(torch.tensor([1, 3]))
    assert token_mean(torch.tensor([4.0, 0.0, 0.0, 2.0]), segments) == 1.5


def test_mean_over_groups_needs_groups():
    with pytest.raises(ValueError, match="groups: expected the group of each token"):
        token_mean(torch.ones(2), Segments.from_lengths(torch.tensor([2])), "group")


def test_mean_of_another_name_is_refused():
    with pytest.raises(ValueError, match="over: expected 'token', 'sequence'"):
        token_mean(torch.ones(2), Segments.from_lengths(torch.tensor([2])), "prompt")


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_values_that_would_be_cut_to_whole_numbers_are_refused(dtype):
    segments = Segments.from_lengths(torch.tensor([2]))
    with pytest.raises(TypeError, match=r"values: expected floating point, got torch\."):
        token_mean(torch.ones(2).to(dtype), segments)


def test_counted_tokens_are_flags():
    segments = Segments.from_lengths(torch.tensor([2]))
    with pytest.raises(TypeError, match=r"counted: expected torch\.bool, got torch\.float32"):
        token_mean(torch.ones(2), segments, counted=torch.ones(2))
    with pytest.raises(TypeError, match="counted: expected a tensor, got list"):
        token_mean(torch.ones(2), segments, counted=[True, False])


def test_groups_of_means_are_one_whole_number_for_each_sequence():
    segments = Segments.from_lengths(torch.tensor([2, 1]))
    with pytest.raises(TypeError, match=r"groups: expected whole numbers, got torch\.float32"):
        token_mean(torch.ones(3), segments, "group", groups=torch.rand(3))
    message = "groups: expected one group in each sequence, number 0 has 7 and 8"
    with pytest.raises(ValueError, match=message):
        token_mean(torch.ones(3), segments, "group", groups=torch.tensor([7, 8, 8]))
