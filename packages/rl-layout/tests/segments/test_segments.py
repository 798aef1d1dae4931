from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from rl_layout import EndKind, Segments, keys, reference
from rl_layout.segments.flat_views import bits
from rl_layout.testing import batches, check_segments, environments, trajectories

DTYPES = [torch.float32, torch.bool, torch.bfloat16, torch.uint16, torch.float8_e5m2]
LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=9)


@given(batches())
def test_segments_equal_the_row_by_row_twin(batch):
    segments = Segments.of(batch)
    check_segments(segments)
    found = zip(
        segments.starts.tolist(), segments.lengths.tolist(), segments.kinds.tolist(), strict=True
    )
    assert list(found) == reference.segments(batch)


@given(batches())
def test_ids_and_positions_follow_from_starts_and_lengths(batch):
    segments = Segments.of(batch)
    ids, positions = [-1] * batch.numel(), [0] * batch.numel()
    for number, (start, length, _) in enumerate(reference.segments(batch)):
        ids[start : start + length] = [number] * length
        positions[start : start + length] = range(length)
    assert segments.ids.flatten().tolist() == ids
    assert segments.positions.flatten().tolist() == positions
    assert segments.ids.shape == batch.batch_size


@given(batches(), st.sampled_from(DTYPES))
def test_every_view_comes_back_bitwise(batch, dtype):
    segments = Segments.of(batch)
    values = torch.randint(0, 2, (*batch.batch_size, 3)).to(dtype)
    kept = values.clone()
    bits(kept)[segments.ids < 0] = 0
    same = [segments.scatter(segments.gather(values)), segments.unpad(segments.pad(values))]
    if len(segments):
        same.append(segments.unnest(segments.nest(values)))
    for back in same:
        assert torch.equal(bits(back), bits(kept))


@given(batches())
def test_the_pad_mask_tells_the_real_cells(batch):
    segments = Segments.of(batch)
    padded = segments.pad(torch.ones(batch.batch_size, dtype=torch.bool))
    assert torch.equal(padded, segments.pad_mask)


def test_row_ends_of_a_batch_of_environments_are_cuts():
    batch = environments(2, 5, [3, 4], [EndKind.TERMINATED])
    segments = Segments.of(batch)
    assert segments.starts.tolist() == [0, 3, 5, 9]
    assert segments.lengths.tolist() == [3, 2, 4, 1]
    assert segments.kinds.tolist() == [2, 0, 2, 0]


def test_a_flat_batch_that_begins_in_mid_trajectory_is_one_segment_from_its_first_row():
    segments = Segments.of(trajectories([3, 2], first_step=5))
    assert segments.starts.tolist() == [0, 3]


def test_sums_means_firsts_and_lasts_are_over_real_rows():
    batch = trajectories([2, 3])
    batch.set(keys.MASK, torch.tensor([True, True, True, True, False]))
    segments, reward = Segments.of(batch), batch["next", "reward"]  # 1 2 | 1 2 (3)
    assert_close(segments.sum(reward), torch.tensor([[3.0], [3.0]]))
    assert_close(segments.mean(reward), torch.tensor([[1.5], [1.5]]))
    assert segments.sum(batch["next", "done"]).tolist() == [[1], [0]]
    assert segments.first(reward).flatten().tolist() == [1, 1]
    assert segments.last(reward).flatten().tolist() == [2, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_long_sums_stay_exact(dtype):
    segments = Segments.from_lengths(torch.tensor([1024, 20_000]))
    values = torch.ones(21_024, 1, dtype=dtype)
    assert segments.sum(values).flatten().tolist() == [1024.0, torch.tensor(2e4).to(dtype).item()]


def test_cu_seqlens_are_int32():
    segments = Segments.from_lengths(torch.tensor([2, 3, 1]))
    assert segments.cu_seqlens.dtype == torch.int32
    assert segments.cu_seqlens.tolist() == [0, 2, 5, 6]


@given(LENGTHS)
def test_order_runs_from_the_longest_to_the_shortest(lengths):
    segments = Segments.from_lengths(torch.tensor(lengths))
    assert segments.lengths[segments.order].tolist() == sorted(lengths, reverse=True)


@given(LENGTHS)
def test_one_flag_gives_the_lengths_that_it_was_made_from(lengths):
    batch = trajectories(lengths)
    assert Segments.from_starts(batch["is_init"]).lengths.tolist() == lengths
    assert Segments.from_ends(batch["next", "done"]).lengths.tolist() == lengths


def test_a_flag_of_a_batch_cuts_at_row_ends():
    flag = torch.tensor([[0, 1, 0], [0, 0, 0]], dtype=torch.bool).unsqueeze(-1)
    assert Segments.from_starts(flag).starts.tolist() == [0, 1, 3]
    assert Segments.from_ends(flag).starts.tolist() == [0, 2, 3]
    assert Segments.from_ends(flag).kinds.tolist() == [1, 0, 0]


def test_ids_that_come_back_later_start_another_segment():
    segments = Segments.from_ids(torch.tensor([4, 4, 6, 4]))
    assert segments.lengths.tolist() == [2, 1, 1]


def test_values_keep_their_gradient_through_pad_and_unpad():
    values = torch.arange(5.0, requires_grad=True)
    segments = Segments.from_lengths(torch.tensor([2, 3]))
    (segments.unpad(segments.pad(values) * 2) * values.detach()).sum().backward()
    assert_close(values.grad, 2 * torch.arange(5.0))


def test_a_full_batch_is_nested_without_a_copy():
    values = torch.arange(5.0)
    nested = Segments.from_lengths(torch.tensor([2, 3])).nest(values)
    assert nested.values().data_ptr() == values.data_ptr()


def test_the_repr_counts_segments_and_ends():
    batch = trajectories([2, 3, 4], [EndKind.TRUNCATED, EndKind.TRUNCATED, EndKind.CUT])
    text = repr(Segments.of(batch))
    assert text == "Segments(3 in 9 rows, lengths 2 to 4, 1 cut, 2 truncated)"


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([2, 0], "at least 1"), ([], "at least 1"), ([[2]], "at least 1")],
)
def test_empty_segments_are_refused(lengths, message):
    with pytest.raises(ValueError, match=message):
        Segments.from_lengths(torch.tensor(lengths, dtype=torch.int64))


@pytest.mark.parametrize(
    ("make", "value", "error", "message"),
    [
        (Segments.from_lengths, torch.ones(2), TypeError, "expected integers"),
        (Segments.from_starts, torch.ones(2, 1), TypeError, "expected torch.bool"),
        (Segments.from_ends, torch.ones(2, dtype=torch.bool), ValueError, "unsqueeze"),
        (Segments.from_starts, torch.ones(0, 1, dtype=torch.bool), ValueError, "with rows"),
        (Segments.from_ids, torch.ones(2), TypeError, "signed integers"),
        (Segments.from_ids, torch.ones(0, dtype=torch.int64), ValueError, "one shape"),
    ],
)
def test_wrong_input_says_what_was_expected(make, value, error, message):
    with pytest.raises(error, match=message):
        make(value)


def test_wrong_shapes_of_second_arguments_are_refused():
    ids = torch.ones(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"\[3\] and \[2\]"):
        Segments.from_ids(ids, ids[:2])
    with pytest.raises(ValueError, match=r"one kind per segment, \[3\]: got \[2\]"):
        Segments.from_lengths(ids, ids[:2])


def test_leaves_of_another_batch_are_refused():
    segments = Segments.from_lengths(torch.tensor([2, 3]))
    with pytest.raises(ValueError, match=r"\[5, '...'\]: got \[4\]"):
        segments.gather(torch.zeros(4))
    with pytest.raises(ValueError, match=r"expected padded segments \[2, 3, ...\]"):
        segments.unpad(torch.zeros(2, 2))


def test_more_columns_than_needed_can_be_unpadded():
    segments = Segments.from_lengths(torch.tensor([1, 2]))
    padded = torch.tensor([[5, 0, 0], [6, 7, 0]])
    assert segments.unpad(padded).tolist() == [5, 6, 7]


@pytest.mark.gpu
@given(batches())
def test_cuda_gives_what_the_cpu_gives(batch):
    here, there = Segments.of(batch), Segments.of(batch.to("cuda")).to("cpu")
    assert torch.equal(here.starts, there.starts)
    assert torch.equal(here.lengths, there.lengths)
    assert torch.equal(here.kinds, there.kinds)


@pytest.mark.parametrize(
    ("mask", "error", "match"),
    [
        (torch.ones(4), TypeError, r"'mask': expected torch.bool, got torch.float32"),
        (torch.ones(3, dtype=torch.bool), ValueError, r"'mask': expected shape \[4\], got \[3\]"),
        (torch.ones(4, 1, dtype=torch.bool), ValueError, r"expected shape \[4\], got \[4, 1\]"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask, error, match):
    with pytest.raises(error, match=match):
        Segments.from_ids(torch.zeros(4, dtype=torch.int64), mask=mask)
    with pytest.raises(error, match=match):
        Segments.from_ends(torch.zeros(4, 1, dtype=torch.bool), mask=mask)
