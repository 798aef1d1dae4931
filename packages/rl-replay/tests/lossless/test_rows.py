"""A ring of compact rows alongside a list that keeps both observations of every row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_replay.lossless.rows import LosslessRows
from rl_replay.testing import LosslessRowsMachine
from rl_replay.testing.lossless_machine import LAYOUTS
from rl_replay.testing.lossless_ring import (
    ID,
    STEP,
    LosslessRing,
    Producer,
    Step,
    observe,
)
from rl_replay.testing.observed_rows import observations, plain_batch, put, store
from rl_slabs import RowSchema

KINDS = st.sampled_from(LAYOUTS)


TestLosslessRows = LosslessRowsMachine.TestCase
TestLosslessRows.settings = settings(max_examples=25, stateful_step_count=15)


@settings(max_examples=15)
@given(st.integers(0, 1 << 30), st.integers(1, 23), st.integers(1, 4), st.integers(2, 5), KINDS)
def test_next_observations_of_nstep_rows_come_back(seed, capacity, producers, n_step, kind):
    ring = LosslessRing(capacity, seed, n_step=n_step, **kind)
    environments = [Producer(ring) for _ in range(producers)]
    for each in (1, 3, 1, 7, 2):
        pieces = [environment.rows(each) for environment in environments]
        rows = [row for together in zip(*pieces, strict=True) for row in together]
        ring.extend(ring.cells(rows[:capacity]))
        ring.check()


def rows_of(ring, count, **options):
    return ring.cells(Producer(ring, **options).rows(count))


def test_rows_of_one_trajectory_take_one_slot():
    ring = LosslessRing(20, 0)
    seen = observe(9, ring.generator)
    rows = [(seen[t : t + 1], seen[t + 1 : t + 2], (5, t), 1) for t in range(8)]
    ring.extend(ring.cells(rows))
    assert ring.rows.side.in_use() == 1
    assert ring.rows.successor[:8].tolist() == [1] * 7 + [-1]


@pytest.mark.parametrize("environments", [1, 3, 8])
def test_environments_that_extend_one_step_at_a_time_take_one_slot_each(environments):
    ring = LosslessRing(40, 0)
    seen = [observe(41, ring.generator) for _ in range(environments)]
    for step in range(40 // environments):
        rows = [
            (one[step : step + 1], one[step + 1 : step + 2], (number, step), 1)
            for number, one in enumerate(seen)
        ]
        ring.extend(ring.cells(rows))
    assert ring.rows.side.in_use() == environments
    ring.check()


def test_a_successor_that_comes_any_number_of_extends_later_is_named():
    ring = LosslessRing(50, 0)
    seen = observe(3, ring.generator)
    ring.extend(ring.cells([Step(seen[0:1], seen[1:2], (5, 0), 1)]))
    for _ in range(4):
        ring.extend(rows_of(ring, 7, length=1))
    before = ring.rows.side.in_use()
    ring.extend(ring.cells([Step(seen[1:2], seen[2:3], (5, 1), 1)]))
    assert ring.rows.successor[0] == 29
    assert ring.rows.side.in_use() == before
    ring.check()


def test_negative_zero_is_not_zero_and_nan_is_nan():
    root = torch.tensor([1.0, torch.nan, -0.0, 3.0])
    following = torch.tensor([torch.nan, 0.0, 3.0, 4.0])
    batch = plain_batch(root, following, [5] * 4, [0, 1, 2, 3])
    rows = store(batch, 6)
    put(rows, 0, batch, [0, 1, 1, 1])
    assert rows.successor[:4].tolist() == [1, -1, 1, -2]
    found = rows.read(slice(0, 4))["next", "observation"]
    assert found.view(torch.int32).tolist() == following.view(torch.int32).tolist()


def test_a_nan_with_other_bits_is_another_observation():
    payload = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    root = torch.cat([torch.tensor([1.0]), payload])
    batch = plain_batch(root, torch.tensor([torch.nan, 2.0]), [5, 5], [0, 1])
    rows = store(batch, 6)
    put(rows, 0, batch, [0, 1])
    assert rows.successor[0] < 0
    assert rows.read(0)["next", "observation"].view(torch.int32).item() == 0x7FC00000


def test_the_last_row_of_the_ring_names_the_first():
    batch = plain_batch(torch.arange(5.0), torch.arange(1.0, 6), [5] * 5, list(range(5)))
    rows = store(batch, 5)
    put(rows, 0, batch, [0, 1, 1, 1, 1])
    after = plain_batch(torch.tensor([5.0]), torch.tensor([9.0]), [5], [5])
    put(rows, 5, after, [1])
    assert rows.successor[4] == 1
    index = torch.tensor([4, 0, 3])
    assert rows.read(index)["next", "observation"].tolist() == [5.0, 9.0, 4.0]
    assert rows.read(4)["next", "observation"] == 5.0


def test_rows_that_lie_further_apart_than_most_are_found_round_the_end_of_the_ring():
    root = torch.arange(6.0)
    batch = plain_batch(root, root + 2, [0] * 6, [0] * 6)
    rows = store(batch, 7)
    put(rows, 0, batch, [0, 0, 2, 2, 2, 2])
    after = plain_batch(torch.tensor([6.0, 7.0]), torch.tensor([8.0, 9.0]), [0, 0], [1, 1])
    put(rows, 6, after, [2, 2])
    assert rows.successor[5] == 2  # row 0, round the end
    assert rows.read(torch.tensor([5, 4]))["next", "observation"].tolist() == [7.0, 6.0]


def test_a_trajectory_as_long_as_the_ring_may_be_overwritten_whole():
    ring = LosslessRing(7, 0)
    seen = observe(40, ring.generator)
    for start in range(0, 35, 7):
        rows = [(seen[t : t + 1], seen[t + 1 : t + 2], (5, t), 1) for t in range(start, start + 7)]
        ring.extend(ring.cells(rows))
        ring.check()
    assert ring.rows.side.in_use() == 1


def test_rows_that_a_batch_itself_overwrites_are_not_named():
    batch = plain_batch(torch.zeros(5), torch.zeros(5), [5] * 5, list(range(5)))
    rows = store(batch, 5)
    put(rows, 0, batch, [0, 1, 1, 1, 1])
    put(rows, 5, batch, [1, 1, 1, 1, 1])
    assert rows.successor.tolist() == [1, 1, 1, 1, -1]
    assert rows.side.in_use() == 1


def test_slots_of_overwritten_rows_are_used_again():
    ring = LosslessRing(12, 0)
    for _ in range(30):
        ring.extend(rows_of(ring, 4, length=1))  # no row ever follows another
        ring.check()
    assert ring.rows.side.used_up_to(0) == 12  # the slots that were ever touched


def test_the_touched_slots_are_the_most_that_were_in_use_at_once():
    ring = LosslessRing(200, 0)
    environments = [Producer(ring, length=20) for _ in range(4)]
    most = 0
    for _ in range(150):
        ring.extend(ring.cells([row for one in environments for row in one.rows(1)]))
        most = max(most, ring.rows.side.in_use())
    # a step is written before the slots of the step before are free
    assert ring.rows.side.used_up_to(0) <= most + 4


def test_what_a_refused_batch_would_have_changed_is_unchanged():
    batch = plain_batch(torch.arange(3.0), torch.arange(1.0, 4), [5] * 3, [0, 1, 2])
    rows = store(batch, 6)
    put(rows, 0, batch, [0, 1, 1])
    before = rows.read(slice(0, 3))
    wrong = [
        (batch.exclude(("next", "reward")), KeyError),
        (batch.clone().set("more", torch.zeros(3)), KeyError),
        (batch.clone().set("observation", torch.zeros(3).double()), TypeError),
        (batch.clone().set("observation", torch.zeros(3, 2)), ValueError),
    ]
    for cells, error in wrong:
        with pytest.raises(error):
            rows.write(slice(0, 3), range(6, 9), cells, np.zeros(3))
    assert (rows.read(slice(0, 3)) == before).all()
    assert rows.side.in_use() == 1


def test_a_row_out_of_range_is_refused():
    batch = plain_batch(torch.arange(3.0), torch.arange(1.0, 4), [5] * 3, [0, 1, 2])
    rows = store(batch, 6)
    for index in (torch.tensor([2, 6]), torch.tensor([-1]), torch.tensor([0, 99])):
        with pytest.raises(ValueError, match=r"must be in \[0, 6\)"):
            rows.read(index)


@pytest.mark.parametrize("place", [3, slice(1, 5), torch.tensor([[4, 0, 2], [1, 1, 3]])], ids=str)
def test_rows_are_read_in_any_shape(place):
    batch = plain_batch(torch.arange(6.0), torch.arange(1.0, 7), [5] * 6, list(range(6)))
    rows = store(batch, 8)
    put(rows, 0, batch, [0, 1, 1, 1, 1, 1])
    found = rows.read(place)
    assert (found["next", "observation"] == batch["observation"][place] + 1).all()
    assert found.batch_size == batch[place].batch_size
    whole = rows.read(place, contiguous=True)
    assert (whole == found).all()
    assert whole["next", "observation"].is_contiguous()


def test_no_rows_are_none():
    batch = plain_batch(torch.arange(6.0), torch.arange(1.0, 7), [5] * 6, list(range(6)))
    rows = store(batch, 8)
    assert rows.read(torch.empty(0, dtype=torch.int64)).batch_size == (0,)


def test_writing_a_leaf_of_a_sample_leaves_the_rows_and_other_leaves_alone():
    batch = plain_batch(torch.arange(6.0), torch.arange(1.0, 7), [5] * 6, list(range(6)))
    rows = store(batch, 8)
    put(rows, 0, batch, [0, 1, 1, 1, 1, 1])
    found = rows.read(torch.arange(6))
    saved = found["observation"].sum() * torch.ones((), requires_grad=True)
    found["next", "observation"].mul_(2)
    saved.backward()  # the observation has a version of its own
    assert (rows.read(slice(0, 6))["next", "observation"] == torch.arange(1.0, 7)).all()


def test_markers_alone_are_read_without_the_side_table():
    batch = plain_batch(torch.arange(6.0), torch.arange(1.0, 7), [5] * 6, list(range(6)))
    rows = store(batch, 8)
    put(rows, 0, batch, [0, 1, 1, 1, 1, 1])
    assert rows.plan([ID, ("next", "reward")]).plain is not None
    assert set(rows.read(slice(0, 2), keys=["collector"]).keys(True, True)) == {ID, STEP}


@pytest.mark.parametrize("environments", [1, 4])
def test_rows_of_interleaved_environments_find_their_own_next_observations(environments):
    count = 40 * environments
    root = torch.arange(count).float()
    batch = plain_batch(root, root + environments, [0] * count, [0] * count)
    rows = store(batch, count + environments)
    put(rows, 0, batch, [0] * environments + [environments] * (count - environments))
    for _ in range(3):
        index = torch.randint(count, (32,))
        assert (rows.read(index)["next", "observation"] == index + environments).all()
    assert rows.side.in_use() == environments


def test_nstep_rows_name_the_row_so_many_steps_further_on():
    ring = LosslessRing(40, 0, n_step=3)
    seen = observe(31, ring.generator)
    rows = [
        (seen[t : t + 1], seen[min(t + 3, 30) : min(t + 3, 30) + 1], (5, t), min(3, 30 - t))
        for t in range(30)
    ]
    for start in range(0, 30, 2):  # two rows an extend: every successor comes later
        ring.extend(ring.cells(rows[start : start + 2]))
    ring.check()
    # the last three rows look at the observation after the trajectory, which no row holds
    assert ring.rows.successor[:27].tolist() == [3] * 27
    assert ring.rows.side.in_use() == 3


@pytest.mark.parametrize("corrupt", [40, 2**40, 2**63 - 1])
def test_a_corrupt_step_count_lets_no_later_row_look_further_back(corrupt):
    ring = LosslessRing(40, 0, n_step=3)
    seen = observe(31, ring.generator)
    rows = [
        (seen[t : t + 1], seen[min(t + 3, 30) : min(t + 3, 30) + 1], (5, t), min(3, 30 - t))
        for t in range(30)
    ]
    rows[7] = (*rows[7][:3], corrupt)
    for start in range(0, 30, 2):
        ring.extend(ring.cells(rows[start : start + 2]))
    ring.check()
    assert ring.rows.reach == 3


def test_nstep_rows_of_one_extend_are_linked_as_well():
    ring = LosslessRing(40, 0, n_step=4)
    seen = observe(21, ring.generator)
    rows = [
        (seen[t : t + 1], seen[min(t + 4, 20) : min(t + 4, 20) + 1], (5, t), min(4, 20 - t))
        for t in range(20)
    ]
    ring.extend(ring.cells(rows))
    ring.check()
    assert ring.rows.successor[:16].tolist() == [4] * 16


def test_what_is_written_but_not_published_is_named_by_no_older_row():
    batch = plain_batch(torch.arange(3.0), torch.arange(1.0, 4), [5] * 3, [0, 1, 2])
    rows = store(batch, 6)
    put(rows, 0, batch[:1], [0])
    rows.write(slice(1, 2), range(1, 2), batch[1:2], np.array([1]))  # and the writer ends here
    assert rows.successor[0] < 0
    other = plain_batch(torch.tensor([70.0]), torch.tensor([71.0]), [6], [0])
    put(rows, 1, other, [0])
    assert observations(rows, 2) == ([0, 70], [1, 71])


def test_observations_that_only_stand_at_the_root_are_not_compacted():
    batch = plain_batch(torch.arange(3.0), torch.arange(1.0, 4), [5] * 3, [0, 1, 2])
    batch["done"] = batch["next", "done"] = torch.zeros(3, 1, dtype=torch.bool)
    batch["reward"] = torch.zeros(3, 1)
    batch["wide"], batch["next", "wide"] = torch.zeros(3, 1), torch.zeros(3, 2)
    rows = store(batch, 5)
    assert [pair.root for pair in rows.layout.pairs] == [("observation",)]


def test_nothing_to_store_once_is_refused():
    batch = plain_batch(torch.arange(3.0), None, [5] * 3, [0, 1, 2])
    with pytest.raises(ValueError, match="nothing to store once"):
        store(batch, 5)
    with pytest.raises(KeyError):
        store(batch, 5, keys=["nowhere"])


def test_memory_is_four_bytes_a_row_and_one_frame_for_each_end():
    frames = torch.zeros(401, 84, 84, 4, dtype=torch.uint8)
    frames[:, 0, 0, 0] = torch.arange(401) % 251
    batch = plain_batch(frames[:400], frames[1:], [0] * 200 + [1] * 200, [0] * 400)
    rows = store(batch, 400)
    back = [0] + [1] * 199
    put(rows, 0, batch, back + back)
    told = rows.explain(400)
    once = rows.schema.nbytes - rows.layout.side.nbytes
    assert told["row_bytes"] - once <= 8  # four bytes, on a row of whole words
    assert told["side_slots"] == 2
    assert told["linked_share"] == 398 / 400
    assert (400 * told["row_bytes"] + 2 * rows.layout.side.nbytes) / (400 * once) <= 1.02


def test_many_packed_rows_are_read_as_few_are():
    count = 5000
    steps = torch.arange(count + 1.0)
    batch = plain_batch(steps[:-1], steps[1:], [5] * count, list(range(count)))
    rows = store(batch, count)
    put(rows, 0, batch, [0] + [1] * (count - 1))
    index = torch.randint(count, (40_000,))
    assert rows.joined
    for found in (rows.gather(index), rows.gather(index[:7]), rows.read(index)):
        assert (found["next", "observation"] == index[: len(found)] + 1).all()


def test_rows_that_share_a_memory_with_their_slots_are_told_apart_from_them():
    batch = plain_batch(torch.arange(3.0), torch.arange(1.0, 4), [5] * 3, [0, 1, 2])
    rows = store(batch, 3)
    put(rows, 0, batch, [0, 1, 0])
    assert rows.successor.tolist() == [1, -1, -2]
    assert rows.addresses.values.tolist() == [2, 4, 5]  # row 1, then slots 0 and 1 after 3 rows
    assert rows.side.space.shape == (7, rows.layout.stored.row_bytes // 8)


def test_more_rows_than_can_be_named_are_refused():
    schema = RowSchema({"observation": (torch.float32, (1,))})
    with pytest.raises(ValueError, match="at most 1073741823 rows, got 1073741824"):
        LosslessRows.zeros(schema, 1 << 30, keys=["observation"])


DTYPES = [torch.bool, torch.uint8, torch.float16, torch.int32, torch.float64, torch.complex128]


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(1, 9)), max_size=5))
@settings(max_examples=60)
def test_the_name_of_the_successor_takes_no_more_than_its_own_bytes(leaves):
    """Alongside the bytes of the same rows without it, whatever their padding."""
    observation = (torch.float32, (3,))
    others = {str(place): (dtype, (size,)) for place, (dtype, size) in enumerate(leaves)}
    once = RowSchema({"observation": observation, **others})
    rows = LosslessRows.zeros(
        RowSchema(
            {
                ("next", "observation"): observation,
                **{key: (once[key].dtype, once[key].shape) for key in once},
            }
        ),
        5,
    )
    assert once.nbytes <= rows.explain(0)["row_bytes"] <= once.nbytes + 4
