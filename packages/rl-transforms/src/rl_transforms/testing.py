"""A conformance check for transforms, to call from the tests of an author."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from tensordict import TensorDict, TensorDictBase

from rl_specs import Composite, make_composite_from_td
from rl_tensordict import as_tuple
from rl_transforms.transform import Transform

__all__ = ["check_transform"]


def check_transform(make: Callable[[], Transform], batch: TensorDictBase) -> None:
    """Check that a transform keeps the promises of transforms.

    Nothing that it is given is changed; its out keys are written; a copy, as a worker process gets
    it, does the same; specs have the shapes and dtypes of the data; stepping through an
    environment gives what `rows` gives for the finished rows.

    Args:
        make: makes the transform, as often as it is called.
        batch: rows ``[T]`` of one trajectory, with what the transform reads. A transform that
            needs a buffer's rows is called with the batch alone.

    Raises:
        AssertionError: a promise is broken; the message says which.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> from rl_transforms import RewardScaling
        >>> check_transform(lambda: RewardScaling(loc=0.0, scale=0.5), trajectories([5]))
    """
    transform, kind = make(), type(make()).__name__
    result = _unchanged(transform.forward, batch, kind)
    results = [result] if transform.side == "write" else [result, make().rows(batch.clone())]
    for key in transform.out_keys:
        path = as_tuple(key)
        places = {path[0] if len(path) == 1 else path, ("next", *path)}
        written = any(places & set(each.keys(True, True)) for each in results)
        _require(written, kind, f"it writes its out key {key!r}")
    copied = deepcopy(make()).forward(batch.clone())
    _require(_equal(copied, make().forward(batch.clone())), kind, "a copy does the same")
    if transform.side == "write":
        _unchanged(transform.inv, batch, kind)
    if "environment" in transform.places and not transform.rows_only:
        _check_specs(make(), batch, kind)
        _check_steps(make, batch, kind)


def _unchanged(
    call: Callable[[TensorDictBase], TensorDictBase | None], batch: TensorDictBase, kind: str
) -> TensorDictBase:
    given = batch.clone()
    result = call(given)
    _require(_equal(given, batch), kind, "nothing that it is given is changed")
    return batch if result is None else result


def _check_specs(transform: Transform, batch: TensorDictBase, kind: str) -> None:
    """Observation specs have the shapes and dtypes of what a reset returns."""
    root = batch[0].exclude("next", "collector")
    before: Composite = make_composite_from_td(root)
    asked = before.clone()
    after = transform.transform_observation_spec(asked)
    _require(asked == before, kind, "a spec that it is given is not changed")
    shown = transform.reset(root)
    for key in after.keys(True, True):
        value = shown.get(key, None)
        if value is None:
            continue
        alike = value.shape == after[key].shape and value.dtype == after[key].dtype
        _require(alike, kind, f"the spec of {key!r} has the shape and dtype of the data")


def _check_steps(make: Callable[[], Transform], batch: TensorDictBase, kind: str) -> None:
    """Steps one by one, as an environment takes them, and all rows at once."""
    stepped, transform, count = [], make(), len(batch)
    root = transform.reset(batch[0].exclude("next"))
    for number in range(count):
        after = _unchanged_step(transform, root, batch[number]["next"], kind)
        stepped.append(TensorDict({**dict(root.items()), "next": after}, batch[number].batch_size))
        if number + 1 < count:
            raw = batch[number + 1].exclude("next")
            root = TensorDict({**dict(raw.items()), **dict(_carried(after).items())}, [])
    rows = make().rows(batch.clone())
    for key in make().out_keys:
        path = as_tuple(key)
        place = ("next", *path)
        if place not in rows.keys(True, True):
            continue
        one_by_one = torch.stack([step.get(place) for step in stepped])
        same = torch.allclose(one_by_one.double(), rows[place].double(), equal_nan=True)
        _require(same, kind, f"steps and rows write the same under {place!r}")


def _carried(after: TensorDictBase) -> TensorDictBase:
    """What the step before leaves at the next root: all but rewards and done flags."""
    return after.exclude("reward", "done", "terminated", "truncated")


def _unchanged_step(
    transform: Transform, root: TensorDictBase, after: TensorDictBase, kind: str
) -> TensorDictBase:
    given = root.clone(), after.clone()
    result = transform.step(*given)
    same = _equal(given[0], root) and _equal(given[1], after)
    _require(same, kind, "nothing that it is given is changed")
    return result


def _equal(one: TensorDictBase, other: TensorDictBase) -> bool:
    if set(one.keys(True, True)) != set(other.keys(True, True)):
        return False
    pairs = ((one.get(key), other.get(key)) for key in one.keys(True, True))
    return all(
        a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())
        for a, b in pairs
    )


def _require(true: bool, kind: str, promise: str) -> None:
    if not true:
        msg = f"{kind} breaks a promise: {promise}."
        raise AssertionError(msg)
