import multiprocessing

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_replay.lossless.linker import Addresses
from rl_replay.lossless.overflow import FREE, OverflowTable
from rl_replay.testing.observed_rows import filled, observations, plain_batch, put, store
from rl_slabs import LazyFile, RowSchema, Slab
from rl_slabs.lanes.lane import LANE_SHIFT

SCHEMA = RowSchema({"small": (torch.float32, (3,)), "frame": (torch.uint8, (7, 50))})


def leaves(count, value):
    return TensorDict(
        {
            "small": torch.full((count, 3), float(value)),
            "frame": torch.full((count, 7, 50), value, dtype=torch.uint8),
        },
        batch_size=[count],
    )


FILES = {
    "private": lambda folder: None,
    "shared": lambda folder: LazyFile.shared("a test"),
    "mapped": lambda folder: LazyFile.mapped(folder / "side"),
}


@pytest.mark.parametrize("kind", ["private", "shared", "mapped"])
def test_what_is_put_into_slots_is_there(kind, tmp_path):
    file = FILES[kind](tmp_path)
    table = OverflowTable(SCHEMA, 9, memory=OverflowTable.memory_for(SCHEMA, 9, file=file))
    slots = table.take(0, 4)
    table.put(slots, np.arange(70, 74), leaves(4, 5))
    assert table.owners[slots].tolist() == [70, 71, 72, 73]
    assert (table.rows.read(torch.from_numpy(slots)) == leaves(4, 5)).all()


def test_a_slot_that_was_given_back_has_no_owner_and_is_the_next():
    table = OverflowTable(SCHEMA, 9)
    slots = table.take(0, 3)
    table.put(slots, np.arange(3), leaves(3, 1))
    table.release(0, slots[1:2])
    assert table.owners[:3].tolist() == [0, FREE, 2]
    assert table.in_use() == 2
    assert table.take(0, 2).tolist() == [1, 3]


@given(st.lists(st.integers(-6, 6), max_size=40))
def test_slots_are_never_given_twice_and_no_more_are_touched_than_were_used_at_once(moves):
    table, held, most = OverflowTable(SCHEMA, 30), [], 0
    for move in moves:
        if move > 0 and len(held) + move <= 30:
            slots = table.take(0, move).tolist()
            assert not set(slots) & set(held)
            held += slots
        elif move < 0:
            table.release(0, np.array(held[move:], dtype=np.int64))
            held = held[:move]
        most = max(most, len(held))
        assert table.in_use() == len(held)
        assert all(slot < most for slot in held)


def test_more_slots_than_there_are_are_refused():
    table = OverflowTable(SCHEMA, 4)
    table.take(0, 3)
    assert table.secure(0, 1)
    assert not table.secure(0, 2)
    with pytest.raises(ValueError, match="4 slots a lane cannot give 2 more: 3 are in use"):
        table.take(0, 2)
    assert table.in_use() == 3


def test_lanes_have_slots_of_their_own():
    table = OverflowTable(SCHEMA, 4, lanes=3)
    taken = [table.take(lane, 4).tolist() for lane in (2, 0, 1)]
    assert sorted(slot for lane in taken for slot in lane) == list(range(12))
    assert taken[0] == [8, 9, 10, 11]


def test_slots_that_nobody_names_are_found_again():
    table = OverflowTable(SCHEMA, 8, lanes=2)
    slots = table.take(1, 5)
    table.rebuild(1, slots[[1, 3]])
    assert table.in_use() == 2
    assert table.take(1, 3).tolist() == [10, 8, 12]
    table.rebuild(1, np.empty(0, dtype=np.int64))
    assert table.in_use() == 0
    assert table.take(1, 1).tolist() == [8]


def test_room_is_made_of_slots_that_nobody_names():
    table, named = OverflowTable(SCHEMA, 4, lanes=2), torch.zeros(8, dtype=torch.int32)
    addresses = Addresses(named, lanes=2, alone=False)
    table.take(1, 4)
    addresses.set(np.array([5, 6]), addresses.of_slots(np.array([5, 7], dtype=np.int32)))
    table.make_room(1, 2, addresses.slots_of_lane)
    assert table.in_use() == 2
    assert sorted(table.take(1, 2).tolist()) == [4, 6]


def test_slots_return_to_the_lanes_of_their_rows():
    table = OverflowTable(SCHEMA, 3, lanes=2)
    slots = np.concatenate([table.take(0, 2), table.take(1, 3)])
    table.release_each(np.array([0, 1, 1]), slots[[1, 3, 4]])
    assert [table.take(lane, 1).tolist() for lane in (0, 1)] == [[1], [5]]


def test_slots_filled_as_they_came_are_put_into_the_lanes_of_their_owners():
    table, base = OverflowTable(SCHEMA, 4, lanes=3), 1 << LANE_SHIFT
    table.prepare(6)
    table.rows.write(slice(0, 6), torch.cat([leaves(1, value) for value in range(6)]))
    owners = np.array([2 * base + 7, 70, 2 * base + 3, 2 * base + 9, 71, base])
    places = table.regroup(owners)
    assert places.tolist() == [8, 0, 9, 10, 1, 4]
    assert table.rows.read(torch.from_numpy(places))["small"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert (table.owners[places] == owners).all()
    assert (table.owners > 0).sum() == table.in_use() == 6
    assert [table.take(lane, 1).tolist() for lane in range(3)] == [[2], [5], [11]]
    empty = OverflowTable(SCHEMA, 4)
    empty.prepare(0)
    assert empty.regroup(np.empty(0, dtype=np.int64)).size == 0


def test_only_what_may_be_needed_is_taken_from_memory():
    schema = RowSchema({"frame": (torch.uint8, (1 << 20,))})
    table = OverflowTable(schema, 1 << 20)  # a terabyte, promised
    table.take(0, 3)
    assert table.nbytes == 3 * ((1 << 20) + 12)


def test_hardly_more_is_taken_than_is_in_use():
    schema = RowSchema({"observation": (torch.float32, (8,))})
    table, each = OverflowTable(schema, 100_000), 8 * 4 + 12
    for used in range(7, 50_000, 7):
        table.take(0, 7)
        assert table.nbytes <= used * each * 17 / 16 + 100_000


def test_a_disk_too_small_for_another_slot_is_an_error_before_anything_changes(tmp_path):
    schema = RowSchema({"frame": (torch.uint8, (1 << 30,))})
    memory = OverflowTable.memory_for(schema, 4096, file=LazyFile.mapped(tmp_path / "side"))
    table = OverflowTable(schema, 4096, memory=memory)
    with pytest.raises(OSError, match="an overflow table of 4000 observations of 1073741824 bytes"):
        table.take(0, 4000)
    assert table.in_use() == 0


def release_elsewhere(table, lane, slots):
    process = multiprocessing.get_context("spawn").Process(
        target=OverflowTable.release, args=(table, lane, slots)
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_a_spawned_process_goes_on_with_the_same_slots():
    table = OverflowTable(
        SCHEMA, 5, memory=OverflowTable.memory_for(SCHEMA, 5, file=FILES["shared"](None))
    )
    slots = table.take(0, 4)
    release_elsewhere(table, 0, slots[1:])
    assert table.in_use() == 1


SMALL = RowSchema({"small": (torch.float32, (3,))})


@pytest.mark.parametrize("kind", ["private", "shared", "mapped"])
def test_slots_can_be_spare_rows_of_a_slab(kind, tmp_path):
    options = {"path": tmp_path / "a"} if kind == "mapped" else {}
    slab = getattr(Slab, kind)(SMALL, 6, lanes=2, spare=6, **options)
    table = OverflowTable(SMALL, 3, lanes=2, slab=slab)
    slots = table.take(1, 2)
    table.put(slots, np.array([70, 71]), TensorDict(small=torch.ones(2, 3), batch_size=[2]))
    slab.write(slice(0, 6), TensorDict(small=torch.full((6, 3), 2.0), batch_size=[6]))
    assert table.space.view(np.float32)[:, 0].tolist() == [0] + [2] * 6 + [0] * 3 + [1] * 2 + [0]
    assert (table.rows.read(torch.from_numpy(slots))["small"] == 1).all()
    table.release(1, slots)
    assert table.take(1, 1).tolist() == [4]


def test_another_process_finds_the_slots_of_a_slab():
    slab, file = Slab.shared(SMALL, 6, lanes=2, spare=6), LazyFile.shared("a test")
    table = OverflowTable.for_slab(slab, SMALL, file)
    slots = table.take(1, 3)
    release_elsewhere(table, 1, slots[1:])
    again = OverflowTable.for_slab(slab, SMALL, file)
    assert (again.in_use(), again.take(1, 1).tolist()) == (1, [5])


def test_a_slab_without_spare_rows_has_its_slots_in_the_file():
    slab, file = Slab.shared(SMALL, 6, lanes=2), LazyFile.shared("a test")
    table = OverflowTable.for_slab(slab, SCHEMA, file)
    table.put(table.take(1, 2), np.array([70, 71]), leaves(2, 5))
    again = OverflowTable.for_slab(slab, SCHEMA, file)
    assert again.space is None
    assert (again.rows.read(slice(3, 5)) == leaves(2, 5)).all()


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_links_stay_where_they_are_secured_again(kind):
    memory = OverflowTable.memory_for(SCHEMA, 9, file=FILES[kind](None))
    table = OverflowTable(SCHEMA, 9, memory=memory)
    table.secure_links()
    table.links[:] = range(70, 79)
    table.put(table.take(0, 9), np.arange(9), leaves(9, 5))
    table.release(0, np.array([8, 7]))
    for again in (table, OverflowTable(SCHEMA, 9, memory=table.memory)):
        again.secure_links()
        # neither slots nor what is known of them lie over each other
        assert again.links.tolist() == list(range(70, 79))
        assert again.owners.tolist() == [*range(7), FREE, FREE]
        assert (again.rows.read(slice(0, 9)) == leaves(9, 5)).all()
    assert table.take(0, 2).tolist() == [8, 7]


def test_cleared_rows_give_every_slot_back():
    rows = filled()
    rows.clear()
    assert rows.side.in_use() == 0
    put(rows, 9, plain_batch(torch.arange(2.0), torch.arange(1.0, 3), [6, 6], [0, 1]), [0, 1])
    assert observations(rows, 2) == ([0, 1], [1, 2])


def test_slots_lost_by_a_killed_writer_are_found_when_they_are_needed():
    batch = plain_batch(torch.arange(4.0), torch.arange(10.0, 14), [5] * 4, list(range(4)))
    rows = store(batch, 4)
    put(rows, 0, batch[:2], [0, 0])
    rows.side.take(0, 2)  # taken by a writer that ended before any row named them
    put(rows, 2, batch[2:], [0, 0])
    assert rows.side.in_use() == 4
    assert observations(rows, 4)[1] == [10, 11, 12, 13]
