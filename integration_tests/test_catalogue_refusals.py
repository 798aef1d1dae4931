"""Every transform refuses keys, images and places that it cannot work with, by name."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import copy

import pytest
import torch

from catalogue.environments import LivesEnv, PicturesEnv, allowed_steps, played
from catalogue.samples import Onward, distance
from rl_envs import SerialEnv, TransformedEnv
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
from rl_transforms import (
    ActionMask,
    BurnIn,
    CatFrames,
    CatTensors,
    CenterCrop,
    DoubleToFloat,
    DTypeCastTransform,
    EndOfLife,
    ExcludeTransform,
    FlattenObservation,
    FrameSkip,
    GrayScale,
    HindsightRelabel,
    MultiStep,
    MultiStepTransform,
    NextObservationDelta,
    NextStateReconstructor,
    NoopReset,
    ObservationNorm,
    RandomCropTensorDict,
    RenameTransform,
    Resize,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SelectTransform,
    SignTransform,
    SqueezeTransform,
    TimeMaxPool,
    ToTensorImage,
    UnsqueezeTransform,
    VecNorm,
)

UNKNOWN = ["nowhere"]
READING = [
    RenameTransform(UNKNOWN, ["there"]),
    SelectTransform("nowhere"),
    ExcludeTransform("nowhere"),
    DTypeCastTransform(torch.float32, torch.float64, UNKNOWN),
    DoubleToFloat(UNKNOWN),
    FlattenObservation(-2, -1, UNKNOWN),
    UnsqueezeTransform(-1, UNKNOWN),
    SqueezeTransform(-1, UNKNOWN),
    CatTensors(["observation", "nowhere"]),
    ToTensorImage(in_keys=UNKNOWN),
    GrayScale(UNKNOWN),
    Resize(4, in_keys=UNKNOWN),
    CenterCrop(4, in_keys=UNKNOWN),
    RewardScaling(0.0, 1.0, UNKNOWN),
    RewardClipping(0.0, 1.0, UNKNOWN),
    SignTransform(UNKNOWN),
    RewardSum(UNKNOWN),
    ObservationNorm(0.0, 1.0, UNKNOWN),
    VecNorm(UNKNOWN),
    CatFrames(3, -1, UNKNOWN),
    TimeMaxPool(UNKNOWN, T=2),
    ActionMask("nowhere"),
    ActionMask(mask_key="nowhere"),
    EndOfLife(lives_key="nowhere"),
    EndOfLife(done_key="nowhere"),
    NextObservationDelta(UNKNOWN),
]
QUIET = (
    ActionMask,
    ExcludeTransform,
    NextObservationDelta,
    RewardSum,
)  # whose rows may well lack the key


def numbered(transform):
    return f"{type(transform).__name__}{READING.index(transform)}"


@pytest.mark.parametrize("transform", READING, ids=numbered)
def test_an_unknown_key_is_named_by_every_transform(transform):
    rows = allowed_steps(LivesEnv())
    with pytest.raises((KeyError, ValueError), match="nowhere"):
        TransformedEnv(LivesEnv(), copy.deepcopy(transform)).rollout(2)
    if not isinstance(transform, QUIET):
        with pytest.raises((KeyError, ValueError), match="nowhere"):
            copy.deepcopy(transform)(rows)


@pytest.mark.parametrize(
    "transform",
    [
        ToTensorImage(),
        ToTensorImage(in_keys=["speed"]),
        GrayScale(["pixels"]),
        GrayScale(["speed"]),
        Resize(4, in_keys=["speed"]),
        CenterCrop(4, in_keys=["speed"]),
        CenterCrop(9, in_keys=["image"]),
    ],
    ids=lambda transform: type(transform).__name__ + transform.in_keys[0],
)
def test_an_image_of_the_wrong_layout_is_refused_by_its_key(transform):
    rows = played(PicturesEnv())
    if isinstance(transform, ToTensorImage) and transform.in_keys == ["pixels"]:
        rows["pixels"] = torch.zeros(
            14, 3, 6, 7, dtype=torch.uint8
        )  # its channels are first already
    named = transform.in_keys[0]
    with pytest.raises(ValueError, match=f"{type(transform).__name__}, '{named}'.*(image|keep)"):
        transform(rows)


@pytest.mark.parametrize("transform", [ObservationNorm(), VecNorm()], ids=["fixed", "running"])
def test_statistics_that_do_not_exist_yet_are_asked_for(transform):
    rows = played(PicturesEnv())
    with pytest.raises(RuntimeError, match="no statistics"):
        transform(rows)


@pytest.mark.parametrize(
    ("transform", "wrong"),
    [
        (ActionMask(), "buffer"),
        (FrameSkip(2), "buffer"),
        (NoopReset(), "buffer"),
        (EndOfLife(mark_done=True), "environment"),
        (BurnIn(Onward(), 2), "environment"),
        (HindsightRelabel(distance, goal_key="numbers"), "environment"),
        (RandomCropTensorDict(2), "environment"),
        (MultiStep(0.9, 2), "environment"),
        (MultiStepTransform(2, 0.9), "environment"),
        (NextStateReconstructor(), "environment"),
        (NextObservationDelta(), "worker"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_a_transform_on_the_wrong_side_is_refused_by_name(transform, wrong):
    put = {
        "buffer": lambda: TensorDictReplayBuffer(
            storage=LazyTensorStorage(20), transform=transform
        ),
        "environment": lambda: TransformedEnv(LivesEnv(), transform),
        "worker": lambda: SerialEnv(2, lambda: TransformedEnv(LivesEnv(), transform)),
    }
    name = type(transform).__name__
    with pytest.raises(ValueError, match=f"{name} cannot sit in an? {wrong}: put it "):
        put[wrong]()
