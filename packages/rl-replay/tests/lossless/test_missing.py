"""Rows that were stored without their next observations."""

from __future__ import annotations

import pytest
import torch

from rl_replay.testing.lossless_ring import STEPS
from rl_replay.testing.observed_rows import missing, plain_batch, put, store, update


@pytest.mark.parametrize("count", [1, 11, 12, 13, 29, 70])
def test_next_observations_that_no_row_holds_are_read_however_many_they_are(count):
    batch = plain_batch(torch.arange(35.0), torch.arange(100.0, 135), [5] * 35, list(range(35)))
    rows = store(plain_batch(batch["observation"], None, [5] * 35, [0] * 35), 70, ["observation"])
    put(rows, 0, batch, [0] * 35)
    index = torch.arange(35).repeat(2)[:count].flip(0)
    assert rows.gather(index)["next", "observation"].tolist() == (100 + index).tolist()
    put(rows, 35, batch.exclude(("next", "observation")), [0] * 35)
    index = torch.arange(70).flip(0)[:count]  # the newest rows have none at all
    for found in (rows.gather(index), rows.read(index)):
        following = found["next", "observation"]
        assert torch.equal(found["collector", "next_missing"], index >= 35)
        assert following[index >= 35].isnan().all()
        assert following[index < 35].tolist() == (100 + index[index < 35]).tolist()


def test_rows_without_next_observations_get_those_of_the_rows_that_follow():
    batch = plain_batch(torch.arange(5.0), None, [5] * 5, list(range(5)))
    rows = store(batch, 8, keys=["observation"])
    put(rows, 0, batch[:3], [0, 1, 1])
    marks, following = missing(rows, 3)
    assert marks == [False, False, True]
    assert following[:2].tolist() == [1.0, 2.0]
    assert following[2].isnan()
    put(rows, 3, batch[3:], [1, 1])
    marks, following = missing(rows, 5)
    assert marks == [False] * 4 + [True]
    assert following[:4].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert rows.side.in_use() == 0


def test_a_missing_row_does_not_name_what_overwrote_its_predecessor():
    batch = plain_batch(torch.arange(4.0), None, [5] * 4, list(range(4)))
    rows = store(batch, 4, keys=["observation"])
    put(rows, 0, batch, [0, 1, 1, 1])
    put(rows, 4, batch, [1, 1, 1, 1])
    marks, following = missing(rows, 4)
    assert marks == [False, False, False, True]
    assert following[:3].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("together", [True, False])
def test_a_missing_row_that_looks_further_than_a_step_takes_no_neighbour(together):
    extra = [(STEPS, torch.tensor([[1], [3], [1], [1]]))]
    batch = plain_batch(torch.arange(4.0), None, [5] * 4, list(range(4)), extra)
    rows = store(batch, 6, keys=["observation"])
    if together:
        put(rows, 0, batch, [0, 1, 1, 1])
    else:
        for row in range(4):
            put(rows, row, batch[row : row + 1], [min(row, 1)])
    marks, following = missing(rows, 4)
    assert marks == [False, True, False, True]
    assert following[::2].tolist() == [1.0, 3.0]


def test_integers_that_are_missing_are_zero():
    batch = plain_batch(torch.arange(1, 4, dtype=torch.uint8), None, [5] * 3, list(range(3)))
    rows = store(batch, 8, keys=["observation"])
    put(rows, 0, batch, [0, 0, 1])
    marks, following = missing(rows, 3)
    assert marks == [True, False, True]
    assert following.tolist() == [0, 3, 0]


def test_frames_that_are_missing_are_zero():
    frames = torch.randint(1, 255, (3, 17, 19), dtype=torch.uint8)
    batch = plain_batch(frames, None, [5] * 3, list(range(3)))
    rows = store(batch, 8, keys=["observation"])
    put(rows, 0, batch, [0, 0, 1])
    marks, following = missing(rows, 3)
    assert marks == [True, False, True]
    assert not following[0].any()
    assert (following[1] == frames[2]).all()
    plan = rows.plan(None)
    index = torch.arange(3)
    packed, arrays, _ = rows.reader.on_device(plan, index)
    assert (
        plan.unpack[False, False](packed, arrays, index.shape)["next", "observation"] == following
    ).all()


def test_batches_with_and_without_next_observations_may_follow_each_other():
    whole = plain_batch(torch.arange(3.0), torch.arange(1.0, 4), [5] * 3, [0, 1, 2])
    rows = store(whole, 9)
    put(rows, 0, whole, [0, 1, 1])
    assert ("collector", "next_missing") not in rows.read(slice(0, 3)).keys(True)
    put(rows, 3, plain_batch(torch.arange(3.0, 5), None, [5] * 2, [3, 4]), [1, 1])
    put(rows, 5, plain_batch(torch.tensor([5.0]), torch.tensor([9.0]), [5], [5]), [1])
    marks, following = missing(rows, 6)
    assert marks == [False] * 6
    assert following.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 9.0]


def test_a_sample_with_missing_rows_is_stored_again_as_such():
    batch = plain_batch(torch.arange(4.0), None, [5] * 4, list(range(4)))
    one, two = (store(batch, 8, keys=["observation"]) for _ in range(2))
    put(one, 0, batch, [0, 1, 0, 1])
    sample = one.read(slice(0, 4))
    put(two, 0, sample, [0, 1, 0, 1])
    assert missing(two, 4)[0] == [False, True, False, True]
    assert torch.equal(missing(two, 4)[1], missing(one, 4)[1]) is False  # NaN is there
    assert missing(two, 4)[1][::2].tolist() == [1.0, 3.0]


def test_a_mark_that_rows_bring_along_is_kept():
    mark = torch.tensor([True, False, False])
    extra = [(("collector", "next_missing"), mark)]
    batch = plain_batch(torch.arange(3.0), torch.arange(1.0, 4), [5] * 3, [0, 1, 2], extra)
    rows = store(batch, 8)
    put(rows, 0, batch, [0, 1, 1])
    assert missing(rows, 3)[0] == [True, False, False]
    put(rows, 3, batch.exclude(("next", "observation")), [0, 0, 0])
    assert rows.read(slice(3, 6))["collector", "next_missing"].tolist() == [True, True, True]


def test_some_next_observations_without_the_others_are_refused():
    batch = plain_batch(torch.arange(3.0), torch.arange(1.0, 4), [5] * 3, [0, 1, 2])
    batch["more"], batch["next", "more"] = torch.zeros(3), torch.zeros(3)
    rows = store(batch, 8)
    with pytest.raises(KeyError, match="are missing while others are there"):
        put(rows, 0, batch.exclude(("next", "more")), [0, 1, 1])


def test_a_sample_written_back_leaves_missing_rows_missing():
    batch = plain_batch(torch.arange(3.0), None, [5] * 3, [0, 1, 2])
    rows = store(batch, 8, keys=["observation"])
    put(rows, 0, batch, [0, 1, 1])
    update(rows, [0, 1, 2], rows.read(slice(0, 3)).to_dict())
    assert missing(rows, 3)[0] == [False, False, True]
    mark = {("collector", "next_missing"): torch.tensor([True])}
    with pytest.raises(ValueError, match="cannot be taken from them"):
        update(rows, [0], {**mark, ("next", "observation"): torch.tensor([3.0])})
