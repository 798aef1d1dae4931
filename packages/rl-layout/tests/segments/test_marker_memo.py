from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_layout import Segments, keys
from rl_layout.testing import trajectories


def test_the_same_markers_give_the_same_object():
    batch = trajectories([2, 3])
    assert Segments.of(batch) is Segments.of(batch)
    assert Segments.of(batch.exclude("action")) is Segments.of(batch)


def test_a_write_to_any_marker_drops_what_was_kept():
    batch = trajectories([2, 3])
    Segments.of(batch)
    batch[keys.NEXT_TERMINATED][0] = True
    assert Segments.of(batch).lengths.tolist() == [1, 1, 3]


def test_a_marker_replaced_added_or_removed_drops_what_was_kept():
    batch = trajectories([2, 3])
    Segments.of(batch)
    batch.set(keys.MASK, torch.tensor([True, True, True, True, False]))
    assert Segments.of(batch).lengths.tolist() == [2, 2]
    batch.set(keys.MASK, torch.tensor([True, True, True, False, False]))
    assert Segments.of(batch).lengths.tolist() == [2, 1]
    del batch[keys.MASK]
    assert Segments.of(batch).lengths.tolist() == [2, 3]


def test_another_shape_of_the_same_memory_is_another_batch():
    batch = trajectories([2, 4])
    assert len(Segments.of(batch)) == 2
    assert len(Segments.of(batch.reshape(2, 3))) == 3


def test_the_same_marker_in_a_batch_that_it_does_not_fit_is_refused():
    flag = torch.ones(2, 3, 1, dtype=torch.bool)
    assert len(Segments.of(TensorDict({keys.IS_INIT: flag}, [2, 3]))) == 6
    with pytest.raises(ValueError, match=r"expected shape \[2, 1\], got \[2, 3, 1\]"):
        Segments.of(TensorDict({keys.IS_INIT: flag}, [2]))


def test_memo_keeps_nothing_longer_than_the_markers():
    batch = trajectories([2, 3])
    kept = weakref.ref(Segments.of(batch))
    assert kept() is not None
    del batch
    gc.collect()
    assert kept() is None


def test_memory_that_numpy_writes_to_is_read_each_time():
    batch = trajectories([2, 3])
    column = batch["is_init"].numpy()
    assert Segments.of(batch).lengths.tolist() == [2, 3]
    column[1] = True
    assert Segments.of(batch).lengths.tolist() == [1, 1, 3]
    flag = torch.from_numpy(np.zeros((3, 1), dtype=bool))
    assert Segments.of(TensorDict({"is_init": flag}, [3])).lengths.tolist() == [3]
    flag.numpy()[2] = True
    assert Segments.of(TensorDict({"is_init": flag}, [3])).lengths.tolist() == [2, 1]


def test_markers_that_others_may_write_to_are_read_each_time():
    batch = trajectories([2, 3])
    shared = batch.clone().share_memory_()
    assert Segments.of(shared) is not Segments.of(shared)
    with torch.inference_mode():
        made = batch.clone()
    assert Segments.of(made) is not Segments.of(made)


def test_markers_that_numpy_came_to_know_are_read_afresh():
    batch = trajectories([3, 4, 2])
    batch["is_init"] = batch["is_init"].clone()
    assert Segments.of(batch) is Segments.of(batch)
    batch["is_init"].numpy()[1] = True
    assert Segments.of(batch).lengths.tolist() == [1, 2, 4, 2]
    shared = trajectories([3, 4, 2])
    assert Segments.of(shared).lengths.tolist() == [3, 4, 2]
    shared.share_memory_()
    assert Segments.of(shared) is not Segments.of(shared)


def test_segments_made_in_inference_mode_are_reused_only_there():
    batch = trajectories([3, 4, 2])
    batch["collector", "mask"] = torch.arange(9) != 5
    with torch.inference_mode():
        inside = Segments.of(batch)
        assert inside is Segments.of(batch)
        inside.gather(torch.ones(9))
    values = torch.ones(9, requires_grad=True)
    Segments.of(batch).gather(values).sum().backward()
    assert values.grad.sum() == 8
