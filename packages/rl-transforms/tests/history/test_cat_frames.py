from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.reference import ListRowSource
from rl_layout.testing import EndKind, environments, trajectories
from rl_specs import Bounded, Composite, Unbounded
from rl_transforms import (
    CatFrames,
    Compose,
    DTypeCastTransform,
    TimeMaxPool,
    UnsqueezeTransform,
    multi_step,
    reference,
)

FRAME, STACK = "pixels", "stacked_pixels"
NEXT_STACK = ("next", STACK)
sizes = st.lists(st.integers(1, 7), min_size=1, max_size=4)
kinds = st.lists(st.sampled_from(list(EndKind)), min_size=1, max_size=3)
paddings = st.sampled_from([("same", 0), ("constant", 9)])


def filmed(batch, dtype=torch.uint8):
    """The batch with a frame [2, 3, 5] in every row, as an environment shows it."""
    for place in ((), ("next",)):
        seen = batch[(*place, "observation")]
        number = (seen[..., :1] * 17 + seen[..., 1:] * 5).long()
        ramp = torch.arange(30)
        frames = (number + ramp) % 251
        batch[(*place, FRAME)] = frames.reshape(*batch.shape, 2, 3, 5).to(dtype)
    return batch


def stepped(change, batch):
    """What an environment writes that shows these frames, resets its rows as they begin."""
    after, columns = None, []
    for t in range(batch.shape[1]):
        root = batch[:, t].clone()
        if after is None:
            root = change.reset(root)
        else:
            root = change.reset(root.set(STACK, after[STACK]), root["is_init"].squeeze(-1))
        after = change.step(root, root["next"])
        columns.append(root.set("next", after))
    return torch.stack(columns, 1)


def assert_same(found, wanted):
    assert found.dtype == wanted.dtype
    assert torch.equal(found, wanted)


def test_stack_holds_the_last_three_frames_after_padding():
    rows = trajectories([3, 2])
    for place in ((), ("next",)):
        rows[(*place, FRAME)] = rows[(*place, "observation")][:, 1:].to(torch.uint8)
    same, constant = CatFrames(3, -1), CatFrames(3, -1, padding="constant", padding_value=9)
    assert same(rows)[STACK].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 0, 1]]
    assert constant(rows)[STACK].tolist() == [[9, 9, 0], [9, 0, 1], [0, 1, 2], [9, 9, 0], [9, 0, 1]]
    assert same(rows)[NEXT_STACK][2].tolist() == [1, 2, 3]
    assert constant(rows)[NEXT_STACK][3].tolist() == [9, 0, 1]
    assert same(rows)[STACK].dtype == torch.uint8
    assert not same(rows)[keys.HISTORY_MISSING].any()
    assert STACK not in rows


@pytest.mark.parametrize(("dim", "shape"), [(-3, (8, 3, 5)), (-2, (2, 12, 5)), (-1, (2, 3, 20))])
def test_frames_are_stacked_along_any_of_their_dimensions(dim, shape):
    rows = filmed(trajectories([7]))
    stack = CatFrames(4, dim)(rows)[STACK]
    assert stack.shape == (7, *shape)
    assert_same(stack[5], torch.cat(list(rows[FRAME][2:6]), dim))


@given(sizes, kinds, paddings, st.sampled_from([-1, -3]), st.integers(1, 5))
def test_rolled_out_batch_gets_the_stacks_of_the_environment(
    lengths, ends, padding, dim, num_frames
):
    batch = filmed(environments(3, 11, lengths, ends))
    change = CatFrames(num_frames, dim, padding=padding[0], padding_value=padding[1])
    wanted, found = stepped(change, batch), change(batch)
    assert_same(found[STACK], wanted[STACK])
    assert_same(found[NEXT_STACK], wanted[NEXT_STACK])
    assert not found[keys.HISTORY_MISSING].any()


@given(sizes, paddings, st.sampled_from([-1, -2]), st.sets(st.integers(1, 10)))
def test_stacks_of_finished_rows_do_not_depend_on_batch_cuts(lengths, padding, dim, cuts):
    batch = filmed(environments(3, 11, lengths, [EndKind.TERMINATED, EndKind.TRUNCATED]))
    change = CatFrames(4, dim, padding=padding[0], padding_value=padding[1])
    last, pieces = None, []
    for piece in batch.tensor_split(sorted(cuts), 1):
        pieces.append(change.rows(piece, last))
        last = pieces[-1][:, -1]
    found, wanted = torch.cat(pieces, 1), stepped(change, batch)
    assert_same(found[STACK], wanted[STACK])
    assert_same(found[NEXT_STACK], wanted[NEXT_STACK])


@given(sizes, kinds, paddings, st.sampled_from([-1, -3]), st.integers(0, 20), st.data())
def test_buffer_rebuilds_the_bits_of_the_environment(lengths, ends, padding, dim, num_lost, data):
    batch = filmed(environments(3, 11, lengths, ends))
    change = CatFrames(4, dim, padding=padding[0], padding_value=padding[1])
    wanted = stepped(change, batch).reshape(-1)[num_lost:]
    stored = change.inv(wanted)
    assert STACK not in stored
    assert STACK not in stored["next"]
    stored[keys.ROW] = torch.arange(len(stored))
    picked = st.lists(st.integers(0, len(stored) - 1), min_size=1, max_size=9)
    rows = torch.tensor(data.draw(picked))
    sample = stored[rows].clone()
    sample["is_init"] = torch.ones_like(sample["is_init"])  # as at the starts of slices
    found = change(sample, ListRowSource(stored))
    _, gone = reference.cat_frames(stored, FRAME, 4)
    assert torch.equal(found[keys.HISTORY_MISSING], gone[rows])
    whole = ~gone[rows]
    assert_same(found[STACK][whole], wanted[STACK][rows][whole])
    assert_same(found[NEXT_STACK][whole], wanted[NEXT_STACK][rows][whole])
    assert_same(found[FRAME], wanted[FRAME][rows])


@given(sizes, kinds, st.sampled_from([None, 9]), st.integers(1, 5), st.sampled_from([0, 3]))
def test_stack_equals_the_reference(lengths, ends, constant, num_frames, first_step):
    ends = (ends * len(lengths))[: len(lengths)]
    batch = filmed(trajectories(lengths, ends, first_step=first_step))
    padding = "same" if constant is None else "constant"
    change = CatFrames(num_frames, -1, padding=padding, padding_value=constant or 0)
    stacks, gone = reference.cat_frames(batch, FRAME, num_frames, constant)
    found = change(batch)
    assert_same(found[STACK], stacks)
    assert torch.equal(found[keys.HISTORY_MISSING], gone)


@pytest.mark.parametrize("in_buffer", [False, True])
@given(sizes, kinds, st.integers(2, 4), st.integers(1, 5))
def test_stack_of_an_n_step_row_ends_at_its_next_frame(in_buffer, lengths, ends, n, num_frames):
    ends = (ends * len(lengths))[: len(lengths)]
    batch = filmed(trajectories(lengths, ends))
    change = CatFrames(num_frames, -1)
    wanted = multi_step(change(batch).exclude(keys.HISTORY_MISSING), 0.9, n)
    far = multi_step(batch, 0.9, n)
    far[keys.ROW] = torch.arange(len(far))
    rows = torch.arange(len(far) - 1, -1, -2) if in_buffer else torch.arange(len(far))
    found = change(far[rows], ListRowSource(far)) if in_buffer else change(far)
    assert not found[keys.HISTORY_MISSING].any()
    assert_same(found[STACK], wanted[STACK][rows])
    assert_same(found[NEXT_STACK], wanted[NEXT_STACK][rows])


def test_n_step_rows_with_missing_intermediate_frames_are_marked():
    far = multi_step(filmed(trajectories([9], EndKind.CUT)), 0.9, 3)
    far[keys.ROW] = torch.arange(9)
    holed = ListRowSource(torch.cat([far[:5], far[5:6].apply(torch.zeros_like), far[6:]]))
    found = CatFrames(3, -1)(far[torch.tensor([2, 3, 4])], holed)
    assert found[keys.HISTORY_MISSING].tolist() == [False, True, True]


def test_overwritten_row_is_marked_and_padded():
    class Late(ListRowSource):
        def read(self, rows, keys):
            found, _ = super().read(rows, keys)
            return found, rows > 0

    rows = filmed(trajectories([4]))
    rows[keys.ROW] = torch.arange(4)
    found = CatFrames(2, -1)(rows, Late(rows))
    assert found[keys.HISTORY_MISSING].tolist() == [True, True, False, False]
    assert_same(found[STACK][1], torch.cat([rows[FRAME][1]] * 2, -1))


def test_first_steps_are_read_from_is_init_without_traj_step():
    rows = filmed(trajectories([3, 4])).exclude(keys.TRAJ_STEP)
    stored = rows.clone()
    stored[keys.ROW] = torch.arange(7)
    whole = CatFrames(3, -1)(rows)
    assert not whole[keys.HISTORY_MISSING].any()
    assert CatFrames(3, -1)(rows[1:])[keys.HISTORY_MISSING].tolist() == [True, True, *[False] * 4]
    picked = torch.tensor([2, 4])
    found = CatFrames(3, -1)(stored[picked], ListRowSource(stored))
    assert_same(found[STACK], whole[STACK][picked])


@pytest.mark.parametrize("gap", [1, 2])
def test_padding_rows_are_stacked_with_themselves_only(gap):
    rows = filmed(trajectories([5]))
    rows[keys.MASK] = torch.arange(5) != gap
    stacks = CatFrames(2, -1)(rows)
    assert_same(stacks[STACK][gap], torch.cat([rows[FRAME][gap]] * 2, -1))
    assert stacks[keys.HISTORY_MISSING].tolist()[gap + 1 : gap + 3] == [True, False]


def test_nested_leaves_are_stacked_separately():
    rows = trajectories([3])
    rows["eye", "left"], rows["eye", "right"] = torch.rand(3, 4), torch.rand(3, 2, 5).double()
    change = CatFrames(2, -1, [("eye", "left"), ("eye", "right")])
    made = change(rows)["eye"]
    assert made["stacked_left"].shape == (3, 8)
    assert made["stacked_right"].shape == (3, 2, 10)
    assert made["stacked_right"].dtype == torch.float64
    assert "eye" not in change(rows)["next"]  # there are no next frames


def test_rows_outside_the_mask_of_a_reset_keep_their_stack():
    change = CatFrames(2, -1)
    root = change.reset(TensorDict({FRAME: torch.tensor([[1], [2], [3]])}, [3]))
    after = change.step(root, TensorDict({FRAME: torch.tensor([[4], [5], [6]])}, [3]))
    again = change.reset(after, torch.tensor([False, True, False]))
    assert again[STACK].tolist() == [[1, 4], [5, 5], [3, 6]]


def test_spec_describes_the_stack():
    spec = Composite(pixels=Bounded(3, 255, (7, 2, 5), dtype=torch.uint8), shape=(7,))
    same = CatFrames(4, -2).transform_observation_spec(spec)[STACK]
    padded = CatFrames(4, -2, padding="constant").transform_observation_spec(spec)[STACK]
    assert same.shape == padded.shape == (7, 8, 5)
    assert (same.dtype, int(same.low.min()), int(padded.low.min())) == (torch.uint8, 3, 0)


def test_inputs_of_an_environment_keep_their_stack():
    root = TensorDict({STACK: torch.zeros(2, 3), "action": torch.zeros(2)}, [2])
    assert CatFrames(3, -1).inv(root) is root


def test_invalid_settings_are_refused():
    with pytest.raises(ValueError, match="both frame and stack"):
        CatFrames(4, -3, ["pixels"], ["pixels"])
    with pytest.raises(ValueError, match="at least 1, got 0"):
        CatFrames(0, -3)
    with pytest.raises(ValueError, match=r"negative number.*got 1"):
        CatFrames(4, 1)
    with pytest.raises(ValueError, match="'same' or 'constant', got 'zeros'"):
        CatFrames(4, -3, padding="zeros")
    with pytest.raises(TypeError, match="list of keys"):
        CatFrames(4, -3, "pixels")


def test_missing_frames_and_markers_are_named():
    rows = filmed(trajectories([3]))
    change = CatFrames(4, -3)
    with pytest.raises(KeyError, match="'image' is missing"):
        CatFrames(4, -3, ["image"])(rows)
    with pytest.raises(
        KeyError, match=r"'traj_step'\) is missing.*store .* 'is_init' True in the fi"
    ):
        change(rows.exclude(keys.TRAJ_STEP, "is_init"))
    with pytest.raises(KeyError, match=r"'row'\) is missing"):
        change(rows, ListRowSource(rows))
    with pytest.raises(KeyError, match=r"'stacked_pixels' is missing.*Call reset first"):
        change.step(rows, rows["next"])
    flat = Composite(observation=Unbounded((3, 2)), shape=(3,))
    wrong = CatFrames(4, -2, ["observation"])
    for use in (lambda: wrong(rows), lambda: wrong.reset(rows)):
        with pytest.raises(ValueError, match=r"dim=-2 wants frames of 2 dimensions.*got \[2\]"):
            use()
    with pytest.raises(ValueError, match="wants frames of 2 dimensions"):
        wrong.transform_observation_spec(flat)
    with pytest.raises(ValueError, match=r"padding_value=0\.5 is no number of torch\.uint8"):
        CatFrames(4, -3, padding="constant", padding_value=0.5).reset(rows)


def test_frames_changed_by_an_earlier_transform_are_refused():
    rows = filmed(trajectories([3]))
    rows[keys.ROW] = torch.arange(3)
    cast = DTypeCastTransform(torch.uint8, torch.float32, [FRAME])
    with pytest.raises(ValueError, match=r"float32 alongside.*uint8.*Put CatFrames ahead"):
        Compose(cast, CatFrames(2, -3))(rows, ListRowSource(rows))
    darker = Compose(lambda batch: batch.set(FRAME, batch[FRAME] // 2), CatFrames(2, -3))
    with pytest.raises(ValueError, match="not what the buffer holds"):
        darker(rows, ListRowSource(rows))
    nan = filmed(trajectories([3]), torch.float32)
    nan[keys.ROW], nan[FRAME][1] = torch.arange(3), torch.nan
    assert CatFrames(2, -3)(nan, ListRowSource(nan))[STACK].isnan().sum() == 60


def test_frames_made_by_a_transform_of_the_buffer_are_refused():
    rows = filmed(trajectories([3]))
    rows[keys.ROW] = torch.arange(3)
    made = UnsqueezeTransform(-1, in_keys=[FRAME], out_keys=["frame"])
    for reads in (CatFrames(2, -3, ["frame"]), TimeMaxPool(["frame"], T=2)):
        with pytest.raises(KeyError, match=r"frame.*put it into the environment"):
            Compose(made, reads)(rows, ListRowSource(rows))


def test_spec_of_a_frame_with_too_few_dimensions_is_refused():
    stack = CatFrames(2, dim=-3, in_keys=[FRAME], out_keys=[STACK])
    for spec in (Unbounded((5, 7)), Composite(done=Unbounded((1,)))):
        with pytest.raises(ValueError, match=r"spec: dim=-3 wants frames of 3 dimensions or more"):
            stack.leaf_spec(spec)
