"""Fuzzed parts of rl-transforms that have no public name: the methods of some transforms."""

from __future__ import annotations

import torch
from fuzz_pools import TENSORDICTS, Pool, each, steps
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_specs import Bounded, Composite, Unbounded
from rl_transforms import (
    ActionMask,
    BurnIn,
    CallableTransform,
    CatFrames,
    CatTensors,
    CenterCrop,
    Compose,
    DeviceCastTransform,
    DoubleToFloat,
    DTypeCastTransform,
    EndOfLife,
    ExcludeTransform,
    FlattenObservation,
    FrameSkip,
    GrayScale,
    GroupDone,
    HindsightRelabel,
    InitTracker,
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
    StepCounter,
    TensorDictPrimer,
    TimeMaxPool,
    ToTensorImage,
    UnsqueezeTransform,
    VecNorm,
)


def recurrent() -> TensorDictModule:
    """A module that carries a state."""

    class Sum(nn.Module):
        in_keys = ("observation", "state", "is_init")

        def forward(self, observation, state, is_init):
            return observation, state + observation

    out_keys = ["x", ("next", "state")]
    return TensorDictModule(Sum(), ["observation", "state", "is_init"], out_keys)


def goals() -> TensorDict:
    """Steps of two trajectories that reach for goals: `[6]`."""
    rows = steps()
    rows["desired_goal"], rows["achieved_goal"] = torch.zeros(6, 2), torch.randn(6, 2)
    rows["next", "achieved_goal"] = torch.randn(6, 2)
    rows["collector", "traj_step"] = torch.arange(6) % 3
    return rows


def pictures() -> TensorDict:
    """Steps with images: `[2]`."""
    found = {"pixels": torch.zeros(2, 8, 9, 3, dtype=torch.uint8), "action": torch.zeros(2, 2)}
    return TensorDict(found, [2])


def compact() -> TensorDict:
    """Steps without their next observations: `[6]`."""
    return steps().exclude(("next", "observation"))


def judge(achieved: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    """Reward what is at its goal."""
    return -(achieved - goal).norm(dim=-1, keepdim=True)


CALLS = [
    ("Compose()", lambda: Compose(InitTracker(), RewardScaling(0.0, 2.0))),
    ("CatFrames()", lambda: CatFrames(2, -1, ["observation"])),
    ("CatTensors()", lambda: CatTensors(["observation"])),
    ("DTypeCastTransform()", lambda: DTypeCastTransform(torch.float32, torch.float64)),
    ("FlattenObservation()", lambda: FlattenObservation(-2, -1, ["action"])),
    ("MultiStep()", lambda: MultiStep(0.9, 3)),
    ("MultiStepTransform()", lambda: MultiStepTransform(3, 0.9)),
    ("NextObservationDelta()", NextObservationDelta),
    ("ObservationNorm()", lambda: ObservationNorm(0.0, 1.0)),
    ("RandomCropTensorDict()", lambda: RandomCropTensorDict(2)),
    ("RenameTransform()", lambda: RenameTransform(["observation"], ["seen"])),
    ("RewardClipping()", lambda: RewardClipping(-1, 1)),
    ("RewardSum()", RewardSum),
    ("SelectTransform()", lambda: SelectTransform("observation")),
    ("StepCounter()", lambda: StepCounter(max_steps=2)),
    ("TensorDictPrimer()", lambda: TensorDictPrimer(h=Unbounded((2,)), expand_specs=True)),
    ("TimeMaxPool()", lambda: TimeMaxPool(T=2)),
    ("VecNorm()", VecNorm),
    ("ActionMask()", ActionMask),
    ("BurnIn()", lambda: BurnIn(recurrent(), 2)),
    ("CallableTransform()", lambda: CallableTransform(lambda rows: rows)),
    ("CenterCrop()", lambda: CenterCrop(4, in_keys=["pixels"])),
    ("DeviceCastTransform()", lambda: DeviceCastTransform("cpu")),
    ("DoubleToFloat()", DoubleToFloat),
    ("EndOfLife()", EndOfLife),
    ("ExcludeTransform()", lambda: ExcludeTransform("observation")),
    ("FrameSkip()", lambda: FrameSkip(2)),
    ("GrayScale()", lambda: GrayScale(in_keys=["pixels"])),
    ("GroupDone()", lambda: GroupDone("agents")),
    ("HindsightRelabel()", lambda: HindsightRelabel(judge)),
    ("NextStateReconstructor()", NextStateReconstructor),
    ("NoopReset()", lambda: NoopReset(3)),
    ("Resize()", lambda: Resize(4, 5, in_keys=["pixels"])),
    ("SignTransform()", lambda: SignTransform(in_keys=["reward"])),
    ("SqueezeTransform()", lambda: SqueezeTransform(-1, ["reward"])),
    ("ToTensorImage()", lambda: ToTensorImage(in_keys=["pixels"])),
    ("UnsqueezeTransform()", lambda: UnsqueezeTransform(-1, ["reward"])),
]

SPECS: Pool = [
    lambda: Composite(observation=Bounded(-1, 1, (3,)), reward=Unbounded((1,))),
    lambda: Composite(done=Unbounded((1,), dtype=torch.bool)),
    lambda: Unbounded((3,)),
]
ROOTS: Pool = [
    lambda: TensorDict({"observation": torch.zeros(2, 3), "action": torch.zeros(2, 2)}, [2]),
    goals,
    pictures,
    compact,
    *TENSORDICTS,
]
POOLS: dict[str, Pool] = {
    "spec": SPECS,
    "primers": [lambda: Composite(h=Unbounded((2,))), lambda: {"h": Unbounded((2,))}],
    "modules": [recurrent, lambda: [recurrent()]],
    "root": ROOTS,
    "tensordict": ROOTS,
    "after": ROOTS,
    "mask": [*each(None), lambda: torch.tensor([True, False])],
    "source": each(None),
    "place": each("environment", "buffer", "worker"),
    "padding": each("same", "constant"),
    "strategy": each("future", "final"),
    "side": each("read", "write", "rebuild"),
    "interpolation": each("nearest", "bilinear"),
    "reward_fn": [lambda: lambda rows: torch.zeros(len(rows))],
    "function": [lambda: lambda rows: rows],
    "transforms": [InitTracker, lambda: RewardScaling(0.0, 1.0)],
}

_DRIVES = "is called by an environment, with itself"
SKIP = {
    f"{name}.{method}": _DRIVES
    for name in ("FrameSkip", "NoopReset")
    for method in ("drive_reset", "drive_step", "actions")
}
