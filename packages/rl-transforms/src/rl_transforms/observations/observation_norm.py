"""Normalisation of observations by fixed statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_specs import TensorSpec
from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_number, check_whole, number_tensor
from rl_transforms.described import described, without_bounds
from rl_transforms.entries import required
from rl_transforms.transform import Keys, Transform


class ObservationNorm(Transform):
    """Scales and shifts observations: observation * scale + loc, and back on the way in.

    Args:
        loc: the shift, a number or what broadcasts against a leaf; None until `init_stats`.
        scale: the factor, likewise.
        in_keys: observations; ``["observation"]`` by default.
        out_keys: what to call them; the same by default.
        in_keys_inv: leaves to scale back on the way in, by their inner names.
        out_keys_inv: their names outside; the same by default.
        standard_normal: compute (observation - loc) / scale instead.
        eps: the least scale to divide by.

    Raises:
        ValueError: one of `loc` and `scale` is given without the other.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> batch = trajectories([30, 40])
        >>> norm = ObservationNorm(standard_normal=True)
        >>> norm.init_stats(batch)
        >>> seen = norm(batch)["observation"]
        >>> bool(seen.mean(0).abs().max() < 1e-5), bool((seen.std(0) - 1).abs().max() < 1e-5)
        (True, True)
    """

    loc: Tensor | None
    scale: Tensor | None
    draw_rows: Callable[[int], TensorDictBase] | None = None
    """Plays so many steps of the environment in front of it, which sets this."""

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        loc: float | Tensor | None = None,
        scale: float | Tensor | None = None,
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
        standard_normal: bool = False,
        eps: float = 1e-6,
    ) -> None:
        default = ["observation"] if in_keys is None and in_keys_inv is None else in_keys
        super().__init__(default, out_keys, in_keys_inv, out_keys_inv)
        if (loc is None) != (scale is None):
            msg = f"pass both of loc and scale, or neither: got {loc} and {scale}."
            raise ValueError(msg)
        check_number("eps", eps)
        self.standard_normal, self.eps = standard_normal, eps
        for name, given in (("loc", loc), ("scale", scale)):
            self.register_buffer(name, None if given is None else number_tensor(name, given))

    def init_stats(
        self,
        batch: TensorDictBase | int | None = None,
        reduce_dim: int | Sequence[int] = 0,
        cat_dim: int | None = None,
        key: NestedKey | None = None,
        keep_dims: Sequence[int] | None = None,
        *,
        num_iter: int | None = None,
    ) -> None:
        """Take shift and factor from rows, as those of ``env.rollout(1000)``.

        Args:
            batch: rows ``[*B]``, padding marked by ``("collector", "mask")``; or, in an
                environment, how many steps of random actions to play for them.
            reduce_dim: dimensions of the leaf, counted from its end, to take the statistics over;
                those of the batch always are.
            cat_dim: no effect: rows come along the batch.
            key: the leaf; needed if there are several.
            keep_dims: which of `reduce_dim` stay, with size 1.
            num_iter: another name of `batch`, for a number of steps.

        Raises:
            KeyError: it is missing.
            TypeError: a dimension is no integer, as where the leaf is not named by ``key=``; or
                `batch` and `num_iter` are both given, or neither.
            ValueError: there are several leaves and no key, fewer than two rows, or NaN and
                infinite numbers in them.
            RuntimeError: there are statistics already, or a number came and no environment.
        """
        del cat_dim
        if (batch is None) == (num_iter is None):
            got = "neither" if batch is None else "both"
            msg = f"pass rows as batch, or a number of steps as num_iter: got {got}."
            raise TypeError(msg)
        if self.loc is not None:
            msg = "there are statistics already: make another ObservationNorm."
            raise RuntimeError(msg)
        if key is None and len(self.in_keys) != 1:
            msg = f"statistics of which leaf? There are {self.in_keys}: pass key=."
            raise ValueError(msg)
        named = self.in_keys[0] if key is None else key
        given = num_iter if batch is None else batch
        seen = given if isinstance(given, TensorDictBase) else self._drawn(given)
        leaf = required(self, seen, named)
        mask = seen.get(keys.MASK, None)
        rows = leaf.flatten(0, seen.ndim - 1) if mask is None else leaf[mask]
        if len(rows) < 2 or not bool(rows.isfinite().all()):
            msg = f"{named!r}: statistics need two rows, all finite: got {len(rows)}."
            raise ValueError(msg)
        over, gone = _reduced(reduce_dim, keep_dims or (), seen.ndim, rows.ndim - 1)
        mean, std = rows.mean(over, True).squeeze(gone), rows.std(over, keepdim=True).squeeze(gone)
        std = std.clamp_min(self.eps)
        self.loc, self.scale = (mean, std) if self.standard_normal else (-mean / std, 1 / std)

    @property
    def initialized(self) -> bool:
        """Whether there are statistics."""
        return self.loc is not None

    def _drawn(self, num_iter: Any) -> TensorDictBase:
        check_whole("batch", num_iter, 2)
        if self.draw_rows is None:
            msg = f"init_stats({num_iter}) plays steps of the environment around this transform, "
            raise RuntimeError(msg + "and there is none: pass rows, as env.rollout(1000).")
        return self.draw_rows(num_iter)

    def __getstate__(self) -> dict[str, Any]:
        # a copy is in no environment yet
        return {name: held for name, held in self.__dict__.items() if name != "draw_rows"}

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Scale one leaf."""
        loc, scale = self._statistics()
        if self.standard_normal:
            return (value - loc) / scale.clamp_min(self.eps)
        return value * scale + loc

    def invert_leaf(self, value: Tensor) -> Tensor:
        """Scale one leaf back."""
        loc, scale = self._statistics()
        if self.standard_normal:
            return value * scale.clamp_min(self.eps) + loc
        return (value - loc) / scale

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a scaled leaf; before there are statistics, by its shape alone."""
        if self.loc is None:
            return without_bounds(spec, lambda value: value)
        return described(spec, self.apply_leaf)

    def inverse_leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a leaf that is scaled back to fit."""
        return described(spec, self.apply_leaf)

    def _statistics(self) -> tuple[Tensor, Tensor]:
        if self.loc is None or self.scale is None:
            msg = (
                "ObservationNorm has no statistics yet: call init_stats(env.rollout(1000)) before "
                "it is used, or pass loc and scale."
            )
            raise RuntimeError(msg)
        return self.loc, self.scale

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # room for statistics that another one had and this one has not
        for name in ("loc", "scale"):
            saved = state_dict.get(prefix + name)
            if saved is not None and getattr(self, name) is None:
                setattr(self, name, torch.empty_like(saved))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _reduced(
    dims: int | Sequence[int], kept: Sequence[int], lead: int, ndim: int
) -> tuple[list[int], list[int]]:
    """Dimensions of rows ``[M, ...]`` to reduce, and which of them to take away."""

    def from_the_end(dim: int) -> int:
        return dim if dim < 0 else dim - lead - ndim

    named = [dims] if isinstance(dims, int) else list(dims)
    if not all(isinstance(dim, int) for dim in (*named, *kept)):
        msg = f"reduce_dim and keep_dims: expected dimensions, got {dims!r}, {kept!r}. Name a leaf "
        raise TypeError(msg + "by key=.")
    inner = {dim for dim in map(from_the_end, named) if -ndim <= dim < 0}
    places = sorted({0, *(dim + ndim + 1 for dim in inner)})
    stay = {from_the_end(dim) + ndim + 1 for dim in kept}
    return places, [place for place in places if place == 0 or place not in stay]
