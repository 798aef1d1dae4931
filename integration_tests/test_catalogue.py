"""Every transform that stands for itself keeps the same promises, wherever it sits."""

# ruff: noqa: D101, D102, D103 - the name of a test is its promise

from __future__ import annotations

import copy

import pytest
import torch

from rl_envs import ParallelEnv, SerialEnv, TransformedEnv, check_env_specs
from rl_envs.testing import ScriptedEnv
from rl_layout.keys import leaves
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_specs import Binary, Bounded, Composite, Unbounded
from rl_transforms import (
    BurnIn,
    CatFrames,
    CatTensors,
    CenterCrop,
    DeviceCastTransform,
    DoubleToFloat,
    DTypeCastTransform,
    FlattenObservation,
    GrayScale,
    HindsightRelabel,
    ObservationNorm,
    RenameTransform,
    Resize,
    RewardClipping,
    RewardScaling,
    SignTransform,
    SqueezeTransform,
    ToTensorImage,
    UnsqueezeTransform,
    VecNorm,
)

ENDINGS = [(3, "terminated"), (5, "truncated"), (1, "terminated")]


class PicturesEnv(ScriptedEnv):
    """Shows an image, a vector of doubles, and its own numbers: (episode, step)."""

    def __init__(self, first_episode=0, batch_size=()):
        super().__init__(ENDINGS, batch_size, first_episode)
        rows = self.batch_size
        self.observation_spec = Composite(
            pixels=Bounded(0, 255, (*rows, 6, 7, 3), dtype=torch.uint8),
            image=Bounded(0.0, 1.0, (*rows, 3, 6, 7)),
            speed=Unbounded((*rows, 1), dtype=torch.float64),
            observation=Unbounded((*rows, 2)),
            numbers=Bounded(0.0, 1e3, (*rows, 2)),
            is_init=Binary(shape=(*rows, 1), dtype=torch.bool),
            shape=rows,
        )

    def _show(self):
        seen = torch.stack([self._episode, self._count], -1).float()
        shape = (*self.batch_size, 6, 7, 3)
        ramp = torch.arange(6 * 7 * 3).reshape(6, 7, 3)
        shift = (self._episode * 7 + self._count * 3).reshape(*self.batch_size, 1, 1, 1)
        pixels = ((ramp + shift) % 256).to(torch.uint8).expand(shape)
        root = self.observation_spec.zero()
        root["pixels"], root["image"] = pixels, pixels.movedim(-1, -3) / 255
        root["numbers"], root["is_init"] = seen.flip(-1), (self._count == 0).unsqueeze(-1)
        root["observation"], root["speed"] = seen, seen.double().sum(-1, keepdim=True)
        return root


def played(env, steps=14):
    """Steps in which rows end at different times and are reset one by one."""
    actions = torch.Generator().manual_seed(0)

    def act(root):
        choice = torch.randint(2, env.batch_size, generator=actions)
        return root.set("action", torch.nn.functional.one_hot(choice, 2).bool())

    return env.rollout(steps, act, break_when_any_done=False)


def frozen_norm():
    norm = VecNorm(["observation", "numbers"])
    norm.update(played(PicturesEnv()))
    return norm.freeze()


class Onward:
    """A recurrent module, as far as `BurnIn` is concerned."""

    in_keys, out_keys = ["observation"], [("next", "observation")]

    def __call__(self, rows):
        return rows.set(("next", "observation"), rows["observation"] + 100)


def distance(rows):
    return (rows["next", "observation"] - rows["numbers"]).norm(dim=-1)


TRANSFORMS = [
    RenameTransform(["observation"], [("seen", "vector")]),
    DTypeCastTransform(torch.float32, torch.float64, ["observation"]),
    DoubleToFloat(),
    DeviceCastTransform("cpu"),
    FlattenObservation(-3, -1, ["pixels"]),
    UnsqueezeTransform(-2),
    SqueezeTransform(-1, ["speed"]),
    CatTensors(["observation", "numbers"], "all"),
    ToTensorImage(),
    ToTensorImage(in_keys=["pixels"], out_keys=["float_pixels"]),
    GrayScale(["image"]),
    Resize(4, 3, in_keys=["image"]),
    CenterCrop(4, in_keys=["image"]),
    RewardScaling(1.0, -2.0),
    RewardClipping(0.0, 2.0),
    SignTransform(),
    ObservationNorm(torch.tensor(2.0), torch.tensor(4.0), standard_normal=True),
    frozen_norm(),
    CatFrames(3, -3, ["image"]),
    CatFrames(4, -1, ["observation"], [("seen", "last")], "constant", -1.0),
]


def named(transform):
    return f"{type(transform).__name__}{TRANSFORMS.index(transform)}"


def assert_same(one, other):
    mine, theirs = dict(leaves(one)), dict(leaves(other))
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        assert value.dtype == theirs[key].dtype, key
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=0, equal_nan=True)


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

    def test_it_works_around_and_inside_a_serial_environment(self, transform):
        def inside():
            return TransformedEnv(PicturesEnv(2), copy.deepcopy(transform))

        around = TransformedEnv(SerialEnv(2, lambda: PicturesEnv(2)), copy.deepcopy(transform))
        assert_same(played(around), played(SerialEnv(2, inside)))

    def test_it_works_inside_a_parallel_environment(self, transform):
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
        with pytest.raises(ValueError, match="cannot sit in a environment"):
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
