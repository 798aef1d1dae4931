from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_specs import Unbounded
from rl_tensordict import leaves
from rl_transforms import (
    CatTensors,
    CenterCrop,
    Compose,
    DoubleToFloat,
    DTypeCastTransform,
    EndOfLife,
    ExcludeTransform,
    FlattenObservation,
    GrayScale,
    InitTracker,
    ObservationNorm,
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
    ToTensorImage,
    Transform,
    UnsqueezeTransform,
)
from rl_transforms.numpy_steps import NumpyPipeline, bind_steps
from rl_transforms.numpy_steps.steps import BINDERS

ODD = [0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), -float("inf"), 0.3, 1e-40, 3e38]
TRANSFORMS = [
    CatTensors(["observation", "wide"], "both"),
    CatTensors(["observation", "wide"], "both", del_keys=False),
    CenterCrop(4, in_keys=["image"]),
    DTypeCastTransform(torch.float32, torch.float64),
    DTypeCastTransform(torch.float32, torch.float64, ["observation"], ["precise"]),
    DTypeCastTransform(torch.int64, torch.float32, ["lives"], ["hearts"]),
    DoubleToFloat(),
    EndOfLife(),
    ExcludeTransform("wide", "image"),
    FlattenObservation(-3, -1, ["image"]),
    GrayScale(["image"]),
    InitTracker(),
    ObservationNorm(0.1, 0.7),
    ObservationNorm(
        torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1.0, 7.0, 0.0]), standard_normal=True
    ),
    RenameTransform(["observation"], [("seen", "it")]),
    RenameTransform(["observation"], ["seen"], create_copy=True),
    Resize(3, 5, in_keys=["image"]),
    RewardClipping(-1.0, 1.0),
    RewardClipping(clamp_max=0.5),
    RewardScaling(0.1, 0.7),
    RewardScaling(0.1, 0.7, ["reward"], ["scaled"], standard_normal=True),
    RewardSum(),
    SelectTransform("observation", "lives"),
    SignTransform(),
    SqueezeTransform(-1, ["reward"], ["flat"]),
    StepCounter(),
    StepCounter(max_steps=5),
    StepCounter(max_steps=5, update_done=False),
    StepCounter(max_steps=5, truncated_key="limit"),
    StepCounter(max_steps=5, truncated_key="limit", update_done=False),
    TensorDictPrimer(hidden=Unbounded((2,)), expand_specs=True),
    ToTensorImage(in_keys=["bytes"], out_keys=["pixels"]),
    UnsqueezeTransform(-1),
]


def step_of(rows, numbers):
    """What an environment shows around one step."""
    odd = torch.tensor(ODD)
    draw = torch.Generator().manual_seed(numbers)

    def floats(*shape):
        return odd[torch.randint(len(ODD), (*rows, *shape), generator=draw)]

    flags = {
        name: torch.rand(*rows, 1, generator=draw) < 0.5 for name in ("terminated", "truncated")
    }
    flags["done"] = flags["terminated"] | flags["truncated"]

    def shown():
        return {
            "observation": floats(3),
            "wide": floats(2),
            "double": floats(2).double(),
            "image": torch.rand(*rows, 3, 6, 7, generator=draw),
            "bytes": torch.randint(256, (*rows, 6, 7, 3), generator=draw, dtype=torch.uint8),
            "lives": torch.randint(4, (*rows, 1), generator=draw),
        }

    tracked = {
        "step_count": torch.randint(1, 6, (*rows, 1), generator=draw),
        "episode_reward": floats(1),
        "hidden": floats(2),
    }
    after = TensorDict({**shown(), **flags, "reward": floats(1)}, rows)
    return TensorDict({**shown(), **tracked}, rows), after


def columns(tensordict, rows):
    """Columns of two steps, the second of them the tensordict."""
    time = len(rows)
    return {
        key: np.stack([np.zeros_like(leaf.numpy()), leaf.numpy()], time)
        for key, leaf in leaves(tensordict)
    }


def chained(transforms, root, after, expected, rows):
    """The same step on arrays."""
    time = len(rows)
    final = {key: np.zeros_like(column) for key, column in columns(expected, rows).items()}
    raw = columns(after, rows)
    for key, column in raw.items():  # as environments write where the form fits
        if key in final and (final[key].shape, final[key].dtype) == (column.shape, column.dtype):
            final[key] = column
    pipeline = NumpyPipeline(time, columns(root, rows), raw, final)
    assert bind_steps(pipeline, transforms)
    pipeline.run(1)
    return {
        key: torch.from_numpy(np.moveaxis(column, time, 0)[1, ...]) for key, column in final.items()
    }


def assert_bits(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key].dtype == value.dtype, key
        torch.testing.assert_close(found[key], value, rtol=0, atol=0, equal_nan=True, msg=str(key))


def named(transform):
    return f"{type(transform).__name__}{TRANSFORMS.index(transform)}"


def test_binders_are_all_tested():
    assert {type(one) for one in TRANSFORMS} == set(BINDERS)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=named)
@pytest.mark.parametrize("rows", [(), (4,), (2, 3)])
def test_array_step_has_the_bits_of_step(transform, rows):
    transform = copy.deepcopy(transform)  # trackers learn the shape of the rows
    for numbers in range(3):
        root, after = step_of(rows, numbers)
        expected = transform.step(root, after)
        found = chained([transform], root, after, expected, rows)
        assert_bits(found, dict(leaves(expected)))


@given(st.lists(st.sampled_from(range(len(TRANSFORMS))), max_size=6), st.integers(0, 99))
def test_pipeline_of_any_transforms_has_the_bits_of_their_steps(places, numbers):
    root, after = step_of((2,), numbers)
    change = Compose()
    expected = after
    for place in places:  # names that can follow each other
        one = copy.deepcopy(TRANSFORMS[place])
        try:
            expected = one.step(root, expected)
        except (KeyError, ValueError, TypeError, RuntimeError):
            continue
        change.append(one)
    final = dict(leaves(expected))
    raw = columns(after, (2,))
    columns_out = {key: np.zeros_like(column) for key, column in columns(expected, (2,)).items()}
    for key, column in raw.items():
        if key in columns_out and columns_out[key].dtype == column.dtype:
            columns_out[key] = (
                column if columns_out[key].shape == column.shape else columns_out[key]
            )
    pipeline = NumpyPipeline(1, columns(root, (2,)), raw, columns_out)
    if not bind_steps(pipeline, change):
        return  # it steps on tensordicts
    pipeline.run(1)
    assert_bits({key: torch.from_numpy(column[:, 1]) for key, column in columns_out.items()}, final)


def test_array_reset_equals_reset():
    change = Compose(
        InitTracker(),
        StepCounter(5),
        ObservationNorm(0.1, 0.7),
        RenameTransform(["wide"], ["broad"]),
        EndOfLife(),
        UnsqueezeTransform(-1, ["broad"]),
    )
    root, _ = step_of((3,), 0)
    shown = root.exclude("step_count", "episode_reward", "hidden")
    shown.update(
        {name: torch.zeros(3, 1, dtype=torch.bool) for name in ("done", "truncated", "terminated")}
    )
    expected = change.reset(shown)
    pipeline = NumpyPipeline(1, {}, columns(shown, (3,)), {}, is_reset=True)
    assert bind_steps(pipeline, change)
    pipeline.run(1)
    found = {key: torch.from_numpy(pipeline.now(key).at(1)) for key, _ in leaves(expected)}
    assert_bits(found, dict(leaves(expected)))
    assert pipeline.has_changed("observation")
    assert not pipeline.has_changed("lives")


def test_policy_outputs_are_neither_dropped_nor_replaced():
    wrote = np.full((2, 1, 2), 5.0, "float32")
    done = {(name,): np.zeros((2, 1, 1), bool) for name in ("done", "terminated", "truncated")}
    after = {("hidden",): wrote, **done}
    primer = TensorDictPrimer(hidden=Unbounded((2,)), expand_specs=True)
    root = {("hidden",): np.zeros((2, 1, 2), "float32")}
    pipeline = NumpyPipeline(1, root, done, after, [("hidden",)])
    assert bind_steps(pipeline, [ExcludeTransform("hidden"), SelectTransform(), primer])
    pipeline.run(0)
    assert (wrote == 5).all()


class Own(RewardScaling):
    def apply_leaf(self, value):
        return value * 3


@pytest.mark.parametrize(
    "transform",
    [
        Own(0.0, 1.0),
        Transform(["reward"]),
        SignTransform(["profit"]),
        StepCounter(step_count_key="count"),
        ObservationNorm(),
        GrayScale(["observation"]),
        RenameTransform(["observation"], ["wide"]),
        TensorDictPrimer(other=Unbounded((2,)), expand_specs=True),
    ],
    ids=lambda one: type(one).__name__,
)
def test_unsupported_transforms_are_not_bound(transform):
    root, after = step_of((2,), 0)
    pipeline = NumpyPipeline(1, columns(root, (2,)), columns(after, (2,)), {})
    assert not bind_steps(pipeline, [transform])


def test_column_without_a_source_is_not_bound():
    _, after = step_of((2,), 0)
    pipeline = NumpyPipeline(1, {}, columns(after, (2,)), {("extra",): np.zeros((2, 2, 1))})
    assert not bind_steps(pipeline, [SignTransform()])


def test_nested_done_groups_are_not_bound():
    _, after = step_of((2,), 0)
    raw = columns(after, (2,)) | {("agents", "done"): np.zeros((2, 2, 1), bool)}
    assert not bind_steps(NumpyPipeline(1, {}, raw, {}), [InitTracker()])


def test_differing_numpy_twin_is_replaced_by_apply_leaf():
    from rl_transforms.numpy_steps.pipeline import leafwise

    wrong = leafwise(lambda one, dtype: np.negative)
    reward = np.array([[[2.0]]], "float32")
    pipeline = NumpyPipeline(1, {}, {("reward",): reward}, {("reward",): reward})
    assert wrong(SignTransform(), pipeline)
    pipeline.run(0)
    assert reward.item() == 1
