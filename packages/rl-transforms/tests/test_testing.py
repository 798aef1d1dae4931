"""The conformance check passes on transforms of the package and fails on broken ones."""

from __future__ import annotations

import pytest
import torch

from rl_layout.testing import trajectories
from rl_transforms import (
    CatFrames,
    DTypeCastTransform,
    InitTracker,
    MultiStep,
    MultiStepTransform,
    NextStateReconstructor,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    StepCounter,
    Transform,
    UnsqueezeTransform,
)
from rl_transforms.testing import check_transform

MAKERS = {
    "cast": lambda: DTypeCastTransform(torch.float32, torch.float64, ["observation"]),
    "clip": lambda: RewardClipping(-1, 2),
    "count": StepCounter,
    "first": InitTracker,
    "n-step on samples": lambda: MultiStep(0.9, 3),
    "n-step on writes": lambda: MultiStepTransform(n_steps=3, gamma=0.9),
    "rebuild": NextStateReconstructor,
    "rename": lambda: RenameTransform(["observation"], ["view"]),
    "scale": lambda: RewardScaling(loc=0.0, scale=0.5),
    "stack": lambda: CatFrames(3, -1, ["observation"]),
    "sum": RewardSum,
    "unsqueeze": lambda: UnsqueezeTransform(-1, ["observation"]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_transform_of_the_package_conforms(name):
    check_transform(MAKERS[name], trajectories([5]))


class InPlace(Transform):
    """Scales the caller's tensor."""

    def apply_leaf(self, value):
        return value.mul_(2)


class WrongSpec(Transform):
    """Doubles a leaf, and describes the single one."""

    def apply_leaf(self, value):
        return torch.cat([value, value], -1)


class OtherRows(Transform):
    """Writes something else on finished rows than in steps."""

    def apply_leaf(self, value):
        return value + 1

    def rows(self, batch, last=None):
        return batch.clone()


class Silent(Transform):
    """Writes nothing."""

    def forward(self, batch):
        return batch


@pytest.mark.parametrize(
    ("make", "promise"),
    [
        pytest.param(lambda: InPlace(["observation"]), "is changed", id="in place"),
        pytest.param(lambda: WrongSpec(["observation"]), "the spec of", id="spec"),
        pytest.param(lambda: OtherRows(["observation"]), "steps and rows", id="rows"),
        pytest.param(lambda: Silent(["observation"], ["view"]), "its out key", id="silent"),
    ],
)
def test_broken_transform_fails(make, promise):
    with pytest.raises(AssertionError, match=promise):
        check_transform(make, trajectories([5]))
