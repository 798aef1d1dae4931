from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import EndKind, Segments, check_layout
from rl_layout.testing import environments, flat_batches, trajectories
from rl_replay import LazyTensorStorage, ListStorage, ReplayBuffer
from rl_replay.samplers import SliceSampler, SliceSamplerWithoutReplacement
from rl_replay.samplers.slice_layout import Slices, mark_slices


def stored(*batches, capacity=200, **options):
    storage = LazyTensorStorage(capacity, **options)
    for batch in batches:
        storage.extend(batch)
    return storage


def seeded(sampler, seed=0):
    sampler.generator = torch.Generator().manual_seed(seed)
    return sampler


def drawn(storage, sampler, batch_size):
    """A sample with its markers, and where its slices lie."""
    numbers, info = sampler.sample(storage, batch_size)
    sample = storage.read(storage.ring.positions(numbers))
    mark_slices(sample, info["slices"], sampler.truncated_key)
    return sample, info["slices"]


def slices_of(storage, sampler, batch_size):
    numbers, info = sampler.sample(storage, batch_size)
    return [tuple(part) for part in np.split(numbers.numpy(), info["slices"].starts[1:])]


LAYOUTS = st.one_of(
    st.lists(flat_batches(), min_size=1, max_size=4),
    st.builds(
        lambda envs, steps, lengths, kinds: [environments(envs, steps, lengths, kinds)],
        *(st.integers(1, 4), st.integers(1, 12)),
        st.lists(st.integers(1, 6), min_size=1, max_size=3),
        st.lists(st.sampled_from(list(EndKind)), min_size=1, max_size=3),
    ),
)


@given(
    LAYOUTS,
    st.integers(1, 7),
    st.sampled_from(
        [
            {},
            {"by": "step"},
            {"span": True},
            {"by": "step", "span": True},
            {"pad_output": True},
            {"span": (0, 1)},
        ]
    ),
    st.integers(9, 60),
)
@settings(max_examples=50, deadline=None)
def test_samples_have_a_clean_layout_and_slices_of_one_trajectory_each(
    batches, length, options, capacity
):
    storage = LazyTensorStorage(capacity)
    for number, batch in enumerate(batches):
        rows = batch.reshape(-1)[-capacity:]
        rows["collector", "traj_ids"] += 10_000 * number  # ids are never reused
        storage.extend(rows)
    if options.get("span") == (0, 1) and length == 1:
        return
    sample, slices = drawn(storage, SliceSampler(num_slices=5, **options), 5 * length)
    report = check_layout(sample)
    assert report.ok, str(report)
    segments = Segments.of(sample)
    assert segments.starts.tolist() == slices.starts.tolist()
    assert segments.lengths.tolist() == slices.lengths.tolist()
    assert EndKind.CUT not in segments.kinds.tolist()
    for start, count in zip(slices.starts, slices.lengths, strict=True):
        part = sample[start : start + count]
        assert len(part["collector", "traj_ids"].unique()) == 1
        assert (part["collector", "traj_step"].diff() == 1).all()
        assert part["is_init"].flatten().tolist() == [True] + [False] * (count - 1)
        assert 1 <= count <= length
    # what was stored stays as it was
    again = storage.read(torch.arange(len(storage)))
    assert not again["next", "truncated"][~again["next", "done"]].any()


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"num_slices": 3}, [4] * 3),
        ({"slice_len": 3}, [3] * 4),
        ({"num_slices": 2, "slice_len": 6}, [6] * 2),
    ],
)
def test_batch_is_cut_by_number_by_length_or_by_both(options, wanted):
    storage = stored(trajectories([9, 9]))
    assert list(map(len, slices_of(storage, SliceSampler(**options), 12))) == wanted


def test_slice_shape_that_does_not_fit_the_batch_is_an_error():
    storage = stored(trajectories([9]))
    with pytest.raises(ValueError, match=r"multiple of num_slices: got 10 and 3. Use 9"):
        SliceSampler(num_slices=3).sample(storage, 10)
    with pytest.raises(ValueError, match=r"multiple of slice_len: got 2 and 4. Use 4"):
        SliceSampler(slice_len=4).sample(storage, 2)
    with pytest.raises(ValueError, match="3 slices of 5 rows make a batch of 15, not of 12"):
        SliceSampler(num_slices=3, slice_len=5).sample(storage, 12)
    with pytest.raises(TypeError, match="needs num_slices, slice_len, or both"):
        SliceSampler()
    with pytest.raises(ValueError, match="num_slices must be at least 1, got 0"):
        SliceSampler(num_slices=0)
    with pytest.raises(TypeError, match=r"slice_len must be an integer, got float"):
        SliceSampler(slice_len=2.5)


def test_trajectories_are_drawn_uniformly_or_by_their_steps():
    """Of trajectories of 2, 5 and 13 rows and slices of 4: 1, 2 and 10 places to begin."""
    storage = stored(trajectories([2, 5, 13]))
    places = {0: 1, 2: 2, 7: 10}
    for by, weights in (("trajectory", [1 / 3] * 3), ("step", [1 / 13, 2 / 13, 10 / 13])):
        sampler = seeded(SliceSampler(slice_len=4, by=by))
        firsts = np.array([part[0] for part in slices_of(storage, sampler, 4 * 3000)])
        for (first, count), weight in zip(places.items(), weights, strict=True):
            inside = firsts[(firsts >= first) & (firsts < first + count)]
            expected = 3000 * weight / count
            found = np.bincount(inside - first, minlength=count)
            # 5 standard deviations of a count
            assert np.abs(found - expected).max() < 5 * expected**0.5, (by, first)


@pytest.mark.parametrize("by", ["trajectory", "step"])
def test_strict_length_takes_only_trajectories_that_are_long_enough(by):
    storage = stored(trajectories([3] * 40 + [8]))
    sampler = seeded(SliceSampler(slice_len=8, strict_length=True, by=by))
    assert slices_of(storage, sampler, 40) == [tuple(range(120, 128))] * 5
    sampler = SliceSampler(slice_len=9, strict_length=True, by=by)
    with pytest.raises(ValueError, match="no trajectory has 9 rows: the longest of 41 has 8"):
        sampler.sample(storage, 18)


def test_short_trajectory_gives_a_short_slice():
    storage = stored(trajectories([3]))
    sample, slices = drawn(storage, SliceSampler(num_slices=2), 10)
    assert slices.lengths.tolist() == [3, 3]
    assert sample.batch_size == (6,)
    assert sample["collector", "slice_ids"].tolist() == [0, 0, 0, 1, 1, 1]


def test_padding_repeats_the_last_row_and_is_masked():
    storage = stored(trajectories([3]))
    sample, slices = drawn(storage, SliceSampler(num_slices=2, pad_output=True), 10)
    assert sample["collector", "mask"].tolist() == [True, True, True, False, False] * 2
    assert sample["collector", "traj_ids"].tolist() == [7, 7, 7, -1, -1] * 2
    assert sample["observation"][:5, 1].tolist() == [0, 1, 2, 2, 2]
    assert slices.lasts.tolist() == [2, 7]
    assert check_layout(sample).ok
    with pytest.raises(ValueError, match="strict_length leaves nothing to pad"):
        SliceSampler(num_slices=2, pad_output=True, strict_length=True)


@pytest.mark.parametrize("by", ["trajectory", "step"])
def test_slices_with_a_span_are_cut_off_at_the_ends_of_trajectories(by):
    def parts_of(storage, span):
        sampler = seeded(SliceSampler(slice_len=4, span=span, by=by))
        return set(slices_of(storage, sampler, 4 * 400))

    storage = stored(trajectories([6]))
    whole = [range(begin, begin + 4) for begin in range(-3, 6)]
    assert parts_of(storage, True) == {tuple(n for n in rows if 0 <= n < 6) for rows in whole}
    left = {(0, 1), (0, 1, 2), (0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5)}
    assert parts_of(storage, (2, False)) == left
    assert parts_of(storage, (0, 1)) == {(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5)}
    assert parts_of(stored(trajectories([2])), True) == {(0,), (0, 1), (1,)}


def test_span_that_leaves_no_row_is_an_error():
    with pytest.raises(ValueError, match=r"span must be in \[0, 4\).*got 4"):
        SliceSampler(slice_len=4, span=4)
    with pytest.raises(ValueError, match=r"got \(0, -1\)"):
        SliceSampler(slice_len=4, span=(0, -1))
    with pytest.raises(TypeError, match="a bool, an integer or a pair"):
        SliceSampler(slice_len=4, span=(1, 2, 3))
    with pytest.raises(ValueError, match=r"span must be in \[0, 2\)"):
        SliceSampler(num_slices=4, span=2).sample(stored(trajectories([5])), 8)


@pytest.mark.parametrize("kind", [SliceSampler, SliceSamplerWithoutReplacement])
def test_arguments_without_effect_warn_at_their_caller_and_unknown_ones_are_refused(kind):
    for name in ("cache_values", "compile", "use_gpu"):
        with pytest.warns(DeprecationWarning, match=f"{name} has no effect: .*Leave it out") as one:
            kind(slice_len=7, **{name: True})
        assert [warning.filename for warning in one] == [__file__]
    with pytest.raises(TypeError, match="unexpected argument 'slice_length'"):
        kind(slice_len=7, slice_length=7)


def test_explicit_boundaries_replace_markers():
    storage = stored(TensorDict({"a": torch.arange(7)}, [7]), capacity=7)
    for bounds in (
        {"ends": torch.tensor([0, 0, 1, 0, 0, 0, 1], dtype=torch.bool)},
        {"trajectories": torch.tensor([4, 4, 4, 2, 2, 2, 2])},
    ):
        sampler = SliceSampler(slice_len=7, **bounds)
        assert set(slices_of(storage, seeded(sampler), 7 * 50)) == {(0, 1, 2), (3, 4, 5, 6)}
    wrong = SliceSampler(slice_len=7, ends=torch.zeros(5, dtype=torch.bool))
    with pytest.raises(ValueError, match="each of the 7 rows of the storage: got 5"):
        wrong.sample(storage, 7)
    with pytest.raises(TypeError, match="either ends or trajectories"):
        SliceSampler(slice_len=7, ends=torch.ones(7), trajectories=torch.ones(7))
    with pytest.raises(TypeError, match="ends and trajectories are tensors, got list"):
        SliceSampler(slice_len=7, ends=[False, True])
    with pytest.raises(ValueError, match="instead of any column"):
        SliceSampler(slice_len=7, ends=torch.ones(7), traj_key="episode")


def test_explicit_boundaries_of_a_full_ring_cut_at_its_seam_only():
    storage = stored(*(TensorDict({"a": torch.arange(3)}, [3]) for _ in range(3)), capacity=7)
    sampler = SliceSampler(slice_len=7, trajectories=torch.tensor([1, 1, 1, 1, 1, 2, 1]))
    # rows 2 to 8 stand at positions 2 3 4 5 6 0 1
    wanted = {(2, 3, 4), (5,), (6, 7, 8)}
    assert set(slices_of(storage, seeded(sampler), 7 * 50)) == wanted


def test_explicit_boundaries_of_two_columns_follow_time():
    batch = environments(2, 4, [4], [EndKind.CUT])
    storage = stored(batch, capacity=8, ndim=2)
    ids = torch.tensor([[1, 3], [1, 3], [2, 3], [2, 3]])
    sampler = seeded(SliceSampler(slice_len=4, trajectories=ids))
    assert set(slices_of(storage, sampler, 4 * 50)) == {(0, 2), (4, 6), (1, 3, 5, 7)}


@pytest.mark.parametrize("trailing", [(), (1,)], ids=str)
def test_explicit_boundaries_have_the_shape_in_which_the_buffer_shows_the_rows(trailing):
    batch = environments(2, 4, [4], [EndKind.CUT])  # [B, T], of which row (b, t) is 2 t + b
    storage = stored(batch, capacity=8, ndim=2)
    ids = torch.tensor([[1, 1, 2, 2], [3, 3, 3, 3]])
    ends = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 1]], dtype=torch.bool)
    for bounds in (
        {"trajectories": ids.view(2, 4, *trailing)},
        {"ends": ends.view(2, 4, *trailing)},
    ):
        sampler = seeded(SliceSampler(slice_len=4, **bounds))
        assert set(slices_of(storage, sampler, 4 * 50)) == {(0, 2), (4, 6), (1, 3, 5, 7)}


def test_end_key_and_end_keys_exclude_each_other():
    with pytest.raises(ValueError, match="give end_key or end_keys, not both"):
        SliceSampler(slice_len=4, end_key="a", end_keys=["b"])
    sampler = SliceSampler(slice_len=4, end_key=("next", "a"), traj_key=("b",))
    assert (sampler.end_keys, sampler.id_keys) == ([("next", "a")], ["b"])
    with pytest.raises(ValueError, match="by must be 'trajectory' or 'step': got 'row'"):
        SliceSampler(slice_len=4, by="row")


@pytest.mark.parametrize("end_keys", ["done", ("next", "done")], ids=str)
@pytest.mark.parametrize("kind", [SliceSampler, SliceSamplerWithoutReplacement])
def test_end_keys_is_a_list(kind, end_keys):
    with pytest.raises(TypeError, match=r"end_keys is a list of keys, got .* write \["):
        kind(slice_len=4, end_keys=end_keys)


def test_slice_sampler_refuses_a_storage_without_markers():
    storage = ListStorage(5)
    storage.extend(["a", "b"])
    with pytest.raises(TypeError, match="ListStorage knows no trajectories"):
        SliceSampler(slice_len=2).sample(storage, 2)


def test_slice_sampler_refuses_an_empty_storage():
    storage = stored(trajectories([3]))
    storage.ring.empty()
    with pytest.raises(ValueError, match="there is no trajectory yet"):
        SliceSampler(slice_len=2).sample(storage, 2)


def test_replacement_false_makes_the_class_without_replacement():
    sampler = SliceSampler(slice_len=2, replacement=False)
    assert type(sampler).__name__ == "SliceSamplerWithoutReplacement"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 3))
def test_proved_tells_lost_slices_from_live_ones(lengths, broken):
    slices = Slices(np.array(lengths))
    numbers = np.concatenate([100 * i + 3 * np.arange(n) for i, n in enumerate(lengths)])
    back = np.where(np.isin(np.arange(len(numbers)), slices.starts), 0, 3)
    assert slices.proved(numbers, back).all()
    broken = broken % len(lengths)
    back[slices.lasts[broken]] += 1
    wanted = [i != broken or n == 1 for i, n in enumerate(lengths)]
    found = slices.proved(numbers, back)
    assert found.tolist() == wanted
    rest = slices.only(found)
    assert numbers[slices.rows_of(found)].size == rest.rows == rest.lengths.sum()
    padded, places = slices.pad(numbers, 5)
    assert places.proved(padded, back[np.searchsorted(numbers, padded)]).tolist() == wanted


def test_proved_refuses_a_slice_that_repeats_one_row():
    slices = Slices(np.array([3, 2]))
    assert not slices.proved(np.array([5, 5, 5, 9, 8]), np.array([0, 0, 0, 0, -1])).any()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rows", [3, 5000])
def test_slices_by_a_column_that_the_first_rows_lack_are_refused(rows, shared):
    sampler = SliceSampler(slice_len=1, traj_key="game")
    storage = LazyTensorStorage(50_000)
    buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=2, shared=shared)
    # from 4,096 rows on they are indexed when they are written
    buffer.extend(trajectories([rows]))
    with pytest.raises(KeyError, match="no column 'game' to find trajectories by"):
        buffer.sample()


def test_a_sampler_says_how_it_was_made():
    sampler = SliceSampler(slice_len=4, traj_key=("collector", "traj_ids"))
    assert (sampler.slice_len, sampler.num_slices) == (4, None)
    assert sampler.traj_key == ("collector", "traj_ids")
    assert SliceSampler(num_slices=2).traj_key is None


def test_the_repr_of_a_sampler_shows_its_span():
    # what runs of one trajectory it draws depends on it
    assert "span" not in repr(SliceSampler(slice_len=4))
    assert repr(SliceSampler(slice_len=4, span=(True, 2))).endswith("span=(True, 2))")
