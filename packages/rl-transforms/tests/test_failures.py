from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import trajectories
from rl_specs import Unbounded
from rl_transforms import (
    CallableTransform,
    CatFrames,
    Compose,
    DeviceCastTransform,
    MultiStep,
    NextObservationDelta,
    ObservationNorm,
    RenameTransform,
    Resize,
    RewardClipping,
    RewardScaling,
    StepCounter,
    TensorDictPrimer,
    UnsqueezeTransform,
    discounted_sums,
    multi_step,
)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: RenameTransform(3, ["a"]), TypeError, r"in_keys: expected a list of keys, got 3"),
        (lambda: RewardScaling("1", 2.0), TypeError, "loc: expected a number, got '1'"),
        (
            lambda: RewardScaling(torch.tensor(1j), 2.0),
            TypeError,
            "loc: expected a number, got a t",
        ),
        (lambda: RewardClipping("low"), TypeError, "clamp_min: expected a number, got 'low'"),
        (lambda: RewardClipping(float("nan")), ValueError, "clamp_min: expected a number, got nan"),
        (lambda: MultiStep([0.9], 3), TypeError, r"gamma: expected a number, got \[0.9\] \(list\)"),
        (lambda: MultiStep(0.9, 2.5), TypeError, "n_steps: expected a whole number, got 2.5"),
        (lambda: MultiStep(0.9, True), TypeError, "n_steps: expected a whole number, got True"),
        (lambda: CatFrames("4", -1), TypeError, "N: expected a whole number"),
        (lambda: CatFrames(10**30, -1), ValueError, "N: expected a number of 64 bits"),
        (lambda: UnsqueezeTransform(None), TypeError, "dim: expected a whole number, got None"),
        (lambda: Resize(4, 5, interpolation=2), TypeError, "interpolation: expected a name, got 2"),
        (lambda: ObservationNorm(0.0, 1.0, eps="a"), TypeError, "eps: expected a number"),
        (lambda: DeviceCastTransform(1.5), TypeError, "device: expected a torch.device or its"),
        (lambda: DeviceCastTransform("moon"), ValueError, "device: .* got 'moon'"),
        (lambda: TensorDictPrimer(primers="mean"), TypeError, "primers: expected specs by key"),
        (lambda: TensorDictPrimer({"h": 3}), TypeError, "primers: expected specs .* got {.h.: 3}"),
        (lambda: NextObservationDelta(excluded_dtypes=torch.int8), TypeError, "a list of dtypes"),
        (lambda: CallableTransform(3), TypeError, "function: expected a function of a tensordict"),
        (lambda: StepCounter("a"), TypeError, "max_steps: expected a whole number"),
        (lambda: Compose(StepCounter())[3], IndexError, "a place from -1 to 0: got 3"),
        (lambda: multi_step("rows", 0.9, 2), TypeError, "expected a TED tensordict .* got 'rows'"),
        (lambda: discounted_sums([1.0], torch.zeros(1), 0.9, 2), TypeError, "reward: expected a f"),
        (
            lambda: discounted_sums(torch.ones(2), torch.zeros(3).long(), 0.9, 2),
            ValueError,
            r"as many rewards as rows: got \[2\] and \[3\]",
        ),
    ],
)
def test_arguments_of_a_wrong_type_are_named_with_their_value(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RewardClipping(-1, 1)("rows"), "RewardClipping.forward: batch: expected a tensor"),
        (
            lambda: Compose(RewardClipping(0, 1))(torch.ones(3)),
            r"Compose.forward: batch: .* a tensor \[3\]",
        ),
        (lambda: StepCounter().step(None, None), "StepCounter.step: root: .* got None"),
        (lambda: StepCounter().reset(trajectories([2]), [True]), "mask: expected a bool tensor"),
        (
            lambda: StepCounter().transform_done_spec(Unbounded((3,))),
            "transform_done_spec: spec: expected a Composite spec, got a UnboundedContinuous",
        ),
        (lambda: StepCounter().check_place(["buffer"]), "place: expected 'environment', 'worker'"),
    ],
)
def test_non_tensordict_argument_is_named_with_its_transform(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_error_inside_a_transform_names_the_call():
    batch = TensorDict({"observation": torch.zeros(2, 3)}, [2])
    with pytest.raises(RuntimeError) as caught:  # torch's own, of shapes that do not fit
        ObservationNorm(torch.zeros(5), torch.ones(5))(batch)
    assert caught.value.__notes__ == [
        "in ObservationNorm.apply_leaf(value=a tensor [2, 3] of torch.float32)"
    ]

    def broken(rows):
        return rows.nothing

    with pytest.raises(AttributeError) as caught:  # of the user's own function
        CallableTransform(broken)(batch)
    assert caught.value.__notes__ == ["in CallableTransform.forward(batch=a tensordict [2])"]
