from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_layout import keys
from rl_layout.reference import ListRowSource
from rl_layout.testing import EndKind, environments, flat_batches, trajectories
from rl_transforms import NextStateReconstructor, multi_step, reference

NEXT_OBS = ("next", "observation")


def compact(batch):
    return batch.exclude(NEXT_OBS)


@given(flat_batches(), st.randoms())
def test_neighbour_in_the_sample_is_used_if_proved(batch, random):
    order = list(range(len(batch)))
    if random.random() < 0.7:
        start = random.randrange(len(batch))
        order = order[start:] + order[:start] + random.choices(order, k=3)
    sample = batch[torch.tensor(order)]
    rebuilt = NextStateReconstructor()(compact(sample))
    found = reference.next_rows(sample)
    assert torch.equal(rebuilt[keys.NEXT_MISSING], found < 0)
    assert rebuilt[NEXT_OBS][found < 0].isnan().all()
    assert torch.equal(rebuilt[NEXT_OBS][found >= 0], sample[NEXT_OBS][found >= 0])


def test_rows_of_a_batch_of_environments_are_not_neighbours_across_its_rows():
    batch = environments(3, 5, [20], [EndKind.CUT])
    rebuilt = NextStateReconstructor()(compact(batch))
    assert rebuilt[keys.NEXT_MISSING].tolist() == [[False] * 4 + [True]] * 3
    assert torch.equal(rebuilt[NEXT_OBS][:, :4], batch[NEXT_OBS][:, :4])


def test_adjacent_slices_of_one_trajectory_are_not_joined():
    batch = trajectories([9])
    sample = batch[torch.tensor([0, 1, 5, 6])]
    assert NextStateReconstructor()(compact(sample))[keys.NEXT_MISSING].tolist() == [
        False,
        True,
        False,
        True,
    ]


def test_buffer_is_read_if_the_sample_has_no_neighbour():
    batch = trajectories([4, 3])
    batch[keys.ROW] = torch.arange(7)
    source = ListRowSource(compact(batch))
    index = torch.tensor([5, 0, 2, 3, 6])
    rebuilt = NextStateReconstructor()(compact(batch[index]), source)
    assert rebuilt[keys.NEXT_MISSING].tolist() == [False, False, False, True, True]
    assert torch.equal(rebuilt[NEXT_OBS][:3], batch[NEXT_OBS][index[:3]])


def test_is_init_of_a_slice_does_not_hide_the_next_row():
    batch = trajectories([9])
    batch[keys.ROW] = torch.arange(9)
    sample = compact(batch[2:5].clone())
    sample["next", "truncated"][-1] = sample["next", "done"][-1] = True
    rebuilt = NextStateReconstructor()(sample, ListRowSource(compact(batch)))
    assert torch.equal(rebuilt[NEXT_OBS], batch[NEXT_OBS][2:5])
    assert not rebuilt[keys.NEXT_MISSING].any()


@pytest.mark.parametrize("with_source", [False, True])
def test_n_step_row_is_rebuilt_from_its_target(with_source):
    batch = trajectories([9], EndKind.CUT)
    far = multi_step(batch, 0.9, 3)
    far[keys.ROW] = torch.arange(9)
    index = torch.arange(0, 9, 2) if with_source else torch.arange(9)
    source = ListRowSource(compact(far)) if with_source else None
    rebuilt = NextStateReconstructor()(compact(far[index]), source)
    there = ~rebuilt[keys.NEXT_MISSING]
    assert there.tolist() == (index < 6).tolist()
    assert torch.equal(rebuilt[NEXT_OBS][there], far[NEXT_OBS][index][there])


def test_rebuilt_leaves_keep_their_dtype():
    batch = trajectories([3])
    leaves = {
        "frame": torch.arange(1, 4, dtype=torch.uint8),
        "flag": torch.ones(3, dtype=torch.bool),
        "half": torch.ones(3, 2, dtype=torch.float16),
        "phase": torch.ones(3, dtype=torch.complex64),
    }
    for name, leaf in leaves.items():
        batch["eye", name] = leaf
    rebuilt = NextStateReconstructor([("eye", name) for name in leaves])(batch)["next", "eye"]
    assert {name: rebuilt[name].dtype for name in leaves} == {n: x.dtype for n, x in leaves.items()}
    assert rebuilt["frame"].tolist() == [2, 3, 0]
    assert rebuilt["flag"].tolist() == [True, True, False]
    assert rebuilt["half"][2].isnan().all()
    assert rebuilt["phase"][2].isnan()


@given(flat_batches(), st.randoms())
def test_single_rows_and_slices_get_the_same_next_observations(batch, random):
    batch["phase"] = batch["observation"][:, 0].to(torch.complex64)
    batch["flag"] = batch["observation"][:, 0] > 1
    batch[keys.ROW] = torch.arange(len(batch))
    transform = NextStateReconstructor(["observation", "phase", "flag"], fill_value=-7.0)
    whole, source = compact(batch), ListRowSource(compact(batch))
    side_by_side = transform(whole, source)
    order = sorted(range(len(batch)), reverse=True)  # no row follows the one before it
    chosen = torch.tensor(random.choices(order, k=5) + order)
    for rows in (chosen[5:], chosen):
        rebuilt = transform(whole[rows], source)
        assert torch.equal(rebuilt[keys.NEXT_MISSING], side_by_side[keys.NEXT_MISSING][rows])
        for key in ("observation", "phase", "flag"):
            expected = side_by_side["next", key][rows]
            assert rebuilt["next", key].dtype is expected.dtype
            assert torch.equal(rebuilt["next", key], expected)


def test_unproved_next_observation_is_the_fill_value():
    rebuilt = NextStateReconstructor(fill_value=-9.0)(compact(trajectories([2])))
    assert rebuilt[NEXT_OBS][1].tolist() == [-9, -9]


def test_stored_next_observations_are_unchanged():
    batch = trajectories([3])
    batch[NEXT_OBS] = batch[NEXT_OBS] + 0.5  # as a moving normaliser leaves it
    assert NextStateReconstructor()(batch) is batch
    batch[keys.NEXT_MISSING] = torch.tensor([True, False, True])
    rebuilt = NextStateReconstructor()(batch)
    assert rebuilt[keys.NEXT_MISSING].tolist() == [False, False, True]
    assert rebuilt[NEXT_OBS][:, 1].tolist()[:2] == [1, 2.5]
    assert batch[NEXT_OBS][0, 1] == 1.5


def test_missing_markers_and_observations_are_named():
    batch = compact(trajectories([3]))
    for gone in (keys.TRAJ_IDS, keys.TRAJ_STEP):
        with pytest.raises(KeyError, match=f"'{gone[-1]}'\\) is missing"):
            NextStateReconstructor()(batch.exclude(gone))
    with pytest.raises(KeyError, match="'pixels' is missing"):
        NextStateReconstructor(["pixels"])(batch)
    with pytest.raises(KeyError, match=r"'row'\) is missing"):
        NextStateReconstructor()(batch, ListRowSource(batch))
    with pytest.raises(TypeError, match="list of keys"):
        NextStateReconstructor(("agents", "view"))


def test_source_proves_rows_whose_own_markers_were_not_sampled():
    batch = trajectories([3])
    batch[keys.ROW] = torch.arange(3)
    sample = compact(batch).exclude(keys.TRAJ_IDS)
    rebuilt = NextStateReconstructor()(sample, ListRowSource(batch))
    assert rebuilt[keys.NEXT_MISSING].tolist() == [False, False, True]


def test_overwritten_row_is_marked_missing():
    class Late(ListRowSource):
        def read(self, rows, keys):
            found, _ = super().read(rows, keys)
            return found, torch.zeros(rows.shape, dtype=torch.bool)

    batch = trajectories([4])
    batch[keys.ROW] = torch.arange(4)
    rebuilt = NextStateReconstructor()(compact(batch[:2]), Late(batch))
    assert rebuilt[keys.NEXT_MISSING].tolist() == [False, True]
    assert rebuilt[NEXT_OBS][1].isnan().all()
