from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, TensorDict

import rl_layout
from rl_layout import Markers, Segments, keys, reference
from rl_layout.segments import contradiction
from rl_layout.segments.contradiction import (
    compare_neighbours,
    contradictions,
    must_compare_observations,
)
from rl_layout.segments.flat_views import flat_bits
from rl_layout.segments.torch_cuts import cut_by_torch, cut_rows
from rl_layout.synthetic import environments, trajectories
from rl_layout.testing import EndKind, check_segments, plain_batches

CUT = EndKind.CUT


def unnamed(batch, *gone):
    """The batch as it is written by hand: no ids, no names."""
    batch = batch.exclude(keys.COLLECTOR, *gone)
    batch.names = None
    return batch


def vector_step(num_envs=5, step=3):
    """What a vector of environments makes in one step, laid along the batch."""
    played = environments(num_envs, step + 2, [step + 9], [CUT])
    return unnamed(played[:, step], keys.IS_INIT)


def quietly(batch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return Segments.of(batch)


def test_rows_of_one_step_of_a_vector_are_never_joined():
    batch = vector_step()
    with pytest.warns(UserWarning, match=r"4 of 4 neighbours along dimension 0 .*'observation'"):
        segments = Segments.of(batch)
    assert segments.lengths.tolist() == [1] * 5
    assert segments.num_contradicted == 4
    assert str(segments).endswith("5 cut, 4 cut by contradicting observations)")
    assert segments.to("meta").num_contradicted == 4


def test_the_warning_comes_once_and_not_for_a_few_contradictions():
    with pytest.warns(UserWarning, match="never joined"):
        Segments.of(vector_step())
    Segments.of(vector_step(6))  # warnings are errors in tests
    contradiction.warned.clear()
    rows = unnamed(trajectories([4, 3, 2], CUT), keys.IS_INIT)
    assert Segments.of(rows).lengths.tolist() == [4, 3, 2]
    assert Segments.of(rows).num_contradicted == 2


def test_rows_drawn_one_by_one_are_cut_without_a_warning():
    batch = vector_step().set(keys.INDEX, torch.arange(5))
    assert Segments.of(batch).lengths.tolist() == [1] * 5


@pytest.mark.parametrize("dim", [0, 1])
def test_time_is_found_along_the_dimension_where_observations_agree(dim):
    played = unnamed(environments(4, 6, [9], [CUT]), keys.IS_INIT)
    batch = played if dim else played.transpose(0, 1)
    assert not contradictions(batch, dim).any()
    other = compare_neighbours(batch, 1 - dim)
    assert other.count == int(other.compared.sum()) == 3 * 6
    assert other.is_rule
    assert other.dim == 1 - dim
    assert contradictions(batch, dim - 2).equal(contradictions(batch, dim))


def test_observations_are_not_compared_where_markers_prove_neighbours():
    batch = environments(3, 4, [9], [CUT])
    assert not must_compare_observations(batch)
    assert must_compare_observations(batch.exclude(keys.COLLECTOR), 0)
    bare = unnamed(batch)
    assert must_compare_observations(bare)
    assert not must_compare_observations(bare.exclude(keys.NEXT))
    for key in (keys.TRAJ_IDS, keys.TRAJ_STEP):
        assert must_compare_observations(bare.clone(False).set(key, batch[key]))
    assert not must_compare_observations(batch.select(keys.TRAJ_IDS, keys.TRAJ_STEP))
    slices = bare.clone(False).set(keys.SLICE_IDS, torch.zeros(3, 4, dtype=torch.int64))
    assert not must_compare_observations(slices)
    assert contradictions(slices) is None
    assert contradictions(bare.exclude(("next", "observation"))) is None


def test_observations_are_not_read_where_ids_and_steps_are_stored(monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr(contradiction, "_observations", refuse)
    batch = trajectories([4, 3])
    batch.names = None
    assert len(Segments.of(batch)) == 2


def test_segments_follow_observations_that_change():
    batch = unnamed(trajectories([4], CUT))
    assert Segments.of(batch).lengths.tolist() == [4]
    batch["observation"][2] += 1
    assert Segments.of(batch).lengths.tolist() == [2, 2]
    assert Segments.of(batch) is not Segments.of(batch)


def test_a_marker_that_cuts_leaves_nothing_to_contradict():
    batch = unnamed(trajectories([3, 2]))
    found = compare_neighbours(batch)
    assert found.compared.tolist() == [True, True, False, True, False]
    assert not found.count
    batch[keys.NEXT_DONE][:], batch[keys.NEXT_TERMINATED][:] = False, False
    assert contradictions(batch) is not None
    assert not contradictions(batch).any()  # is_init cuts
    assert contradictions(batch.exclude("is_init")).tolist() == [False, False, True, False, False]


def test_rows_whose_next_observation_is_missing_contradict_nothing():
    batch = unnamed(trajectories([5], CUT))
    batch["next", "observation"][1] = torch.nan
    assert contradictions(batch).tolist() == [False, True, False, False, False]
    missing = torch.tensor([False, True, False, False, False])
    assert not contradictions(batch.set(keys.NEXT_MISSING, missing)).any()


def n_step(lengths, n):
    """Rows that reach n steps ahead, or as far as their trajectory goes."""
    batch = unnamed(trajectories(lengths, CUT), keys.IS_INIT)
    lasts = torch.repeat_interleave(torch.tensor(lengths).cumsum(0) - 1, torch.tensor(lengths))
    far = (lasts - torch.arange(len(lasts)) + 1).clamp(max=n)
    reached = torch.arange(len(lasts)) + far - 1
    batch["next", "observation"] = batch["next", "observation"][reached]
    return batch.set(keys.STEPS_TO_NEXT_OBS, far.unsqueeze(-1))


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_rows_of_n_steps_are_compared_with_the_row_that_they_reach(n):
    batch = n_step([5, 4], n)
    assert contradictions(batch).nonzero().flatten().tolist() == [4]
    assert Segments.of(batch).lengths.tolist() == [5, 4]


def test_rows_of_n_steps_of_a_vector_are_never_joined():
    batch = vector_step(6).set(keys.STEPS_TO_NEXT_OBS, torch.full((6, 1), 3))
    assert quietly(batch).lengths.tolist() == [1, 1, 1, 1, 1, 1]


def reaching(steps, after, **more):
    """Rows that claim a row so many steps ahead, whose observation they say is that number."""
    rows = TensorDict({"observation": torch.arange(1.0, len(steps) + 1)}, [len(steps)])
    rows["next", "observation"] = torch.tensor(after)
    rows["next", "done"] = torch.zeros(len(steps), 1, dtype=torch.bool)
    rows[keys.STEPS_TO_NEXT_OBS] = torch.tensor(steps).unsqueeze(-1)
    return rows.update(more)


@pytest.mark.parametrize(
    ("steps", "after", "lengths"),
    [
        ([3, 2, 1], [4.0, 4.0, 4.0], [3]),
        ([3, 2, 1], [4.0, 7.0, 7.0], [1, 2]),
        ([3, 2, 1], [4.0, 4.0, 7.0], [2, 1]),
        ([3, 2, 1], [4.0, 5.0, 6.0], [1, 1, 1]),
        ([5, 4, 3], [4.0, 7.0, 7.0], [1, 2]),
        # the row that is reached agrees with some of them, or with none
        ([3, 2, 1, 1], [7.0, 4.0, 4.0, 5.0], [1, 3]),
        ([3, 2, 1, 1], [4.0, 4.0, 7.0, 5.0], [2, 1, 1]),
        ([3, 2, 1, 1], [7.0, 7.0, 7.0, 5.0], [3, 1]),
        # rows in between reach a nearer one
        ([4, 1, 2], [5.0, 3.0, 6.0], [1, 2]),
        ([4, 1, 2], [5.0, 3.0, 5.0], [3]),
    ],
)
def test_rows_of_n_steps_that_reach_one_row_are_joined_only_where_they_agree_on_it(
    steps, after, lengths
):
    batch = reaching(steps, after)
    assert quietly(batch).lengths.tolist() == lengths
    assert [length for _, length, _ in reference.segments(batch)] == lengths
    assert compare_neighbours(batch).count == len(lengths) - 1


def test_rows_that_reach_one_end_are_compared_although_they_are_done():
    done = torch.ones(3, 1, dtype=torch.bool)
    ended = reaching([3, 2, 1], [4.0, 7.0, 7.0], next=TensorDict({"done": done}, [3]))
    assert quietly(ended).lengths.tolist() == [1, 2]
    missing = torch.tensor([True, False, False])
    assert quietly(ended.set(keys.NEXT_MISSING, missing)).lengths.tolist() == [3]


def test_rows_that_reach_one_row_are_warned_of_where_they_disagree_as_a_rule():
    with pytest.warns(UserWarning, match="5 of 5 neighbours along dimension 0"):
        Segments.of(reaching([6, 5, 4, 3, 2, 1], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]))


@pytest.mark.parametrize(
    "key", ["action", "reward", "state_value", "recurrent_state_h", "log_prob", ("net", "hidden")]
)
def test_leaves_that_are_no_observations_contradict_nothing(key):
    batch = unnamed(trajectories([5], CUT))
    batch.set(key, torch.rand(5, 1)).set(keys.next_key(key), torch.rand(5, 1))
    assert not contradictions(batch).any()


def test_a_state_computed_anew_does_not_cut_a_trajectory_that_an_observation_proves():
    batch = unnamed(trajectories([9, 8], CUT), keys.IS_INIT)
    batch["memory"], batch["next", "memory"] = torch.rand(2, 17, 1, 3)
    found = compare_neighbours(batch)
    assert found.leaves == ("observation",)
    assert found.contradicts.nonzero().flatten().tolist() == [8]
    assert quietly(batch[:7]).num_contradicted == 6  # too few rows to tell


def test_a_counter_that_follows_by_chance_joins_no_environments():
    batch = vector_step(12)
    batch["frame"] = torch.arange(12).unsqueeze(-1)  # one counter of the whole vector
    batch["next", "frame"] = batch["frame"] + 1
    found = compare_neighbours(batch)
    assert found.count == 11
    assert found.leaves == ("observation",)


@pytest.mark.filterwarnings("ignore:.*[Qq]uantiz")
def test_leaves_without_bits_to_look_at_are_passed_over():
    batch = unnamed(trajectories([4], CUT))
    assert not contradictions(batch).any()
    coarse = torch.quantize_per_tensor(torch.rand(4, 2), 0.1, 0, torch.qint8)
    batch.set("coarse", coarse).set(("next", "coarse"), coarse)
    batch.set("words", list("abcd")).set(("next", "words"), list("efgh"))
    assert not contradictions(batch).any()


def test_leaves_without_a_twin_of_their_own_kind_are_passed_over():
    first = torch.tensor([[True], [False], [False]])
    for root, after in [
        ({"a": {"b": torch.ones(3, 2)}}, {"a": torch.zeros(3, 2)}),
        ({"a": torch.ones(3, 2)}, {"a": {"b": torch.zeros(3, 2)}}),
        ({"a": torch.ones(3, 2)}, {"a": torch.zeros(3, 2, dtype=torch.int32)}),
        ({"a": torch.ones(3, 2)}, {"a": torch.zeros(3, 4)}),
    ]:
        batch = TensorDict({**root, "is_init": first, "next": after}, [3])
        assert contradictions(batch) is None
        assert len(Segments.of(batch)) == 1
    ragged = [TensorDict({"a": torch.ones(n), "next": {"a": torch.zeros(n)}}) for n in (3, 4)]
    rows = LazyStackedTensorDict.lazy_stack(ragged)
    assert contradictions(rows) is None


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.complex64, torch.float8_e5m2]
)
@pytest.mark.parametrize("shape", [(), (1,), (3, 400), (0,)])
def test_observations_of_every_dtype_and_shape_are_compared(dtype, shape):
    values = torch.randint(0, 2, (7, *shape)).to(dtype)
    batch = TensorDict({"a": values[:-1], "next": {"a": values[1:].clone()}}, [6])
    assert not contradictions(batch).any()
    if values.numel():
        after = flat_bits(batch["next", "a"], 6)
        after[3, -1] ^= 1
        assert contradictions(batch).nonzero().flatten().tolist() == [3]


def test_flags_of_a_whole_batch_cut_as_those_of_pieces_do():
    batch = vector_step()
    found = contradictions(batch)
    markers = Markers.of(batch)
    assert cut_rows(markers, found).equal(cut_by_torch(markers, found))


@pytest.mark.gpu
def test_contradictions_on_a_device_are_those_on_the_cpu():
    batch = n_step([50, 40, 7], 3)
    on_device = batch.to("cuda")
    assert contradictions(on_device).cpu().equal(contradictions(batch))
    assert Segments.of(on_device).lengths.cpu().equal(Segments.of(batch).lengths)


@given(plain_batches(), st.integers(0, 2))
def test_contradictions_are_those_of_the_row_by_row_twin(batch, dim):
    found, expected = contradictions(batch), reference.contradictions(batch)
    assert (found is None) == (expected is None)
    if found is not None:
        assert found.flatten().tolist() == expected
    segments = quietly(batch)
    check_segments(segments)
    triples = torch.stack([segments.starts, segments.lengths, segments.kinds.long()], 1).tolist()
    assert [*map(tuple, triples)] == reference.segments(batch)
    moved = batch.transpose(dim % batch.ndim, -1)
    there = contradictions(moved, dim % batch.ndim)
    assert found is None or there.transpose(dim % batch.ndim, -1).equal(found)


def test_the_package_exports_what_its_neighbours_need():
    assert {"contradictions", "must_compare_observations"} <= set(rl_layout.__all__)


def test_a_comparison_that_is_known_is_not_made_again():
    batch = vector_step()
    known = compare_neighbours(batch)
    assert known.count == 4
    found = quietly(batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = Segments.of(batch.exclude("observation"), known)
    assert again.num_contradicted == 4
    assert torch.equal(again.starts, found.starts)


@pytest.mark.parametrize("key", [-1, 1.5, b"bytes", "observation", (), (3,), torch.ones(2)])
def test_keys_of_observations_are_tuples_of_strings(key):
    with pytest.raises(TypeError, match="key: expected a tuple of strings, got "):
        rl_layout.is_observed(key)


@pytest.mark.parametrize("compared", [1j, (-5,), {}, torch.ones(2)])
def test_segments_take_only_a_comparison(compared):
    batch = trajectories([2, 3]).exclude("collector", "is_init")
    batch.names = None
    with pytest.raises(TypeError, match="compared: expected what compare_neighbours returned"):
        Segments.of(batch, compared)
