from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_layout import keys
from rl_layout.testing import EndKind, environments, trajectories
from rl_specs import Composite, Unbounded
from rl_transforms import (
    Compose,
    MultiStep,
    MultiStepTransform,
    NextObservationDelta,
    multi_step,
)

NEXT_OBS = ("next", "observation")
DELTA = ("next", "delta", "observation")


@given(st.integers(0, 2**31), st.sampled_from([torch.float16, torch.bfloat16]))
def test_rebuilt_observation_is_within_half_a_step_of_the_dtype(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    batch = environments(3, 5, [4], [EndKind.TRUNCATED])
    batch["observation"] = torch.randn(3, 5, 7, generator=generator)
    batch[NEXT_OBS] = torch.randn(3, 5, 7, generator=generator)
    transform = NextObservationDelta(["observation"], delta_dtype=dtype)
    small = transform.rows(batch)
    assert small[DELTA].dtype == dtype
    assert NEXT_OBS not in small.keys(True)
    error = (transform(small)[NEXT_OBS] - batch[NEXT_OBS]).abs()
    delta = (batch[NEXT_OBS] - batch["observation"]).abs()
    assert (error <= delta * torch.finfo(dtype).eps / 2 + 1e-6).all()
    assert NEXT_OBS in batch.keys(True)


def test_step_keeps_its_observation():
    transform, step = NextObservationDelta(), trajectories([3])
    assert transform.step(step, step["next"]) is step["next"]
    assert transform.reset(step) is step
    assert transform.rows_only
    assert not transform.online


def test_all_floating_point_observations_are_replaced_without_keys():
    batch = trajectories([3])
    for place in ((), ("next",)):
        batch[(*place, "eye", "frame")] = torch.zeros(3, 2, dtype=torch.uint8)
        batch[(*place, "eye", "depth")] = torch.zeros(3, 2)
    small = NextObservationDelta().rows(batch)
    assert set(small["next", "delta"].keys(True, True)) == {"observation", ("eye", "depth")}
    assert list(small["next", "eye"].keys()) == ["frame"]
    assert small[keys.NEXT_REWARD] is batch[keys.NEXT_REWARD]


def test_observations_are_learned_from_specs():
    batch = trajectories([3])
    batch["hidden"] = batch["next", "hidden"] = torch.zeros(3, 7)
    transform = NextObservationDelta()
    count = Unbounded((3,), dtype=torch.int64)
    spec = Composite(observation=Unbounded((3, 2)), count=count, shape=(3,))
    assert transform.transform_observation_spec(spec) is spec
    assert list(transform.rows(batch)["next", "delta"].keys()) == ["observation"]


def test_restored_dtype_is_that_of_the_root_or_restore_dtype():
    batch = trajectories([3])
    batch["observation"] = batch["observation"].double()
    batch[NEXT_OBS] = batch[NEXT_OBS].double()
    small = NextObservationDelta(["observation"]).rows(batch)
    assert NextObservationDelta()(small)[NEXT_OBS].dtype == torch.float64
    half = NextObservationDelta(restore_dtype=torch.float32, drop_delta=False)(small)
    assert half[NEXT_OBS].dtype == torch.float32
    assert half[DELTA] is small[DELTA]
    assert "delta" not in NextObservationDelta()(small)["next"]


class ListBuffer:
    """What a buffer does with its transform, on a plain list."""

    def __init__(self, transform):
        self.transform, self.stored = transform, []

    def extend(self, rows):
        made = self.transform.inv(rows)
        self.stored += [] if made is None else list(made.reshape(-1).unbind(0))

    def sample(self, *index):
        return self.transform(torch.stack([self.stored[i] for i in index]))


def same(one, other):
    names = set(one.keys(True, True))
    assert names == set(other.keys(True, True))
    for name in names:
        torch.testing.assert_close(one[name], other[name], msg=str(name))


def test_write_side_stores_differences_and_rebuilds_samples():
    buffer, rows = ListBuffer(NextObservationDelta(side="write")), trajectories([3, 2])
    buffer.extend(rows)
    assert buffer.stored[1][DELTA].dtype == torch.float16
    assert all(NEXT_OBS not in row.keys(True) for row in buffer.stored)
    same(buffer.sample(4, 0, 1), rows[torch.tensor([4, 0, 1])])
    assert NEXT_OBS in rows.keys(True)


def test_differences_from_an_environment_are_stored_unchanged():
    rows = trajectories([3, 2])
    small = NextObservationDelta().rows(rows)
    for side in ("read", "write"):
        transform = NextObservationDelta(side=side)
        assert transform.inv(small) is small
        buffer = ListBuffer(transform)
        buffer.extend(small)
        same(buffer.sample(2, 3), rows[torch.tensor([2, 3])])


def test_overflow_is_refused_before_it_is_stored():
    buffer, rows = ListBuffer(NextObservationDelta(side="write")), trajectories([3])
    rows[NEXT_OBS][1, 1] = 70_000.0
    with pytest.raises(ValueError, match="does not fit into"):
        buffer.extend(rows)
    assert buffer.stored == []


@pytest.mark.parametrize("comes_small", [True, False])
@pytest.mark.parametrize("stays_small", [True, False])
def test_rows_are_extended_between_rebuilding_and_taking_differences(comes_small, stays_small):
    rows = trajectories([6, 4], EndKind.TRUNCATED)
    steps = [MultiStepTransform(3, 0.9)]
    steps = [NextObservationDelta(side="write"), *steps] if stays_small else steps
    steps = [*steps, NextObservationDelta(side="rebuild")] if comes_small else steps
    buffer = ListBuffer(Compose(*steps))
    given = NextObservationDelta().rows(rows) if comes_small else rows
    for piece in given.split([4, 3, 3]):
        buffer.extend(piece)
    assert (DELTA in buffer.stored[0].keys(True)) == stays_small
    order = torch.tensor([9, 0, 4])
    same(buffer.sample(*order.tolist()), multi_step(rows, 0.9, 3)[order])


def test_rebuild_side_returns_samples_unchanged():
    small = NextObservationDelta().rows(trajectories([3]))
    rebuild = NextObservationDelta(side="rebuild")
    assert torch.equal(rebuild.inv(small)[NEXT_OBS], trajectories([3])[NEXT_OBS])
    assert rebuild(small) is small
    assert rebuild.side == "write"
    with pytest.raises(ValueError, match="cannot sit in an environment"):
        rebuild.check_place("environment")


def test_sampled_rows_are_rebuilt_before_they_are_extended():
    batch = trajectories([5])
    small = NextObservationDelta(["observation"]).rows(batch)
    made = Compose(NextObservationDelta(), MultiStep(0.9, 3))(small)
    assert torch.equal(made[NEXT_OBS], MultiStep(0.9, 3)(batch)[NEXT_OBS])


def test_extending_differences_is_refused_with_a_chain_to_rebuild_them():
    small = NextObservationDelta().rows(trajectories([5]))
    with pytest.raises(ValueError, match=r"by Compose\(NextObservationDelta\(\), MultiStep"):
        MultiStep(0.9, 3)(small)
    ahead = Compose(NextObservationDelta(), MultiStepTransform(3, 0.9))
    with pytest.raises(
        ValueError, match=r'MultiStepTransform.*NextObservationDelta\(side="rebuild'
    ):
        ahead.inv(small)


def test_overflow_is_refused_with_its_numbers():
    batch = trajectories([3])
    batch[NEXT_OBS][1, 1] = 70_000.0
    with pytest.raises(ValueError, match=r"'observation': a difference of 69999 .*ends at 65504"):
        NextObservationDelta().rows(batch)
    wide = NextObservationDelta(delta_dtype=torch.bfloat16).rows(batch)
    assert wide[DELTA].isfinite().all()


def test_non_finite_observations_are_rebuilt_or_refused():
    batch = trajectories([3])
    batch[NEXT_OBS][0] = float("nan")
    batch[NEXT_OBS][1] = float("inf")
    transform = NextObservationDelta()
    back = transform(transform.rows(batch))[NEXT_OBS]
    assert back[0].isnan().all()
    assert back[1].isinf().all()
    batch["observation"][1] = float("inf")
    with pytest.raises(ValueError, match="does not fit"):
        transform.rows(batch)


def test_delta_is_refused_in_a_worker():
    NextObservationDelta().check_place("environment")
    NextObservationDelta().check_place("buffer")
    with pytest.raises(ValueError, match="cannot sit in a worker"):
        NextObservationDelta().check_place("worker")


def test_missing_observations_and_invalid_dtypes_are_refused():
    batch = trajectories([3])
    with pytest.raises(KeyError, match=r"\('next', 'delta'\) is missing"):
        NextObservationDelta()(batch)
    with pytest.raises(KeyError, match="'next' is missing: there are"):
        NextObservationDelta(side="write").inv(batch.exclude("next"))
    small = NextObservationDelta().rows(batch)
    with pytest.raises(KeyError, match=r"'delta', 'pixels'\) is missing"):
        NextObservationDelta(["pixels"])(small.set("pixels", torch.ones(3)))
    with pytest.raises(KeyError, match="'observation' is missing"):
        NextObservationDelta()(small.exclude("observation"))
    with pytest.raises(KeyError, match=r"'pixels'\) is missing"):
        NextObservationDelta(["pixels"]).rows(batch.set("pixels", torch.ones(3)))
    batch["next", "action"] = batch["action"]
    with pytest.raises(TypeError, match="'action': expected floating-point"):
        NextObservationDelta(["action"]).rows(batch)
    with pytest.raises(ValueError, match="delta_dtype: expected a floating-point dtype"):
        NextObservationDelta(delta_dtype=torch.int8)
    with pytest.raises(ValueError, match="restore_dtype"):
        NextObservationDelta(restore_dtype="float")
    with pytest.raises(ValueError, match="side: expected"):
        NextObservationDelta(side="both")
