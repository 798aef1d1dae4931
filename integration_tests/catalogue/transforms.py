"""Every transform that works alone, as it is tried on the same environments."""

from __future__ import annotations

import torch

from catalogue.environments import PicturesEnv, played
from rl_transforms import (
    BinarizeReward,
    CatFrames,
    CatTensors,
    CenterCrop,
    DeviceCastTransform,
    DoubleToFloat,
    DTypeCastTransform,
    EndOfLife,
    FiniteTensorDictCheck,
    FlattenObservation,
    FrameSkip,
    GrayScale,
    NoopReset,
    ObservationNorm,
    PermuteTransform,
    RemoveEmptySpecs,
    RenameTransform,
    Resize,
    RewardClipping,
    RewardScaling,
    SignTransform,
    SqueezeTransform,
    TimeMaxPool,
    ToTensorImage,
    UnsqueezeTransform,
    VecNorm,
)


def frozen_norm():
    """Statistics that stay as they are."""
    norm = VecNorm(["observation", "numbers"])
    norm.update(played(PicturesEnv()))
    return norm.freeze()


TRANSFORMS = [
    RenameTransform(["observation"], [("seen", "vector")]),
    DTypeCastTransform(torch.float32, torch.float64, ["observation"]),
    DoubleToFloat(),
    DeviceCastTransform("cpu"),
    FlattenObservation(-3, -1, ["pixels"]),
    PermuteTransform((-1, -3, -2), ["pixels"]),
    FiniteTensorDictCheck(),
    RemoveEmptySpecs(),
    BinarizeReward(),
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
    TimeMaxPool(["numbers"], T=3),
    TimeMaxPool(["image", "observation"], [("pooled", "image"), "most"], T=2),
]


def named(transform):
    """Its class, and its place here."""
    return f"{type(transform).__name__}{TRANSFORMS.index(transform)}"


STEPPING = [EndOfLife(), FrameSkip(2), NoopReset(2, random=False)]
