"""What is fuzzed of rl-transforms beside its public names: the methods of some transforms."""

from __future__ import annotations

import torch
from fuzz_pools import TENSORDICTS, Pool, each
from tensordict import TensorDict

from rl_specs import Bounded, Composite, Unbounded
from rl_transforms import (
    CatFrames,
    CatTensors,
    Compose,
    DTypeCastTransform,
    FlattenObservation,
    InitTracker,
    MultiStep,
    MultiStepTransform,
    NextObservationDelta,
    ObservationNorm,
    RandomCropTensorDict,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SelectTransform,
    StepCounter,
    TensorDictPrimer,
    TimeMaxPool,
    VecNorm,
)

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
]

SPECS: Pool = [
    lambda: Composite(observation=Bounded(-1, 1, (3,)), reward=Unbounded((1,))),
    lambda: Composite(done=Unbounded((1,), dtype=torch.bool)),
    lambda: Unbounded((3,)),
]
ROOTS: Pool = [
    lambda: TensorDict({"observation": torch.zeros(2, 3), "action": torch.zeros(2, 2)}, [2]),
    *TENSORDICTS,
]
POOLS: dict[str, Pool] = {
    "spec": SPECS,
    "primers": [lambda: Composite(h=Unbounded((2,))), lambda: {"h": Unbounded((2,))}],
    "root": ROOTS,
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
