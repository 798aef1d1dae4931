"""Who continues whom: literal cases, and any order of writes against every pair of live rows."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.internals import marked_rows
from rl_layout.testing import EndKind, environments, trajectories
from rl_replay import LazyTensorStorage
from rl_replay.linking.links import Links
from rl_replay.linking.markers import Extent, MarkerColumns, MarkerKeys
from rl_replay.storages.private_session import PrivateRing
from rl_replay.testing import LinkedRing, LinksMachine
from rl_replay.testing.linked_ring import linked
from rl_slabs import RowSchema


def test_neighbours_in_one_call_are_linked_up_to_their_boundary() -> None:
    ring = LinkedRing(10, trajectories([1]))
    assert ring.extend(trajectories([3, 2])) == [0, 1, 1, 0, 1]


def test_a_trajectory_goes_on_in_a_later_call_past_rows_of_others() -> None:
    rows = trajectories([5], EndKind.CUT)
    ring = LinkedRing(10, rows)
    ring.extend(rows[:2])
    ring.extend(trajectories([3], first_id=40))
    assert ring.extend(rows[2:4]) == [4, 1]


def test_a_piece_that_comes_late_is_found_by_nobody_but_finds_its_own_past() -> None:
    rows = trajectories([6], EndKind.CUT)
    ring = LinkedRing(10, rows)
    ring.extend(rows[:2])
    ring.extend(rows[4:])
    assert ring.extend(rows[2:4]) == [3, 1]
    assert ring.live_links() == ring.expected()


def test_rows_of_interleaved_environments_are_linked_by_their_steps() -> None:
    batch = environments(3, 4, [9], [EndKind.CUT])
    flat = batch.transpose(0, 1).reshape(-1)
    ring = LinkedRing(24, flat)
    assert ring.extend(flat) == [0, 0, 0, *[3] * 9]


def test_many_interleaved_environments_are_linked_by_one_sort() -> None:
    batch = environments(60, 5, [3, 4], [EndKind.TERMINATED, EndKind.CUT])
    flat = batch.transpose(0, 1).reshape(-1)
    ring = LinkedRing(600, flat)
    ring.extend(flat[:130])
    ring.extend(flat[130:])
    assert ring.live_links() == ring.expected()


def test_a_time_first_batch_is_linked_along_its_columns() -> None:
    batch = environments(3, 4, [9], [EndKind.CUT])
    plain = batch.exclude(keys.COLLECTOR)
    ring = LinkedRing(24, plain)
    assert ring.extend(plain, dim_extend=1) == [0, 0, 0, *[3] * 9]


def test_the_rows_of_a_batch_are_apart_where_nothing_else_says_so() -> None:
    batch = environments(3, 4, [9], [EndKind.CUT]).exclude(keys.COLLECTOR, "is_init")
    ring = LinkedRing(24, batch)
    assert ring.extend(batch) == [0, 1, 1, 1] * 3


def test_an_overwritten_row_is_continued_by_nobody() -> None:
    rows = trajectories([9], EndKind.CUT)
    ring = LinkedRing(5, rows)
    ring.extend(rows[:2])
    ring.extend(trajectories([3], first_id=40))
    assert ring.extend(rows[2:3]) == [4]  # row 1 is overwritten only by the next write
    ring.extend(trajectories([4], first_id=50))
    assert ring.extend(rows[3:4]) == [0]  # at the place of row 2
    assert ring.live_links() == ring.expected()


@pytest.mark.parametrize("gone", [keys.TRAJ_IDS, keys.TRAJ_STEP, keys.COLLECTOR])
def test_without_ids_or_steps_equal_bits_join_two_calls(gone: str) -> None:
    rows = trajectories([5], EndKind.CUT).exclude(gone)
    ring = LinkedRing(10, rows)
    ring.extend(rows[:2])
    assert ring.extend(rows[2:4]) == [1, 1]
    assert ring.extend(rows[:2]) == [0, 1]


def test_without_ids_other_bits_do_not_join_two_calls() -> None:
    rows = trajectories([5], EndKind.CUT).exclude(keys.COLLECTOR)
    rows["observation"][2, 0] = -0.0
    rows["next", "observation"][1, 0] = 0.0
    ring = LinkedRing(10, rows)
    ring.extend(rows[:2])
    assert ring.extend(rows[2:4]) == [0, 1]


@pytest.mark.parametrize(
    ("name", "values", "back"),
    [("episode", (4, 4), 1), ("episode", (4, 5), 0), ("step", (2, 3), 1), ("step", (2, 4), 0)],
)
def test_equal_bits_do_not_join_two_calls_whose_markers_cut(
    name: str, values: tuple[int, int], back: int
) -> None:
    marked = MarkerKeys(ids=("episode",)) if name == "episode" else MarkerKeys(step="step")
    links = Links(5, replace(marked, observations=(("a", ("next", "a")),)))
    found = []
    for number, value in enumerate(values):
        leaves = {name: torch.tensor([value]), "a": torch.ones(1), "next": {"a": torch.ones(1)}}
        rows = TensorDict(leaves, [1])
        found.append(links.match(rows, Extent.of((1,), 0), range(number, number + 1)))
        links.write(PrivateRing(5).reserve(1), found[-1])
    assert found[1].back.tolist() == [back]


def test_nan_equals_itself_bit_for_bit() -> None:
    rows = trajectories([5], EndKind.CUT).exclude(keys.COLLECTOR)
    rows["observation"][2] = rows["next", "observation"][1] = torch.full((2,), float("nan"))
    ring = LinkedRing(10, rows)
    ring.extend(rows[:2])
    assert ring.extend(rows[2:4]) == [1, 1]


def test_without_ids_columns_of_a_time_first_storage_go_on() -> None:
    batch = environments(3, 4, [9], [EndKind.CUT]).exclude(keys.COLLECTOR)
    ring = LinkedRing(24, batch)
    ring.extend(batch[:, :1], dim_extend=1)
    assert ring.extend(batch[:, 1:3], dim_extend=1) == [3] * 6


def test_without_ids_and_observations_nothing_is_joined_across_calls() -> None:
    rows = trajectories([5], EndKind.CUT).select("is_init", ("next", "done"))
    ring = LinkedRing(10, rows)
    ring.extend(rows[:2])
    assert ring.extend(rows[2:4]) == [0, 1]


def test_masked_rows_continue_nobody() -> None:
    rows = trajectories([5], EndKind.CUT)
    rows[keys.MASK] = torch.tensor([True, True, False, True, True])
    assert LinkedRing(10, rows).extend(rows) == [0, 1, -1, 0, 1]


def test_done_cuts_n_step_rows_only_one_step_away() -> None:
    rows = trajectories([3, 2])
    rows[keys.NEXT_DONE][1] = rows[keys.NEXT_TERMINATED][1] = True
    rows[keys.STEPS_TO_NEXT_OBS] = torch.tensor([2, 2, 1, 2, 1]).unsqueeze(-1)
    assert LinkedRing(10, rows).extend(rows) == [0, 1, 1, 0, 1]


def test_rows_that_wait_are_forgotten_once_overwritten() -> None:
    ring = LinkedRing(20, trajectories([1]))
    for traj_id in range(600):
        ring.extend(trajectories([2], EndKind.CUT, first_id=traj_id))
    assert len(ring.links.pending) <= 129


@pytest.mark.parametrize("gone", [None, keys.TRAJ_IDS, keys.TRAJ_STEP, keys.COLLECTOR])
@pytest.mark.parametrize("far", [False, True])
def test_one_row_is_linked_as_a_batch_of_one_is(gone: str | None, far: bool) -> None:
    rows = trajectories([3, 2, 4], [EndKind.TRUNCATED, EndKind.CUT, EndKind.TERMINATED])
    rows[keys.MASK] = torch.tensor([1, 1, 1, 1, 1, 1, 0, 1, 1]).bool()
    if far:
        rows[keys.STEPS_TO_NEXT_OBS] = torch.tensor([1, 1, 2, 1, 1, 1, 1, 1, 1]).unsqueeze(-1)
    rows = rows if gone is None else rows.exclude(gone)
    ring = LinkedRing(10, rows)
    for number, row in enumerate(rows.unbind(0)):
        one = ring.links.match_one(lambda key, row=row: row[key].numpy(), number)
        many = ring.links.match(row.unsqueeze(0), Extent(1, 1, 1), range(number, number + 1))
        assert (one.back == many.back).all()
        assert (one.open_ends, list(one.consumed)) == (many.open_ends, list(many.consumed))
        assert list(one.lasts) == list(many.lasts) or not row.get(keys.MASK)
        ring.extend(row.unsqueeze(0))
    if gone is None:
        assert ring.live_links() == ring.expected()


def test_revising_keeps_what_the_markers_allow_and_finds_what_they_name() -> None:
    rows = trajectories([4, 3], EndKind.CUT)
    ring = LinkedRing(10, rows)
    ring.extend(rows)
    changed = rows.clone()
    changed[keys.NEXT_DONE][1] = True
    ring.links.revise(MarkerColumns.of(changed, ring.links.keys), 0)
    assert ring.links.back[:7].tolist() == [0, 1, 0, 1, 0, 1, 1]
    ring.links.revise(MarkerColumns.of(rows, ring.links.keys), 0)
    assert ring.links.back[:7].tolist() == [0, 1, 1, 1, 0, 1, 1]
    assert set(ring.links.pending.values()) == {3, 6}


def test_further_ids_cut_as_well() -> None:
    rows = trajectories([4], EndKind.CUT)
    rows["game"] = torch.tensor([1, 1, 2, 2])
    found = MarkerKeys.of(RowSchema.from_tensordict(rows)).with_explicit(["game"], [])
    links = Links(10, found)
    assert links.match(rows, Extent.of((4,), 0), range(4)).back.tolist() == [0, 1, 0, 1]


TestLinks = LinksMachine.TestCase
TestLinks.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_copies_of_steps_never_branch_and_never_break_a_rule(data: st.DataObject) -> None:
    tape = trajectories([7, 5, 6], EndKind.CUT)
    capacity = data.draw(st.integers(5, 60))
    ring = LinkedRing(capacity, tape)
    for _ in range(data.draw(st.integers(1, 6))):
        rows = data.draw(st.lists(st.integers(0, 17), min_size=1, max_size=min(50, capacity)))
        ring.extend(tape[torch.tensor(rows)])
    links = ring.live_links()
    assert len(set(links.values())) == len(links)
    for later, earlier in links.items():
        two = torch.stack([ring.history[earlier], ring.history[later]])
        assert linked(list(enumerate(marked_rows(two)))) == {1: 0}
    waiting = set(range(ring.ring.first, ring.ring.published)) - set(links.values())
    assert {n for n in ring.links.pending.values() if n >= ring.ring.first} <= waiting


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_few_and_many_rows_in_a_call_are_linked_alike(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=9))
    kinds = st.sampled_from([EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT])
    rows = trajectories(lengths, [data.draw(kinds) for _ in lengths])
    if data.draw(st.booleans()):  # pieces come in any order
        rows = rows[data.draw(st.permutations(range(len(rows))))]
    flags = st.lists(st.sampled_from([True, False, False]), min_size=len(rows), max_size=len(rows))
    real = [not flag for flag in data.draw(flags)]
    rows[keys.MASK] = torch.tensor(real)
    for key in (keys.IS_INIT, keys.NEXT_DONE):  # also where nothing begins or ends
        rows[key] = rows[key] | torch.tensor(data.draw(flags)).unsqueeze(-1)
    ring, at = LinkedRing(data.draw(st.integers(40, 90)), rows), 0
    while at < len(rows):  # up to 16 rows are walked over, of more the ends
        count = data.draw(st.integers(1, 30))
        ring.extend(rows[at : at + count])
        at += count
    assert ring.live_links() == ring.expected()


def test_the_distances_may_live_in_memory_made_elsewhere() -> None:
    memory = np.zeros(6, dtype=np.int32)
    ring = LinkedRing(6, trajectories([1]))
    ring.links.back = memory
    ring.extend(trajectories([2]))
    assert memory.tolist() == [0, 1, 0, 0, 0, 0]


def test_rows_of_another_writer_are_open_until_their_successor_is_known() -> None:
    markers = MarkerKeys(ids=("episode",), step="step")
    links = Links(10, markers)
    for steps, back, numbers in (([0, 1], [0, 1], range(2)), ([2], [1], range(2, 3))):
        rows = {"episode": np.full(len(steps), 4), "step": np.array(steps)}
        marks = MarkerColumns.read(rows.get, markers, len(steps))
        links.observe_external(marks, np.array(back, dtype=np.int32), numbers)
    assert links.pending == {(4, 2): 2}


def test_dropped_rows_are_open_no_longer() -> None:
    links = Links(10, MarkerKeys(ids=("episode",), step="step"))
    links.pending |= {(4, 1): 3, (5, 0): 6}
    links.drop_before(5)
    assert links.pending == {(5, 0): 6}


def test_the_newest_row_is_continued_by_equal_bits_after_a_load() -> None:
    links = Links(10, MarkerKeys(observations=(("a", ("next", "a")),)))
    rows = torch.ones(1)
    newest = TensorDict(a=rows, next={"a": 2 * rows}, batch_size=[1])
    links.observe_tail(newest, np.array([0], dtype=np.int32))
    later = TensorDict(a=2 * rows, next={"a": rows}, batch_size=[1])
    assert links.match(later, Extent(1, 1, 1), range(1, 2)).back.tolist() == [1]


@pytest.mark.parametrize("marked", ["", "mask", "far"])
@pytest.mark.parametrize("count", [1, 2, 16, 17])
def test_rows_of_a_storage_are_linked_alike_however_many_come_in_a_call(
    count: int, marked: str
) -> None:
    rows = trajectories([9, 2, 9], [EndKind.TRUNCATED, EndKind.CUT, EndKind.TERMINATED])
    if marked:
        rows[keys.MASK] = torch.arange(20) != 14
    if marked == "far":
        rows[keys.STEPS_TO_NEXT_OBS] = torch.arange(1, 21).remainder(3).clamp(min=1).unsqueeze(-1)
    whole, pieces = LazyTensorStorage(20), LazyTensorStorage(20)
    whole.extend(rows)
    for at in range(0, 20, count):
        pieces.extend(rows[at : at + count])
    numbers = np.arange(20)
    for steps in (1, 3):
        found, known = pieces.after(numbers, steps)
        expected, are_known = whole.after(numbers, steps)
        assert np.array_equal(known, are_known)
        assert np.array_equal(found[known], expected[known])
        assert known.any()


@st.composite
def few_rows(draw: st.DrawFn) -> tuple[list[int], list[int], list[bool], list[bool], list[int]]:
    """Ids, steps, first and last steps of rows that mostly are runs, and how they are cut."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    ids, steps = [], []
    for number, length in enumerate(lengths):
        same, skip = draw(st.booleans()), draw(st.sampled_from([0, 0, 1]))
        # the same trajectory continues, perhaps after a hole, or another one begins
        goes_on = steps and (same or draw(st.booleans()))
        start = steps[-1] + 1 + skip if goes_on else 0
        ids += [ids[-1] if same and ids else number] * length
        steps += range(start, start + length)
    count = len(ids)
    flags = st.lists(st.sampled_from([False, False, True]), min_size=count, max_size=count)
    none = st.just([False] * count)
    first, last = draw(none | flags), draw(none | flags)
    return ids, steps, first, last, draw(st.lists(st.integers(1, 16), min_size=1))


@settings(max_examples=300)
@given(few_rows())
def test_few_rows_of_a_call_continue_what_their_markers_say(
    case: tuple[list[int], list[int], list[bool], list[bool], list[int]],
) -> None:
    ids, steps, first, last, sizes = case
    count = len(ids)
    ended = {"done": torch.tensor(last)[:, None], "truncated": torch.tensor(last)[:, None]}
    rows = TensorDict(
        {"is_init": torch.tensor(first)[:, None], "next": ended, "observation": torch.rand(count)},
        [count],
    )
    rows[keys.TRAJ_IDS], rows[keys.TRAJ_STEP] = torch.tensor(ids), torch.tensor(steps)
    expected = [0] * count
    for later, earlier in linked(list(enumerate(marked_rows(rows)))).items():
        expected[later] = later - earlier
    storage, at = LazyTensorStorage(60), 0
    for size in itertools.cycle(sizes):
        if at >= count:
            break
        storage.extend(rows[at : at + size])
        at += size
    assert storage.back[:count].tolist() == expected


@pytest.mark.parametrize("ends", [(False, True), (True, False)])
def test_flags_of_the_last_of_few_rows_are_compared(ends: tuple[bool, bool]) -> None:
    rows = trajectories([4] * 2, [EndKind.CUT] * 2)
    storage = LazyTensorStorage(20)
    storage.extend(rows[:4])
    for name, flag in zip(("done", "terminated"), ends, strict=True):
        rows["next", name][-1] = flag
    with pytest.warns(UserWarning, match="1 rows have done flags under 'next' that contradict"):
        storage.extend(rows[4:])
