"""Every transform that works alone keeps the same promises, in every place."""

# ruff: noqa: D101, D102, D103 - the name of a test is its promise

from __future__ import annotations

import copy

import pytest
import torch

from catalogue.environments import LivesEnv, PicturesEnv, allowed_steps, played
from catalogue.samples import Onward, assert_same, distance
from catalogue.transforms import STEPPING, TRANSFORMS, named
from rl_collect import Collector
from rl_envs import ParallelEnv, SerialEnv, TransformedEnv, check_env_specs
from rl_layout import check_layout
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_transforms import (
    ActionMask,
    BurnIn,
    CatFrames,
    HindsightRelabel,
    NoopReset,
    RewardSum,
    TimeMaxPool,
    VecNorm,
)


def without_marks(rows):
    """What only buffers mark, and what whole trajectories have no need of."""
    mark = rows.get(("collector", "history_missing"), None)
    assert mark is None or not mark.any()
    return rows.exclude(("collector", "history_missing"))


@pytest.mark.parametrize("transform", TRANSFORMS, ids=named)
class TestEveryTransform:
    @pytest.mark.parametrize("rows", [(), (3,)])
    def test_an_environment_does_what_its_specs_say(self, transform, rows):
        check_env_specs(TransformedEnv(PicturesEnv(batch_size=rows), copy.deepcopy(transform)))

    @pytest.mark.parametrize("rows", [(), (3,)])
    def test_steps_and_resets_are_what_rows_become(self, transform, rows):
        plain = played(PicturesEnv(batch_size=rows))
        before = plain.clone()
        stepped = played(TransformedEnv(PicturesEnv(batch_size=rows), copy.deepcopy(transform)))
        assert_same(stepped, without_marks(transform(plain)))
        assert_same(plain, before)

    def test_transform_is_equal_around_and_inside_a_serial_environment(self, transform):
        def inside():
            return TransformedEnv(PicturesEnv(2), copy.deepcopy(transform))

        around = TransformedEnv(SerialEnv(2, lambda: PicturesEnv(2)), copy.deepcopy(transform))
        assert_same(played(around), played(SerialEnv(2, inside)))

    def test_transform_works_inside_a_parallel_environment(self, transform):
        def inside():
            return TransformedEnv(PicturesEnv(2), copy.deepcopy(transform))

        parallel = ParallelEnv(2, inside, mp_start_method="fork")
        try:
            assert_same(played(parallel), played(SerialEnv(2, inside)))
        finally:
            parallel.close()

    def test_a_buffer_hands_out_transformed_rows_and_keeps_its_own(self, transform):
        rows = played(PicturesEnv())
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=transform)
        buffer.extend(rows)
        found = buffer[:].exclude("index", ("collector", "row"))
        assert_same(found, transform(transform.inv(rows)))

    def test_it_is_saved_and_loaded(self, transform):
        other = copy.deepcopy(transform)
        other.load_state_dict(transform.state_dict())
        rows = played(PicturesEnv())
        assert_same(other(rows), transform(rows))


@pytest.mark.parametrize(
    "transform", [*STEPPING, ActionMask()], ids=lambda transform: type(transform).__name__
)
class TestEveryTransformOfEnvironments:
    @pytest.mark.parametrize("rows", [(), (3,)])
    def test_an_environment_does_what_its_specs_say(self, transform, rows):
        env = LivesEnv(batch_size=rows)
        if rows and isinstance(transform, NoopReset):  # whose rows must be able to stand still
            env = SerialEnv(3, LivesEnv)
        check_env_specs(TransformedEnv(env, copy.deepcopy(transform)), num_steps=9)

    def test_driver_is_equal_around_and_inside_a_serial_environment(self, transform):
        def inside():
            return TransformedEnv(LivesEnv(2), copy.deepcopy(transform))

        around = TransformedEnv(SerialEnv(2, lambda: LivesEnv(2)), copy.deepcopy(transform))
        found = allowed_steps(around)
        if isinstance(transform, ActionMask):  # the environment that draws the actions must see it
            with pytest.raises(ValueError, match="cannot sit in a worker"):
                SerialEnv(2, inside)
            return
        assert_same(found, allowed_steps(SerialEnv(2, inside)))
        parallel = ParallelEnv(2, inside, mp_start_method="fork")
        try:
            assert_same(allowed_steps(parallel), found)
        finally:
            parallel.close()

    def test_driver_works_around_a_parallel_environment(self, transform):
        serial = TransformedEnv(SerialEnv(2, lambda: LivesEnv(2)), copy.deepcopy(transform))
        with ParallelEnv(2, lambda: LivesEnv(2), mp_start_method="fork") as base:
            parallel = TransformedEnv(base, copy.deepcopy(transform))
            assert_same(allowed_steps(parallel), allowed_steps(serial))

    def test_a_saved_environment_goes_on(self, transform):
        env, other = (TransformedEnv(LivesEnv(), copy.deepcopy(transform)) for _ in range(2))
        root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
        other.load_state_dict(env.state_dict())
        batches = []
        for one in (env, other):
            torch.manual_seed(0)
            played_on = one.rollout(9, auto_reset=False, tensordict=root, break_when_any_done=False)
            batches.append(played_on)
        assert_same(*batches)

    def test_transform_leaves_its_input_unchanged(self, transform):
        rows = allowed_steps(LivesEnv())
        before = rows.clone()
        transform(rows)
        assert_same(rows, before)


@pytest.mark.parametrize(
    "transform",
    [
        *STEPPING,
        ActionMask(),
        CatFrames(3, -1, in_keys=["numbers"], out_keys=["stack"]),
        TimeMaxPool(in_keys=["numbers"], out_keys=["most"], T=3),
        VecNorm(in_keys=["numbers"]),
        RewardSum(),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_collected_steps_do_not_depend_on_the_batch_size(transform):
    def act(root):
        first = root["action_mask"][..., 0]
        return root.set("action", torch.stack([first, ~first], -1))

    found = []
    for steps in (4, 12):
        env = TransformedEnv(SerialEnv(3, LivesEnv), copy.deepcopy(transform))
        with Collector(env, act, frames_per_batch=3 * steps, total_frames=36) as collector:
            rows = torch.cat(list(collector), -1)
        assert not check_layout(rows).errors
        found.append(rows.exclude(("collector", "traj_ids")))
    assert_same(*found)


@pytest.mark.parametrize(
    "transform",
    [
        BurnIn(Onward(), 2),
        HindsightRelabel(
            distance,
            her_ratio=1,
            strategy="final",
            goal_key="numbers",
            achieved_goal_key="observation",
        ),
    ],
    ids=lambda transform: type(transform).__name__,
)
class TestEveryTransformOfSamples:
    def test_an_environment_refuses_it(self, transform):
        with pytest.raises(ValueError, match="cannot sit in an environment"):
            TransformedEnv(PicturesEnv(), transform)

    def test_a_buffer_hands_out_transformed_rows_and_keeps_its_own(self, transform):
        rows = played(PicturesEnv())
        before = rows.clone()
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=transform)
        buffer.extend(rows)
        found = buffer[:].exclude("index", ("collector", "row"))
        assert_same(found, transform(rows))
        assert_same(rows, before)
        assert not torch.equal(found["next", "reward"], rows["next", "reward"])

    def test_it_is_saved_and_loaded(self, transform):
        other = copy.deepcopy(transform)
        other.load_state_dict(transform.state_dict())
        rows = played(PicturesEnv())
        assert_same(other(rows), transform(rows))
