from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import EndKind, Flat2TED, Nested2TED, Segments, TED2Flat, TED2Nested, keys
from rl_layout.segments.flat_views import bits
from rl_layout.testing import batches, environments, trajectories

CODECS = [(TED2Flat, Flat2TED), (TED2Nested, Nested2TED)]
DTYPES = [torch.float64, torch.bfloat16, torch.uint16, torch.bool, torch.complex128]


def assert_bitwise(one, other):
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert one.batch_size == other.batch_size
    for key in one.keys(True, True):
        assert one[key].dtype == other[key].dtype
        assert torch.equal(bits(one[key]), bits(other[key])), key


@pytest.mark.parametrize(("encode", "decode"), CODECS)
@given(batch=batches())
def test_the_round_trip_is_bitwise_for_any_layout(encode, decode, batch):
    if {keys.TRAJ_IDS, keys.TRAJ_STEP, keys.IS_INIT, keys.NEXT_DONE} & set(batch.keys(True, True)):
        assert_bitwise(decode()(encode()(batch)), batch)


@pytest.mark.parametrize(("encode", "decode"), CODECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_round_trip_is_bitwise_for_any_dtype_with_nested_keys(encode, decode, dtype):
    batch = environments(2, 7, [3, 5], [EndKind.TRUNCATED, EndKind.CUT])
    values = torch.randn(2, 8, 5).to(dtype)
    batch.set(("agents", "state"), values[:, :-1].clone())
    batch.set(("next", "agents", "state"), values[:, 1:].clone())
    compact = encode()(batch)
    assert ("agents", "state") in compact["shared"].keys(include_nested=True)
    assert_bitwise(decode()(compact), batch)


def test_nan_and_negative_zero_come_back_as_they_were():
    batch = trajectories([2, 3], EndKind.TRUNCATED)
    for value in (float("nan"), -0.0):
        batch["observation"][1:2] = value
        batch["next", "observation"][0:1] = value
        compact = TED2Flat()(batch)
        assert "observation" in compact["shared"]
        assert_bitwise(Flat2TED()(compact), batch)


@pytest.mark.parametrize("kind", list(EndKind))
def test_observations_are_stored_once_and_once_more_per_end(kind):
    compact = TED2Flat()(trajectories([2, 4, 3], kind))
    assert compact["shared", "observation"].shape == (9 + 3, 2)
    assert compact["shared", "observation"][:, 1].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert "observation" not in compact["steps"]
    assert compact["steps", "next", "reward"].shape == (9, 1)


def test_a_key_that_does_not_repeat_is_stored_in_full():
    batch = trajectories([4])
    batch["next", "observation"][1, 0] += 1.0  # a running normaliser has moved
    compact = TED2Flat()(batch)
    assert "observation" not in compact["shared"]
    assert_bitwise(Flat2TED()(compact), batch)


def test_negative_zero_is_not_zero():
    batch = trajectories([3], first_id=0)
    batch["next", "observation"][0, 0] = -0.0
    compact = TED2Flat()(batch)
    assert "observation" not in compact["shared"]
    assert_bitwise(Flat2TED()(compact), batch)


@given(st.integers(0, 8))
def test_a_ring_is_stored_oldest_first_and_comes_back_in_place(shift):
    batch = trajectories([4, 5], EndKind.CUT)
    ring = torch.cat([batch[9 - shift :], batch[: 9 - shift]])
    codec = TED2Flat()
    codec.shift, codec.is_full = shift, True
    compact = codec(ring)
    assert len(compact["lengths"]) == 2
    assert compact["is_full"]
    assert_bitwise(Flat2TED()(compact), ring)


def test_a_given_flag_alone_cuts():
    batch = trajectories([2, 3])
    assert TED2Flat(done_key=keys.NEXT_TRUNCATED)(batch)["lengths"].tolist() == [5]
    assert_bitwise(Flat2TED()(TED2Flat(done_key=keys.NEXT_TRUNCATED)(batch)), batch)


def test_the_input_is_left_as_it_was():
    batch = trajectories([2, 3])
    before = batch.clone()
    Flat2TED()(TED2Flat()(batch))
    assert_bitwise(batch, before)


def test_a_compact_batch_survives_a_memory_mapped_file(tmp_path):
    batch = trajectories([2, 3])
    TED2Flat()(batch).memmap(tmp_path)
    read = TED2Flat()(batch).load_memmap(tmp_path)
    assert_bitwise(Flat2TED()(read), batch)


def test_decoding_refuses_batches_that_are_not_compact():
    with pytest.raises(KeyError, match=r"\['batch_shape', 'lengths', 'shared', 'shift', 'steps'\]"):
        Flat2TED()(trajectories([2, 3]))
    compact = TED2Flat()(trajectories([2, 3]))
    compact["lengths"] = torch.tensor([2, 2])
    with pytest.raises(ValueError, match="truncated or altered"):
        Flat2TED()(compact)


def test_a_leaf_that_is_no_tensor_is_named():
    batch = trajectories([2, 3])
    batch.set_non_tensor("note", "hello")
    with pytest.raises(TypeError, match=r"\('note',\): expected a tensor"):
        TED2Flat()(batch)


@pytest.mark.parametrize("codec", [TED2Flat, TED2Nested])
def test_lengths_belong_to_whoever_compacted(codec):
    batch = trajectories([2, 3])
    made = codec()(batch)
    if "lengths" in made:
        made["lengths"] += 1
    assert Segments.of(batch).lengths.tolist() == [2, 3]


@pytest.mark.parametrize(("encode", "decode"), CODECS)
@pytest.mark.parametrize("names", [["env", "time"], [None, "time"], [None, None]])
def test_names_of_dimensions_and_batch_sizes_of_groups_come_back(encode, decode, names):
    batch = environments(2, 7, [3, 5], [EndKind.TRUNCATED]).exclude(keys.COLLECTOR)
    for root in ((), (keys.NEXT,)):
        batch[(*root, "agents")] = TensorDict({"state": torch.rand(2, 7, 3, 4)}, [2, 7, 3])
        batch[*root, "agents"].names = [*names, "agent"]
    batch.names = names
    back = decode()(encode()(batch))
    assert back.names == names
    for group in (("agents",), ("next", "agents")):
        assert back[group].batch_size == (2, 7, 3)
        assert back[group].names == batch[group].names
    assert_bitwise(back, batch)


def test_dimensions_that_do_not_fit_are_refused_and_may_be_absent():
    compact = TED2Flat()(trajectories([2, 3]))
    assert Flat2TED()(compact.exclude("dimensions")).names == ["time"]
    compact["dimensions"] = compact["dimensions"][:-3]
    with pytest.raises(ValueError, match=r"'dimensions' does not fit a batch \[5\]"):
        Flat2TED()(compact)


@pytest.mark.filterwarnings("ignore:.*[Qq]uantiz")
def test_a_quantized_leaf_is_refused():
    batch = trajectories([2, 3])
    coarse = torch.quantize_per_tensor(torch.rand(5, 2), 0.1, 0, torch.qint8)
    batch.set("coarse", coarse).set(("next", "coarse"), coarse)
    with pytest.raises(TypeError, match=r"expected dense numbers, got torch\.qint8"):
        TED2Flat()(batch)


def test_keys_of_a_codec_that_are_none_are_named():
    one, listed = (TED2Flat(done_keys=keys)(trajectories([2, 3])) for keys in ("done", ["done"]))
    assert (one == listed).all()
    for bad in (2, [3], {"a": 1}, torch.tensor([2, 3])):
        with pytest.raises(TypeError, match="done_keys: expected"):
            TED2Flat(done_keys=bad)
    with pytest.raises(TypeError, match="path: expected the name of a folder, got"):
        TED2Flat()(trajectories([2]), torch.tensor([0.0]))
