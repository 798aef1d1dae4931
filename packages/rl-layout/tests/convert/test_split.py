from __future__ import annotations

import pytest
import torch
from hypothesis import given
from tensordict import NonTensorStack, TensorDict

from rl_layout import (
    EndKind,
    Segments,
    join_trajectories,
    keys,
    nest_trajectories,
    pad_trajectories,
    reference,
    split_trajectories,
)
from rl_layout.testing import batches, environments, flat_batches, trajectories


def same(one, other):
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert one.batch_size == other.batch_size
    return all(torch.equal(one[key], other[key]) for key in one.keys(True, True))


@given(flat_batches())
def test_join_is_the_exact_inverse_of_split(batch):
    assert same(join_trajectories(split_trajectories(batch)), batch)
    assert same(join_trajectories(split_trajectories(batch, as_nested=True)), batch)


@given(batches())
def test_join_gives_the_real_rows_of_any_batch_in_order(batch):
    real = batch.get(keys.MASK, torch.ones(batch.batch_size, dtype=torch.bool)).reshape(-1)
    if not real.any():
        return
    rows = batch.reshape(-1)[real].exclude(keys.MASK)
    assert same(join_trajectories(split_trajectories(batch)), rows)
    assert same(join_trajectories(split_trajectories(batch, as_nested=True)), rows)


@given(flat_batches())
def test_rows_of_the_padded_form_are_the_trajectories(batch):
    padded = split_trajectories(batch)
    for row, (start, length, _) in zip(padded, reference.segments(batch), strict=True):
        assert torch.equal(
            row["observation"][:length], batch["observation"][start : start + length]
        )
        assert not row["observation"][length:].any()
        assert (row[keys.TRAJ_IDS][length:] == -1).all()
        assert row[keys.MASK].sum() == length


@given(flat_batches())
def test_the_two_forms_convert_into_each_other(batch):
    padded = split_trajectories(batch)
    nested = split_trajectories(batch, as_nested=True)
    assert same(pad_trajectories(nest_trajectories(padded)), padded)
    assert same(join_trajectories(nest_trajectories(pad_trajectories(nested))), batch)


def test_a_batch_of_environments_is_split_at_row_ends():
    batch = environments(2, 5, [3, 4], [EndKind.TERMINATED])
    padded = split_trajectories(batch)
    assert padded[keys.MASK].sum(1).tolist() == [3, 2, 4, 1]
    assert padded.names == [None, "time"]
    assert same(join_trajectories(padded), batch.reshape(-1))


def test_given_ids_or_flags_alone_decide():
    batch = trajectories([2, 3]).set("mine", torch.tensor([5, 5, 5, 5, 6]))
    by_id = split_trajectories(batch, trajectory_key="mine")
    assert by_id[keys.MASK].sum(1).tolist() == [4, 1]
    assert by_id["mine"].tolist() == [[5, 5, 5, 5], [6, -1, -1, -1]]
    assert split_trajectories(batch, done_key="done")[keys.MASK].sum(1).tolist() == [2, 3]
    assert split_trajectories(batch, done_key=keys.NEXT_DONE).batch_size == (2, 3)


def test_rows_that_are_masked_out_stay_out_whatever_decides():
    mask = torch.tensor([True, True, True, False, False])
    batch = trajectories([2, 3]).set(keys.MASK, mask).set("mine", torch.tensor([0, 0, 1, 1, 1]))
    for arguments in ({}, {"trajectory_key": "mine"}, {"done_key": "done"}, {"prefix": "other"}):
        padded = split_trajectories(batch, **arguments)
        found = padded[arguments.get("prefix", "collector"), "mask"]
        assert found.tolist() == [[True, True], [True, False]]


def test_a_leaf_in_the_place_of_the_mask_is_not_overwritten():
    batch = trajectories([2, 3]).set(("agent", "mask"), torch.arange(5))
    with pytest.raises(ValueError, match="give another prefix"):
        split_trajectories(batch, prefix="agent")


def test_the_device_is_kept():
    batch = trajectories([2, 3]).to("cpu")
    assert join_trajectories(split_trajectories(batch)).device == torch.device("cpu")


def test_the_mask_goes_under_the_prefix():
    padded = split_trajectories(trajectories([2, 3]), prefix="mine")
    assert padded["mine", "mask"].sum() == 5
    assert keys.MASK not in padded.keys(include_nested=True)
    assert same(join_trajectories(padded, prefix="mine"), trajectories([2, 3]))


def test_jagged_leaves_share_the_memory_of_a_full_batch():
    batch = trajectories([2, 3])
    nested = split_trajectories(batch, as_nested=True)
    assert nested["observation"].values().data_ptr() == batch["observation"].data_ptr()
    assert nested.batch_size == (2,)


def test_the_input_is_left_as_it_was():
    batch = trajectories([2, 3])
    before = batch.clone()
    split_trajectories(batch)
    split_trajectories(batch, as_nested=True)
    assert same(batch, before)


def test_split_and_join_name_missing_keys():
    batch = trajectories([2, 3])
    with pytest.raises(KeyError, match="'ids' is missing: there are"):
        split_trajectories(batch, trajectory_key="ids")
    with pytest.raises(KeyError, match="no row tells its length"):
        join_trajectories(batch.reshape(1, 5))
    with pytest.raises(KeyError, match="no marker tells"):
        split_trajectories(batch.select("observation"))


def test_split_and_join_refuse_arguments_that_do_not_fit():
    batch = trajectories([2, 3])
    with pytest.raises(ValueError, match="give trajectory_key or done_key"):
        split_trajectories(batch, trajectory_key="a", done_key="b")
    with pytest.raises(ValueError, match="all 5 are masked out"):
        split_trajectories(batch.set(keys.MASK, torch.zeros(5, dtype=torch.bool)))
    with pytest.raises(ValueError, match="a mask \\[5\\]"):
        join_trajectories(batch)
    with pytest.raises(ValueError, match="expected jagged leaves"):
        pad_trajectories(split_trajectories(trajectories([2, 3])))


def test_a_mask_with_a_hole_cannot_be_nested():
    padded = split_trajectories(trajectories([3, 2]))
    padded[keys.MASK][0] = torch.tensor([True, False, True])
    with pytest.raises(ValueError, match="row 0 of the mask has a real step after padding"):
        nest_trajectories(padded)


def test_a_leaf_that_is_no_tensor_is_named():
    batch = trajectories([2, 3])
    batch.set_non_tensor("note", "hello")
    with pytest.raises(TypeError, match=r"\('note',\): expected a tensor"):
        split_trajectories(batch)
    texts = trajectories([2, 3]).set("text", NonTensorStack(*"abcde"))
    with pytest.raises(TypeError, match=r"\('text',\): expected a tensor"):
        split_trajectories(texts)


def test_segments_of_the_padded_form_are_its_rows():
    padded = split_trajectories(trajectories([2, 4, 3], EndKind.CUT))
    assert Segments.of(padded).lengths.tolist() == [2, 4, 3]


def test_other_leaves_keep_their_trailing_shape_and_dtype():
    batch = TensorDict(
        {
            "is_init": torch.tensor([[True], [False], [True]]),
            "pixels": torch.randint(0, 255, (3, 5, 7), dtype=torch.uint8),
        },
        [3],
    )
    padded = split_trajectories(batch)
    assert padded["pixels"].shape == (2, 2, 5, 7)
    assert padded["pixels"].dtype == torch.uint8


def test_a_mask_belongs_to_whoever_split():
    batch = trajectories([2, 3])
    split_trajectories(batch)["collector", "mask"][:, 0] = False
    again = split_trajectories(batch)
    assert again["collector", "mask"].tolist() == [[True, True, False], [True, True, True]]
    assert len(join_trajectories(again)) == 5


@given(batches())
def test_jagged_trajectories_pad_to_the_longest_one(batch):
    segments = Segments.of(batch)
    if not len(segments):
        return
    jagged = split_trajectories(batch, as_nested=True)
    padded = split_trajectories(batch)
    made = [jagged, jagged.clone(), nest_trajectories(padded)]
    for nested in made:
        dense = nested.to_padded_tensor()
        assert dense.batch_size == (len(segments),)
        assert dense["observation"].shape == (len(segments), segments.max_length, 2)
        assert torch.equal(dense["observation"], padded["observation"])


def test_groups_keep_the_sizes_that_follow_those_of_the_batch():
    batch = trajectories([2, 3])
    for root in ((), (keys.NEXT,)):
        batch[(*root, "agents")] = TensorDict({"state": torch.rand(5, 3, 4)}, [5, 3])
    padded = split_trajectories(batch)
    joined = join_trajectories(padded)
    for root in ((), (keys.NEXT,)):
        assert padded[(*root, "agents")].batch_size == (2, 3, 3)
        assert joined[(*root, "agents")].batch_size == (5, 3)
    assert padded[keys.COLLECTOR].batch_size == (2, 3)
    # a mask in the group itself has no dimension of agents
    assert split_trajectories(batch, prefix="agents")["agents", "mask"].shape == (2, 3)
