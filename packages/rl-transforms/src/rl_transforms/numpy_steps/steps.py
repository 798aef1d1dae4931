"""The numpy steps of cheap transforms; all others step on tensordicts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from rl_layout import keys
from rl_tensordict import NestedKey, as_tuple
from rl_tensordict.types import Array
from rl_transforms.dtypes.cast import DoubleToFloat, DTypeCastTransform
from rl_transforms.episodes.end_of_life import EndOfLife
from rl_transforms.episodes.init_tracker import InitTracker
from rl_transforms.episodes.primer import TensorDictPrimer
from rl_transforms.episodes.step_counter import StepCounter
from rl_transforms.keys.cat_tensors import CatTensors
from rl_transforms.keys.exclude import ExcludeTransform
from rl_transforms.keys.rename import RenameTransform
from rl_transforms.keys.select import SelectTransform
from rl_transforms.numpy_steps.pipeline import (
    Binder,
    Change,
    LeafView,
    NumpyPipeline,
    copy_call,
    has_root_flags_only,
    leafwise,
)
from rl_transforms.observations.images import CenterCrop, GrayScale, Resize, ToTensorImage
from rl_transforms.observations.observation_norm import ObservationNorm
from rl_transforms.observations.shapes import (
    FlattenObservation,
    SqueezeTransform,
    UnsqueezeTransform,
)
from rl_transforms.rewards.reward_sum import RewardSum
from rl_transforms.rewards.rewards import RewardClipping, RewardScaling, SignTransform
from rl_transforms.transform import Transform


def _number(value: Tensor | float, dtype: np.dtype[Any]) -> Array:
    """A number as an array of a leaf's dtype; a tensor with dimensions as it is."""
    # An array of the same dtype is faster than a Python number. Scalars promote no dtype, in torch
    # and here.
    if isinstance(value, Tensor) and value.ndim:
        return value.numpy()
    return np.array(float(value), dtype)


def _affine(scale: Any, loc: Any, *, inverse: bool) -> Change:
    def normalise(value: Array, out: Array) -> None:
        np.subtract(value, loc, out)
        np.divide(out, scale, out)

    def stretch(value: Array, out: Array) -> None:
        np.multiply(value, scale, out)
        np.add(out, loc, out)

    return normalise if inverse else stretch


def _scaling(transform: RewardScaling | ObservationNorm, dtype: np.dtype[Any]) -> Change | None:
    scale, loc = transform.scale, transform.loc
    if loc is None or scale is None or dtype.kind != "f":
        return None
    if isinstance(transform, ObservationNorm) and transform.standard_normal:
        scale = scale.clamp_min(transform.eps)
    return _affine(_number(scale, dtype), _number(loc, dtype), inverse=transform.standard_normal)


def _reward_clipping(transform: RewardClipping, dtype: np.dtype[Any]) -> Change | None:
    if dtype.kind != "f":
        return None
    ends = (transform.clamp_min, transform.clamp_max)
    low, high = (None if end is None else _number(end, dtype) for end in ends)

    def clip(value: Array, out: Array) -> None:
        if low is not None:
            value = np.maximum(value, low, out=out)
        if high is not None:
            np.minimum(value, high, out=out)

    return clip


def _reshape(transform: Any, dtype: np.dtype[Any]) -> Change:
    del transform, dtype

    def reshape(value: Array, out: Array) -> None:
        out[...] = value.reshape(out.shape)

    return reshape


def _assign(value: Array, out: Array) -> None:
    out[...] = value


def _cast(transform: DTypeCastTransform, pipeline: NumpyPipeline) -> bool:
    named = leafwise(lambda *_: _assign)
    if not transform.casts_all:
        return named(transform, pipeline)
    source, target = (_numpy_dtype(dtype) for dtype in (transform.dtype_in, transform.dtype_out))
    if source is None or target is None or source.kind != "f" or target.kind != "f":
        return False
    for key in pipeline.keys:
        view = pipeline.now(key)
        if view is not None and view.form[1] == source:
            wide = pipeline.write(key, view.form[0], target)
            pipeline.calls.append(copy_call(view, wide))
    return True


def _numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    try:
        return np.dtype(str(dtype).removeprefix("torch."))
    except TypeError:
        return None


def _cat_tensors(transform: CatTensors, pipeline: NumpyPipeline) -> bool:
    views = [pipeline.now(key) for key in transform.in_keys]
    present = [view for view in views if view is not None]
    if len(present) != len(views) or len({view.form[1] for view in present}) > 1:
        return False
    try:
        joined = np.concatenate([np.zeros(*view.form) for view in present], transform.dim)
    except ValueError:
        return False
    if transform.del_keys:
        for key in transform.dropped_keys:
            pipeline.drop(key)
    target = pipeline.write(transform.out_key, joined.shape, joined.dtype)
    if any(view is target for view in present):
        return False
    reads, write, dim = [view.at for view in present], target.at, transform.dim

    def join(t: int) -> None:
        np.concatenate([read(t) for read in reads], dim, write(t))

    pipeline.calls.append(join)
    return True


def _rename(transform: RenameTransform, pipeline: NumpyPipeline) -> bool:
    for old, new in zip(transform.in_keys, transform.out_keys, strict=True):
        view, start = pipeline.now(old), as_tuple(old)
        group = any(key[: len(start)] == start and key != start for key in pipeline.keys)
        if view is None or group or start in pipeline.given or pipeline.now(new) is not None:
            return False  # groups, leaves that the policy wrote, and names in use
        if not transform.create_copy:
            pipeline.drop(old)
        pipeline.calls.append(copy_call(view, pipeline.write(new, *view.form)))
    return True


def _select(transform: SelectTransform, pipeline: NumpyPipeline) -> bool:
    if any(pipeline.now(key) is None for key in transform.in_keys):
        return False
    for key in pipeline.keys:
        if not transform.keeps(key):
            pipeline.drop(key)
    return True


def _exclude(transform: ExcludeTransform, pipeline: NumpyPipeline) -> bool:
    for key in transform.in_keys:
        pipeline.drop(key)
    return True


def _init_tracker(transform: InitTracker, pipeline: NumpyPipeline) -> bool:
    done = pipeline.now(keys.DONE)
    if done is None or not has_root_flags_only(pipeline):
        return False
    pipeline.fill(transform.name, done.form, pipeline.is_reset)
    return True


def _step_counter(transform: StepCounter, pipeline: NumpyPipeline) -> bool:
    before, done = pipeline.before(transform.name), pipeline.now(keys.DONE)
    if done is None or not has_root_flags_only(pipeline):
        return False
    if pipeline.is_reset:
        pipeline.fill(transform.name, (done.form[0], np.int64), 0)
        if transform.marks_limit:
            pipeline.fill(transform.truncated_key, done.form, 0)
        return True
    if before is None:
        return False
    if transform.max_steps is not None:
        return _limited_count(transform, pipeline, transform.max_steps, (before, done))
    read, write = before.at, pipeline.write(transform.name, *before.form).at

    def count(t: int) -> None:
        np.add(read(t), 1, write(t))

    pipeline.calls.append(count)
    return True


def _limited_count(
    transform: StepCounter, pipeline: NumpyPipeline, most: int, views: tuple[LeafView, LeafView]
) -> bool:
    before, done = views
    truncated = pipeline.now(keys.TRUNCATED)
    read, write = before.at, pipeline.write(transform.name, *before.form).at
    if truncated is None or pipeline.now(keys.TERMINATED) is None:
        return False
    truncates = transform.update_done or not transform.marks_limit
    flags = [truncated.at] * truncates + [done.at] * transform.update_done
    mark = pipeline.write(transform.truncated_key, *done.form).at if transform.marks_limit else None
    is_single = int(np.prod(before.form[0])) == 1
    largest: Any = np.ndarray.item if is_single else np.ndarray.max

    def count_to_limit(t: int) -> None:
        counts = write(t)
        np.add(read(t), 1, counts)
        if mark is not None:
            np.greater_equal(counts, most, mark(t))
        if largest(counts) >= most:  # rarely: spares the array operations
            at_limit = counts >= most
            for flag in flags:
                value = flag(t)
                np.logical_or(value, at_limit, value)

    pipeline.calls.append(count_to_limit)
    return True


def _reward_sum(transform: RewardSum, pipeline: NumpyPipeline) -> bool:
    for key, out in zip(transform.in_keys, transform.out_keys, strict=True):
        if pipeline.is_reset:
            if not _zeros(transform, key, out, pipeline):
                return False
            continue
        reward, before = pipeline.now(key), pipeline.before(out)
        if reward is None or before is None or reward.form != before.form:
            return False
        pipeline.calls.append(_add_call(before, reward, pipeline.write(out, *reward.form)))
    return True


def _zeros(transform: RewardSum, key: NestedKey, out: NestedKey, pipeline: NumpyPipeline) -> bool:
    """Fill the sums of a reset with zeros; the shape comes from the reward's spec."""
    shape, dtype = transform.reward_specs.get(key, (None, None))
    kind = _numpy_dtype(dtype)
    if shape is None or kind is None:
        return False
    pipeline.fill(out, (tuple(shape), kind), 0)
    return True


def _add_call(before: LeafView, reward: LeafView, total: LeafView) -> Any:
    start, more, write = before.at, reward.at, total.at

    def add(t: int) -> None:
        np.add(start(t), more(t), write(t))

    return add


def _primer(transform: TensorDictPrimer, pipeline: NumpyPipeline) -> bool:
    if pipeline.is_reset:
        return False  # a reset may draw random numbers or call a function
    for name in transform.primed_keys:
        if pipeline.now(name) is None:
            before = pipeline.before(name)
            if before is None:
                return False
            pipeline.calls.append(copy_call(before, pipeline.write(name, *before.form)))
    return True


def _end_of_life(transform: EndOfLife, pipeline: NumpyPipeline) -> bool:
    before, after, done = (
        pipeline.before(transform.lives_key),
        pipeline.now(transform.lives_key),
        pipeline.now(transform.done_key),
    )
    if after is None or done is None:
        return False
    if pipeline.is_reset:
        pipeline.fill(transform.eol_key, done.form, value=False)
        return True
    if before is None:
        return False
    start, end, over = before.at, after.at, done.at
    shape = done.form[0]
    write = pipeline.write(transform.eol_key, *done.form).at

    def mark(t: int) -> None:
        lost = (end(t) < start(t)).reshape(shape)
        np.logical_or(lost, over(t), write(t))

    pipeline.calls.append(mark)
    return True


# A transform has a numpy twin where that saves more than 1 us a step; a call of torch on a view of
# the rows costs about 2.5 us.
BINDERS: dict[type, Binder] = {
    **dict.fromkeys((CenterCrop, GrayScale, Resize, SignTransform, ToTensorImage), leafwise()),
    CatTensors: _cat_tensors,
    DTypeCastTransform: _cast,
    DoubleToFloat: _cast,
    EndOfLife: _end_of_life,
    ExcludeTransform: _exclude,
    FlattenObservation: leafwise(_reshape),
    InitTracker: _init_tracker,
    ObservationNorm: leafwise(_scaling),
    RenameTransform: _rename,
    RewardClipping: leafwise(_reward_clipping),
    RewardScaling: leafwise(_scaling),
    RewardSum: _reward_sum,
    SelectTransform: _select,
    SqueezeTransform: leafwise(_reshape),
    StepCounter: _step_counter,
    TensorDictPrimer: _primer,
    UnsqueezeTransform: leafwise(_reshape),
}


def bind_steps(pipeline: NumpyPipeline, transforms: Iterable[Transform]) -> bool:
    """Bind transforms in order; False if one has no numpy step, then no call may be used."""
    bound = ((BINDERS.get(type(transform)), transform) for transform in transforms)
    return (
        all(binder is not None and binder(transform, pipeline) for binder, transform in bound)
        and pipeline.finish()
    )
