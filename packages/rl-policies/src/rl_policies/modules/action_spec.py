"""Dtype, shape, bounds and choices of actions, from their spec."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from rl_specs import (
    Bounded,
    Categorical,
    CategoricalBox,
    Composite,
    MultiCategorical,
    MultiOneHot,
    Stacked,
    TensorSpec,
)
from rl_tensordict import NestedKey


def _are_finite(bounds: tuple[Tensor, ...]) -> bool:
    return all(bool(bound.isfinite().all()) for bound in bounds)


def leaf_of(spec: Any, key: NestedKey) -> TensorSpec | None:
    """Find the spec of one key; None without a spec."""
    if spec is None:
        return None
    if not isinstance(spec, TensorSpec):
        msg = f"spec must be a TensorSpec of rl_specs: got {type(spec).__name__}"
        raise TypeError(msg)
    if not isinstance(spec, Composite):
        return spec
    leaves = list(spec.keys(include_nested=True, leaves_only=True))
    if key not in leaves:
        msg = f"the spec has no {key!r}: it has {leaves}. Pass the spec of {key!r}, or out_keys."
        raise KeyError(msg)
    leaf: TensorSpec = spec[key]
    return leaf


class ActionForm:
    """Dtype and last size of the actions that a spec describes."""

    __slots__ = ("count", "dtype", "event_dims", "groups", "key", "leaf", "tail")

    def __init__(self, leaf: TensorSpec, key: NestedKey) -> None:
        self.leaf = leaf
        self.key = key
        self.dtype: torch.dtype = leaf.dtype  # type: ignore[assignment]
        # one action: entries of a vector or a one-hot, or a number by itself
        alone = isinstance(leaf, Categorical) and not isinstance(leaf, MultiCategorical)
        self.event_dims = 0 if alone or not leaf.ndim else 1
        self.tail = leaf.shape[leaf.ndim - self.event_dims :]
        box = leaf.space
        # -1 where the number of choices is not known yet
        self.count = box.n if isinstance(box, CategoricalBox) and box.n > 0 else None
        self.groups = groups_of(leaf, key)

    def box(self) -> tuple[Tensor, Tensor] | None:
        """Lowest and highest numbers `[*E, *tail]` of a spec or a stack of them; None without."""
        if isinstance(self.leaf, Bounded):
            return self.leaf.space.low, self.leaf.space.high
        if not isinstance(self.leaf, Stacked):
            return None
        boxes = [ActionForm(part, self.key).box() for part in self.leaf.specs]
        found = [box for box in boxes if box is not None]
        if len(found) < len(boxes) or len({box[0].shape for box in found}) > 1:
            return None
        lows, highs = zip(*found, strict=True)
        return torch.stack(lows, self.leaf.dim), torch.stack(highs, self.leaf.dim)

    def bounds(self) -> dict[str, Tensor | float]:
        """Bounds `low` and `high` for any batch; none if infinite or different per environment."""
        box, bounds = self.box(), dict[str, Tensor | float]()
        if box is None or not _are_finite(box):
            return {}
        for name, bound in zip(("low", "high"), box, strict=True):
            rows = bound.reshape(-1, *bound.shape[bound.ndim - self.event_dims :])
            if not len(rows) or bool((rows != rows[0]).any()):
                return {}
            alike = bool((rows[0] == rows[0].flatten()[0]).all())
            bounds[name] = rows[0].flatten()[0].item() if alike else rows[0].clone()
        return bounds

    def bounds_differ(self) -> bool:
        """Whether environments have different bounds, all of them finite."""
        box = self.box()
        return box is not None and box[0].numel() > 0 and _are_finite(box) and not self.bounds()

    def cast(self, action: Tensor) -> Tensor:
        """Cast an action to the dtype of the spec if that is exact, and check its last size."""
        # an action of the right dtype is not read: reading values waits for the device
        if action.dtype != self.dtype and not torch.compiler.is_compiling():
            with contextlib.suppress(ValueError):  # check raises with the key
                action = self.leaf.cast(action)
        self.check(action)
        return action

    def check(self, action: Tensor) -> None:
        """Raise for an action of another dtype or last size than the spec has."""
        if action.dtype != self.dtype:
            msg = (
                f"{self.key!r} must be {self.dtype} by its spec: got {action.dtype}, with numbers "
                "that it may not hold. Cast it, or the spec."
            )
            raise TypeError(msg)
        tail = self.tail
        if tail and action.shape[-1:] != tail and -1 not in tail:
            msg = (
                f"{self.key!r} must end in shape {tuple(tail)} by its spec: got "
                f"{tuple(action.shape)}. Look at the number of outputs of the network."
            )
            raise ValueError(msg)

    def check_scores(self, count: int) -> None:
        """Raise for another number of scores than the spec has choices."""
        choices = self.count if self.groups is None else sum(self.groups)
        if choices is not None and count != choices:
            msg = f"{self.key!r} has {choices} choices by its spec: got scores for {count}"
            raise ValueError(msg)

    def fitted(self, action: Tensor, safe: bool) -> Tensor:
        """Cast and check an action; if `safe`, project it too, which waits for the device."""
        action = self.cast(action)
        return self.projected(action) if safe else action

    def projected(self, action: Tensor) -> Tensor:
        """Find the nearest action that the spec allows. This waits for the device."""
        nearest: Tensor = self.over(action.shape).project(action)
        return nearest

    def over(self, shape: torch.Size) -> TensorSpec:
        """Return a spec whose shape ends the shape of some actions `[*B, *tail]`."""
        leaf = sized(self.leaf, shape)
        lead = len(shape) - leaf.ndim
        if lead >= 0 and shape[lead:] == leaf.shape:
            return leaf
        # number of dimensions [*E] that the spec has for environments
        env_dims = leaf.ndim - self.event_dims
        single: TensorSpec = leaf[(0,) * env_dims]
        if single.expand(leaf.shape) == leaf:
            return single  # all environments are alike: the spec of one fits any batch
        # actions [*E, T]: each environment has a row of its own spec
        if lead > 0 and shape[:env_dims] == leaf.shape[:env_dims]:
            for _ in range(lead):
                leaf = leaf.unsqueeze(env_dims)
            return leaf.expand(shape[: env_dims + lead] + leaf.shape[env_dims + lead :])
        msg = (
            f"the spec of {self.key!r} differs between environments {tuple(leaf.shape[:env_dims])}"
            f", and actions {tuple(shape)} do not say which is which: give the module the spec of "
            "one, or a batch that begins or ends with the environments."
        )
        raise ValueError(msg)


def sized(leaf: TensorSpec, shape: torch.Size) -> TensorSpec:
    """Replace dynamic dimensions (-1) of a spec by the sizes of the actions."""
    lead = len(shape) - leaf.ndim
    if -1 not in leaf.shape or lead < 0:
        return leaf
    sizes = [at if size == -1 else size for size, at in zip(leaf.shape, shape[lead:], strict=True)]
    out = leaf
    for dim, size in enumerate(leaf.shape):
        if size == -1:
            out = out[(slice(None),) * dim + (0,)].unsqueeze(dim)
    return out.expand(sizes)


def groups_of(leaf: TensorSpec, key: NestedKey) -> tuple[int, ...] | None:
    """Number of choices in each group of a multi-discrete spec; None for other specs."""
    if isinstance(leaf, MultiOneHot):
        return tuple(leaf.nvec)
    if not isinstance(leaf, MultiCategorical):
        return None
    rows = leaf.nvec.reshape(-1, leaf.nvec.shape[-1])
    if bool((rows != rows[0]).any()):
        msg = f"{key!r}: the rows of its spec have other numbers of choices each: {rows.tolist()}. "
        raise ValueError(msg + "Use a policy for each.")
    return tuple(rows[0].tolist())


def form_of(spec: Any, key: NestedKey) -> ActionForm | None:
    """Make the form of the actions under a key; None without a spec."""
    leaf = leaf_of(spec, key)
    return None if leaf is None else ActionForm(leaf, key)


def check_safe(safe: bool, form: ActionForm | None) -> None:
    """Raise if `safe` is set without a spec to project into."""
    if safe and form is None:
        msg = "safe=True projects actions into their spec: pass spec"
        raise ValueError(msg)
