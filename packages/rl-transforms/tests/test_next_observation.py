from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_layout import keys
from rl_layout.testing import EndKind, environments, trajectories
from rl_specs import Composite, Unbounded
from rl_transforms import Compose, MultiStep, NextObservationDelta

NEXT_OBS = ("next", "observation")
DELTA = ("next", "delta", "observation")


@given(st.integers(0, 2**31), st.sampled_from([torch.float16, torch.bfloat16]))
def test_an_observation_comes_back_within_half_a_step_of_the_dtype(seed, dtype):
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


def test_a_step_keeps_its_observation_for_the_next_one():
    transform, step = NextObservationDelta(), trajectories([3])
    assert transform.step(step, step["next"]) is step["next"]
    assert transform.reset(step) is step
    assert transform.rows_only
    assert not transform.online


def test_every_floating_point_observation_is_taken_without_keys():
    batch = trajectories([3])
    for place in ((), ("next",)):
        batch[(*place, "eye", "frame")] = torch.zeros(3, 2, dtype=torch.uint8)
        batch[(*place, "eye", "depth")] = torch.zeros(3, 2)
    small = NextObservationDelta().rows(batch)
    assert set(small["next", "delta"].keys(True, True)) == {"observation", ("eye", "depth")}
    assert list(small["next", "eye"].keys()) == ["frame"]
    assert small[keys.NEXT_REWARD] is batch[keys.NEXT_REWARD]


def test_specs_say_which_observations_there_are():
    batch = trajectories([3])
    batch["hidden"] = batch["next", "hidden"] = torch.zeros(3, 7)
    transform = NextObservationDelta()
    count = Unbounded((3,), dtype=torch.int64)
    spec = Composite(observation=Unbounded((3, 2)), count=count, shape=(3,))
    assert transform.transform_observation_spec(spec) is spec
    assert list(transform.rows(batch)["next", "delta"].keys()) == ["observation"]


def test_the_dtype_that_comes_back_is_the_roots_or_the_callers():
    batch = trajectories([3])
    batch["observation"] = batch["observation"].double()
    batch[NEXT_OBS] = batch[NEXT_OBS].double()
    small = NextObservationDelta(["observation"]).rows(batch)
    assert NextObservationDelta()(small)[NEXT_OBS].dtype == torch.float64
    half = NextObservationDelta(restore_dtype=torch.float32, drop_delta=False)(small)
    assert half[NEXT_OBS].dtype == torch.float32
    assert half[DELTA] is small[DELTA]
    assert "delta" not in NextObservationDelta()(small)["next"]


def test_the_write_side_rebuilds_what_is_stored():
    batch = trajectories([3])
    small = NextObservationDelta(["observation"]).rows(batch)
    write = NextObservationDelta(side="write")
    assert torch.equal(write.inv(small)[NEXT_OBS], batch[NEXT_OBS])
    assert write(small) is small
    assert NextObservationDelta().inv(small) is small


def test_sampled_rows_are_rebuilt_before_they_are_extended():
    batch = trajectories([5])
    small = NextObservationDelta(["observation"]).rows(batch)
    made = Compose(NextObservationDelta(), MultiStep(0.9, 3))(small)
    assert torch.equal(made[NEXT_OBS], MultiStep(0.9, 3)(batch)[NEXT_OBS])


def test_an_overflow_is_refused_with_its_numbers():
    batch = trajectories([3])
    batch[NEXT_OBS][1, 1] = 70_000.0
    with pytest.raises(ValueError, match=r"'observation': a difference of 69999 .*ends at 65504"):
        NextObservationDelta().rows(batch)
    wide = NextObservationDelta(delta_dtype=torch.bfloat16).rows(batch)
    assert wide[DELTA].isfinite().all()


def test_observations_that_are_not_finite_come_back_or_are_refused():
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


def test_it_sits_in_no_worker():
    NextObservationDelta().check_place("environment")
    NextObservationDelta().check_place("buffer")
    with pytest.raises(ValueError, match="cannot sit in a worker"):
        NextObservationDelta().check_place("worker")


def test_bad_input_is_refused():
    batch = trajectories([3])
    with pytest.raises(KeyError, match=r"\('next', 'delta'\) is missing"):
        NextObservationDelta()(batch)
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
