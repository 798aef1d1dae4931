"""Compact batches divided into trajectories, and the arguments that codecs share."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import PersistentTensorDict, TensorDict

from rl_layout import Flat2TED, H5Combine, H5Split, Nested2TED, TED2Flat, TED2Nested
from rl_layout.synthetic import trajectories


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5), nested=st.booleans())
def test_what_is_divided_comes_together_again(lengths, nested):
    batch = trajectories(lengths)
    apart = H5Split()((TED2Nested if nested else TED2Flat)()(batch))
    begin = 0
    for number, length in enumerate(lengths):
        one, rows = apart["trajectory", str(number)], batch[begin : begin + length]
        assert torch.equal(one["steps", "action"], rows["action"])
        assert torch.equal(one["shared", "observation"][:-1], rows["observation"])
        assert torch.equal(one["shared", "observation"][1:], rows["next", "observation"])
        begin += length
    assert (Flat2TED()(H5Combine()(apart)) == batch).all()


def test_trajectories_are_views():
    compact = TED2Flat()(trajectories([2, 3]))
    apart = H5Split()(compact)
    apart["trajectory", "1", "steps", "action"].fill_(9)
    assert compact["steps", "action"][2:].eq(9).all()


def test_a_file_of_hdf5_is_divided(tmp_path):
    batch = trajectories([2, 3])
    PersistentTensorDict.from_dict(TED2Flat()(batch), filename=tmp_path / "rows.h5").close()
    with_file = PersistentTensorDict(filename=tmp_path / "rows.h5", batch_size=[], mode="r")
    assert (Flat2TED()(H5Combine()(H5Split()(with_file))) == batch).all()


def test_damaged_forms_are_refused():
    compact = TED2Flat()(trajectories([2, 3]))
    with pytest.raises(KeyError, match="lengths"):
        H5Split()(compact.exclude("lengths"))
    with pytest.raises(ValueError, match="truncated or altered"):
        H5Split()(compact.clone().set("lengths", torch.tensor([2, 4])))
    apart = H5Split()(compact)
    with pytest.raises(KeyError, match="trajectory"):
        H5Combine()(apart.exclude("trajectory"))
    with pytest.raises(ValueError, match="trajectory 1"):
        H5Combine()(apart.clone().set("lengths", torch.tensor([2, 4])))


def test_leaves_that_are_named_are_kept_for_every_step():
    batch = trajectories([2, 3])
    compact = TED2Flat(reward_keys=["observation"], done_keys=["done"])(batch)
    assert "observation" in compact["steps"]
    assert (Flat2TED()(compact) == batch).all()


@pytest.mark.parametrize("codecs", [(TED2Flat, Flat2TED), (TED2Nested, Nested2TED)], ids=str)
def test_codecs_take_the_same_arguments_by_place_and_write_where_they_are_told(codecs):
    batch = trajectories([2, 3])
    arguments = (("next", "done"), "by", "full", ["done"], ["reward"])
    compact = codecs[0](*arguments)(batch)
    out = batch.clone().zero_()
    assert codecs[1](*arguments)(compact, out=out) is out
    assert (out == batch).all()
    with pytest.raises(ValueError, match="give one like it"):
        codecs[1](*arguments)(compact, out=TensorDict({"a": torch.zeros(5)}, [5]))


def test_a_compact_form_is_kept_in_a_folder(tmp_path):
    batch = trajectories([2, 3])
    TED2Flat()(batch, tmp_path)
    assert (Flat2TED()(TensorDict.load_memmap(tmp_path)) == batch).all()
    with pytest.raises(ValueError, match="jagged leaves"):
        TED2Nested()(batch, tmp_path)
