from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import EndKind, Segments, check_layout
from rl_layout.testing import trajectories
from rl_replay import LazyTensorStorage, ReplayBuffer, SliceSampler
from rl_replay.samplers.slice_layout import Slices, SliceShape, mark_slices
from rl_transforms import multi_step

FLAGS = ("done", "terminated", "truncated")


def flags(sample, *names):
    return [sample["next", name].flatten().tolist() for name in names]


def marked(batch, lengths, **options):
    sample = batch.clone()
    mark_slices(sample, Slices(np.array(lengths)), **options)
    return sample


def test_a_batch_of_one_row_is_one_slice_of_one_row():
    assert SliceShape(num_slices=1).of(1) == SliceShape(slice_len=1).of(1) == (1, 1)


def test_mark_slices_truncates_cut_slices_and_keeps_terminations():
    sample = marked(
        trajectories([4, 2, 3], [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]), [3, 1, 2, 3]
    )
    yes, no = True, False
    assert sample["is_init"].flatten().tolist() == [yes, no, no, yes, yes, no, yes, no, no]
    done, terminated, truncated = flags(sample, *FLAGS)
    assert terminated == [no, no, no, yes, no, no, no, no, no]
    assert truncated == [no, no, yes, no, no, yes, no, no, yes]
    assert done == [no, no, yes, yes, no, yes, no, no, yes]
    assert sample["collector", "slice_ids"].tolist() == [0, 0, 0, 1, 2, 2, 3, 3, 3]
    assert check_layout(sample).ok


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64])
@pytest.mark.parametrize("key", [("next", name) for name in FLAGS] + ["is_init"])
def test_mark_slices_refuses_flags_of_another_dtype_by_name(dtype, key):
    # ~ of a byte is 254 or 255, which would be stored as a flag
    batch = trajectories([5])
    batch[key] = batch[key].to(dtype)
    with pytest.raises(TypeError, match=f"{re.escape(repr(key))}: expected torch.bool"):
        marked(batch, [2, 3])


def test_mark_slices_leaves_ids_and_steps():
    batch = trajectories([5])
    sample = marked(batch, [2, 3])
    for name in ("traj_ids", "traj_step"):
        assert sample["collector", name].tolist() == batch["collector", name].tolist()


def test_mark_slices_without_a_key_marks_no_end():
    batch = trajectories([5])
    sample = marked(batch, [2, 3], truncated_key=None)
    assert flags(sample, *FLAGS) == flags(batch, *FLAGS)
    assert sample["is_init"].flatten().tolist() == [True, False, True, False, False]


@given(st.sets(st.sampled_from(FLAGS)), st.sampled_from([EndKind.TERMINATED, EndKind.TRUNCATED]))
def test_mark_slices_derives_kinds_of_ends_from_stored_flags(missing, kind):
    batch = trajectories([3, 4], kind)
    part = batch[:5].exclude(*(("next", name) for name in missing))
    sample = marked(part, [3, 2])
    done, terminated, truncated = flags(sample, *FLAGS)
    assert done == [False, False, True, False, True]
    known = len(missing) < 2 or (len(missing) == 2 and kind.name.lower() not in missing)
    if known:
        assert terminated == [False, False, kind is EndKind.TERMINATED, False, False]
        assert truncated == [False, False, kind is EndKind.TRUNCATED, False, True]
    elif missing == {"terminated", "truncated"}:
        assert (terminated[2], truncated[2]) == (True, False)  # done without a kind
    else:
        assert (terminated[2], truncated[2]) == (False, True)  # nothing says that it ended
    assert check_layout(sample).ok


def test_mark_slices_adds_markers_to_rows_without():
    sample = TensorDict({"observation": torch.arange(5)}, [5])
    mark_slices(sample, Slices(np.array([2, 3])))
    assert sample["is_init"].shape == (5, 1)
    assert flags(sample, "truncated") == [[False, True, False, False, True]]
    assert Segments.of(sample).lengths.tolist() == [2, 3]


def test_mark_slices_marks_the_flags_of_a_group_of_agents():
    agents = {
        "done": torch.zeros(4, 2, 1, dtype=torch.bool),
        "terminated": torch.zeros(4, 2, 1, dtype=torch.bool),
    }
    sample = TensorDict({"next": {"agents": agents}}, [4])
    mark_slices(sample, Slices(np.array([4])), ("next", "agents", "truncated"))
    assert sample["next", "agents", "truncated"].shape == (4, 2, 1)
    assert sample["next", "agents", "done"][:, 0, 0].tolist() == [False, False, False, True]
    assert ("next", "done") not in sample.keys(True)


def test_mark_slices_of_n_step_rows_ends_segments_at_slices_alone():
    batch = multi_step(trajectories([6]), 0.9, 3)
    sample = marked(batch[:5], [2, 3])
    assert flags(sample, "truncated") == [[False, True, False, False, False]]
    assert flags(sample, "terminated") == [[False, False, False, True, True]]
    assert flags(sample, "done") == [[False, True, False, True, True]]
    assert Segments.of(sample).lengths.tolist() == [2, 3]


def test_padding_joins_a_stored_mask_and_has_id_minus_one():
    batch = trajectories([2, 2])
    batch["collector", "row"] = torch.arange(4)
    batch["collector", "mask"] = torch.tensor([True, True, True, True])
    padded = batch[torch.tensor([0, 1, 1, 2, 2, 2])]
    mark_slices(padded, Slices(np.array([2, 1]), padded_to=3))
    assert padded["collector", "mask"].tolist() == [True, True, False, True, False, False]
    assert padded["collector", "row"].tolist() == [0, 1, -1, 2, -1, -1]
    assert padded["collector", "traj_ids"].tolist() == [7, 7, -1, 8, -1, -1]


@pytest.mark.gpu
def test_mark_slices_on_a_device_equals_the_cpu():
    batch = trajectories([4, 2, 3])
    for slices in (Slices(np.array([3, 1, 5])), Slices(np.array([2, 1, 3]), padded_to=3)):
        here, there = batch.clone(), batch.clone().to("cuda")
        mark_slices(here, slices)
        mark_slices(there, slices)
        for key, leaf in here.items(True, True):
            assert torch.equal(leaf, there[key].cpu()), key


def test_mark_slices_leaves_other_leaves():
    batch = trajectories([5])
    sample = marked(batch, [2, 3])
    new = set(sample.keys(True, True)) - set(batch.keys(True, True))
    assert new == {("collector", "slice_ids")}
    for key in ("observation", "action", ("next", "reward"), ("next", "observation"), "done"):
        assert torch.equal(sample[key], batch[key]), key


def offline(**columns):
    """Seven rows of two trajectories whose ends only columns at the root tell."""
    rows = TensorDict({"observation": torch.arange(7.0)[:, None]}, [7])
    for name, places in columns.items():
        rows[name] = torch.zeros(7, dtype=torch.float32).index_fill_(0, torch.tensor(places), 1)
    return rows


@pytest.mark.parametrize(
    ("columns", "terminated", "truncated"),
    [
        ({"terminals": [2], "timeouts": [5]}, [2], [4, 5, 6]),
        ({"terminal": [2], "truncated": [5]}, [2], [4, 5, 6]),
        ({"timeout": [2, 5]}, [], [2, 4, 5, 6]),
        ({"episode_end": [2, 5]}, [2, 5], [4, 6]),
    ],
)
def test_mark_slices_keeps_the_kind_of_ends_in_named_columns(columns, terminated, truncated):
    sample = marked(offline(**columns), [3, 2, 1, 1], end_keys=list(columns))
    found = {name: sample["next", name].flatten().nonzero().flatten().tolist() for name in FLAGS}
    assert found["terminated"] == terminated
    assert found["truncated"] == truncated
    assert found["done"] == sorted({*terminated, *truncated})


def test_mark_slices_keeps_a_stored_kind_where_columns_are_named():
    rows = offline(terminals=[2])
    rows["next", "truncated"] = torch.zeros(7, 1, dtype=torch.bool).index_fill_(
        0, torch.tensor([5]), True
    )
    sample = marked(rows, [3, 3, 1], end_keys=["terminals"])
    done, terminated, truncated = (flag for flag in flags(sample, *FLAGS))
    assert [i for i, flag in enumerate(terminated) if flag] == [2]
    assert [i for i, flag in enumerate(truncated) if flag] == [5, 6]
    assert [i for i, flag in enumerate(done) if flag] == [2, 5, 6]


@pytest.mark.parametrize("missing", [None, *FLAGS])
@pytest.mark.parametrize("flat", FLAGS)
def test_mark_slices_takes_flags_with_and_without_a_last_dimension(flat, missing):
    batch = trajectories([4, 2, 3], [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT])
    mixed = batch.clone()
    mixed["next", flat] = mixed["next", flat].squeeze(-1)
    for rows in (batch, mixed):
        if missing is not None:
            del rows["next", missing]
    sample, expected = marked(mixed, [3, 1, 2, 3]), marked(batch, [3, 1, 2, 3])
    assert flags(sample, *FLAGS) == flags(expected, *FLAGS)
    assert sample["next", flat].shape == ((9, 1) if missing == flat else (9,))


def test_mark_slices_refuses_flags_of_a_row_that_differ_in_number():
    batch = trajectories([5])
    batch["next", "done"] = batch["next", "done"].expand(5, 2).clone()
    with pytest.raises(ValueError, match=r"\('next', 'done'\): \[5, 2\], .* store them in one"):
        marked(batch, [2, 3])


@pytest.mark.parametrize("lossless", [False, True])
def test_a_buffer_samples_slices_of_rows_whose_flags_differ_in_shape(lossless):
    batch = trajectories([4, 6])
    batch["next", "terminated"] = batch["next", "terminated"].squeeze(-1)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(20, lossless=lossless), sampler=SliceSampler(slice_len=2)
    )
    buffer.extend(batch)
    sample = buffer.sample(12)
    assert sample["next", "done"].flatten().tolist() == [False, True] * 6
    terminated, truncated = flags(sample, "terminated", "truncated")
    assert [a or b for a, b in zip(terminated, truncated, strict=True)] == [False, True] * 6
