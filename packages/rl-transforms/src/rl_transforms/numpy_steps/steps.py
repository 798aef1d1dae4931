"""The numpy steps of cheap transforms; all others step on tensordicts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from rl_layout import keys
from rl_tensordict import NestedKey, as_tuple
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
    Array,
    ArrayChain,
    Binder,
    Cell,
    Change,
    copying,
    is_root_alone,
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


def _reward_scaling(one: RewardScaling, dtype: np.dtype[Any]) -> Change | None:
    if dtype.kind != "f":
        return None
    scale, loc = _number(one.scale, dtype), _number(one.loc, dtype)
    return _affine(scale, loc, inverse=one.standard_normal)


def _observation_norm(one: ObservationNorm, dtype: np.dtype[Any]) -> Change | None:
    if one.loc is None or one.scale is None or dtype.kind != "f":
        return None
    scale = one.scale.clamp_min(one.eps) if one.standard_normal else one.scale
    numbers = _number(scale, dtype), _number(one.loc, dtype)
    return _affine(*numbers, inverse=one.standard_normal)


def _reward_clipping(one: RewardClipping, dtype: np.dtype[Any]) -> Change | None:
    if dtype.kind != "f":
        return None
    ends = (one.clamp_min, one.clamp_max)
    low, high = (None if end is None else _number(end, dtype) for end in ends)

    def clip(value: Array, out: Array) -> None:
        if low is not None:
            value = np.maximum(value, low, out=out)
        if high is not None:
            np.minimum(value, high, out=out)

    return clip


def _sign(one: SignTransform, dtype: np.dtype[Any]) -> Change:
    del one, dtype

    def sign(value: Array, out: Array) -> None:
        # np.sign of NaN is NaN, torch.sign of NaN is 0
        np.subtract(value > 0, value < 0, out, dtype=out.dtype)

    return sign


def _reshape(one: Any, dtype: np.dtype[Any]) -> Change:
    del one, dtype

    def reshape(value: Array, out: Array) -> None:
        out[...] = value.reshape(out.shape)

    return reshape


def _assign(value: Array, out: Array) -> None:
    out[...] = value


def _cast(one: DTypeCastTransform, chain: ArrayChain) -> bool:
    named = leafwise(lambda *_: _assign)
    if not one._all_out:
        return named(one, chain)
    source, target = (_numpy_dtype(dtype) for dtype in (one.dtype_in, one.dtype_out))
    if source is None or target is None or source.kind != "f" or target.kind != "f":
        return False
    for key in chain.keys:
        cell = chain.now(key)
        if cell is not None and cell.form[1] == source:
            wide = chain.write(key, cell.form[0], target)
            chain.calls.append(copying(cell, wide))
    return True


def _numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    try:
        return np.dtype(str(dtype).removeprefix("torch."))
    except TypeError:
        return None


def _cat_tensors(one: CatTensors, chain: ArrayChain) -> bool:
    cells = [chain.now(key) for key in one.in_keys]
    found = [cell for cell in cells if cell is not None]
    if len(found) != len(cells) or len({cell.form[1] for cell in found}) > 1:
        return False
    try:
        whole = np.concatenate([np.zeros(*cell.form) for cell in found], one.dim)
    except ValueError:
        return False
    if one.del_keys:
        for key in one._gone:
            chain.drop(key)
    target = chain.write(one.out_key, whole.shape, whole.dtype)
    if any(cell is target for cell in found):
        return False
    reads, write, dim = [cell.at for cell in found], target.at, one.dim

    def join(t: int) -> None:
        np.concatenate([read(t) for read in reads], dim, write(t))

    chain.calls.append(join)
    return True


def _rename(one: RenameTransform, chain: ArrayChain) -> bool:
    for old, new in zip(one.in_keys, one.out_keys, strict=True):
        cell, start = chain.now(old), as_tuple(old)
        group = any(key[: len(start)] == start and key != start for key in chain.keys)
        if cell is None or group or start in chain.given or chain.now(new) is not None:
            return False  # groups, leaves that the policy wrote, and names in use
        if not one.create_copy:
            chain.drop(old)
        chain.calls.append(copying(cell, chain.write(new, *cell.form)))
    return True


def _select(one: SelectTransform, chain: ArrayChain) -> bool:
    if any(chain.now(key) is None for key in one.in_keys):
        return False
    for key in chain.keys:
        if not one._keeps(key):
            chain.drop(key)
    return True


def _exclude(one: ExcludeTransform, chain: ArrayChain) -> bool:
    for key in one.in_keys:
        chain.drop(key)
    return True


def _init_tracker(one: InitTracker, chain: ArrayChain) -> bool:
    done = chain.now(keys.DONE)
    if done is None or not is_root_alone(chain):
        return False
    chain.fill(one.name, done.form, chain.is_reset)
    return True


def _step_counter(one: StepCounter, chain: ArrayChain) -> bool:
    before, done = chain.before(one.name), chain.now(keys.DONE)
    if done is None or not is_root_alone(chain):
        return False
    if chain.is_reset:
        chain.fill(one.name, (done.form[0], np.int64), 0)
        if one.marks_limit:
            chain.fill(one.truncated_key, done.form, 0)
        return True
    if before is None:
        return False
    if one.max_steps is not None:
        return _limited_count(one, chain, one.max_steps, (before, done))
    read, write = before.at, chain.write(one.name, *before.form).at

    def count(t: int) -> None:
        np.add(read(t), 1, write(t))

    chain.calls.append(count)
    return True


def _limited_count(
    one: StepCounter, chain: ArrayChain, most: int, cells: tuple[Cell, Cell]
) -> bool:
    before, done = cells
    truncated = chain.now(keys.TRUNCATED)
    read, write = before.at, chain.write(one.name, *before.form).at
    if truncated is None or chain.now(keys.TERMINATED) is None:
        return False
    cuts = one.update_done or not one.marks_limit
    flags = [truncated.at] * cuts + [done.at] * one.update_done
    mark = chain.write(one.truncated_key, *done.form).at if one.marks_limit else None
    largest = _item if int(np.prod(before.form[0])) == 1 else _most

    def count_to_limit(t: int) -> None:
        counts = write(t)
        np.add(read(t), 1, counts)
        if mark is not None:
            np.greater_equal(counts, most, mark(t))
        if largest(counts) >= most:  # rarely: spares the array operations
            enough = counts >= most
            for flag in flags:
                value = flag(t)
                np.logical_or(value, enough, value)

    chain.calls.append(count_to_limit)
    return True


def _item(counts: Array) -> Any:
    return counts.item()


def _most(counts: Array) -> Any:
    return counts.max()


def _reward_sum(one: RewardSum, chain: ArrayChain) -> bool:
    for key, out in zip(one.in_keys, one.out_keys, strict=True):
        if chain.is_reset:
            if not _zeros(one, key, out, chain):
                return False
            continue
        reward, before = chain.now(key), chain.before(out)
        if reward is None or before is None or reward.form != before.form:
            return False
        chain.calls.append(_adding(before, reward, chain.write(out, *reward.form)))
    return True


def _zeros(one: RewardSum, key: NestedKey, out: NestedKey, chain: ArrayChain) -> bool:
    """Fill the sums of a reset with zeros; the shape comes from the reward's spec."""
    shape, dtype = one._specs.get(key, (None, None))
    kind = _numpy_dtype(dtype)
    if shape is None or kind is None:
        return False
    chain.fill(out, (tuple(shape), kind), 0)
    return True


def _adding(before: Cell, reward: Cell, total: Cell) -> Any:
    start, more, write = before.at, reward.at, total.at

    def add(t: int) -> None:
        np.add(start(t), more(t), write(t))

    return add


def _primer(one: TensorDictPrimer, chain: ArrayChain) -> bool:
    if chain.is_reset:
        return False  # a reset may draw random numbers or call a function
    for name in one._names:
        if chain.now(name) is None:
            before = chain.before(name)
            if before is None:
                return False
            chain.calls.append(copying(before, chain.write(name, *before.form)))
    return True


def _end_of_life(one: EndOfLife, chain: ArrayChain) -> bool:
    before, behind, done = (
        chain.before(one.lives_key),
        chain.now(one.lives_key),
        chain.now(one.done_key),
    )
    if behind is None or done is None:
        return False
    if chain.is_reset:
        chain.fill(one.eol_key, done.form, value=False)
        return True
    if before is None:
        return False
    start, end, over = before.at, behind.at, done.at
    shape = done.form[0]
    write = chain.write(one.eol_key, *done.form).at

    def mark(t: int) -> None:
        lost = (end(t) < start(t)).reshape(shape)
        np.logical_or(lost, over(t), write(t))

    chain.calls.append(mark)
    return True


def _nothing(one: Any, dtype: np.dtype[Any]) -> None:
    del one, dtype  # leafwise calls torch on a view of the rows


BINDERS: dict[type, Binder] = {
    CatTensors: _cat_tensors,
    CenterCrop: leafwise(_nothing),
    DTypeCastTransform: _cast,
    DoubleToFloat: _cast,
    EndOfLife: _end_of_life,
    ExcludeTransform: _exclude,
    FlattenObservation: leafwise(_reshape),
    GrayScale: leafwise(_nothing),
    InitTracker: _init_tracker,
    ObservationNorm: leafwise(_observation_norm),
    RenameTransform: _rename,
    Resize: leafwise(_nothing),
    RewardClipping: leafwise(_reward_clipping),
    RewardScaling: leafwise(_reward_scaling),
    RewardSum: _reward_sum,
    SelectTransform: _select,
    SignTransform: leafwise(_sign),
    SqueezeTransform: leafwise(_reshape),
    StepCounter: _step_counter,
    TensorDictPrimer: _primer,
    ToTensorImage: leafwise(_nothing),
    UnsqueezeTransform: leafwise(_reshape),
}


def bind_steps(chain: ArrayChain, transforms: Iterable[Transform]) -> bool:
    """Bind transforms in order; False if one has no numpy step, then no call may be used."""
    bound = ((BINDERS.get(type(one)), one) for one in transforms)
    return (
        all(binder is not None and binder(one, chain) for binder, one in bound) and chain.finish()
    )
