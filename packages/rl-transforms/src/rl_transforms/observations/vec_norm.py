"""Normalisation of observations by running statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.keys import next_key
from rl_specs import TensorSpec
from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_collection, check_number
from rl_transforms.compose import Compose
from rl_transforms.described import without_bounds
from rl_transforms.entries import merge_reset, missing, required, with_entries
from rl_transforms.observations.moments import LocalMoments, Moments, SharedMoments
from rl_transforms.observations.observation_norm import ObservationNorm
from rl_transforms.transform import Keys, Transform


class VecNorm(Transform):
    """Normalises observations by running statistics: (x - mean) / std.

    In an environment every observation updates the statistics once, in the reset or step that
    returned it, and is then scaled by them. It is not rescaled later. `forward` uses the statistics
    and does not update them.

    The statistics are in double precision on the host: a mean and a sum of squared deviations for
    every entry of a leaf, merged as by Chan, Golub and LeVeque. With a `decay` below 1 every step,
    of any number of environments, reduces the weight of earlier observations.

    `share_memory` moves them into memory that all later copies read and write, in any process.
    `freeze` stops the updates of one copy; `to_observation_norm` returns a fixed transform.
    `state_dict` holds the merged statistics; that of a sharing copy also holds its own part, which
    loading restores.

    Args:
        in_keys: observations; ``["observation"]`` by default.
        out_keys: scaled observations; the same keys by default.
        decay: factor on the weight of a row at every step, above 0 and at most 1.
        eps: the smallest standard deviation to divide by, above 0.

    Attributes:
        frozen: whether steps and resets leave the statistics as they are.

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> from tensordict import TensorDict
        >>> norm = VecNorm()
        >>> norm.update(TensorDict({"observation": torch.tensor([[1.0], [3.0]])}, [2]))
        >>> norm(TensorDict({"observation": torch.tensor([[4.0]])}, [1]))["observation"]
        tensor([[2.]])
    """

    def __init__(
        self,
        in_keys: Keys = None,
        out_keys: Keys = None,
        *,
        decay: float = 0.9999,
        eps: float = 1e-4,
    ) -> None:
        super().__init__(["observation"] if in_keys is None else in_keys, out_keys)
        check_number("decay", decay)
        check_number("eps", eps)
        if not 0 < decay <= 1:
            msg = f"decay: expected a share above 0 and at most 1, got {decay}. Pass 1 for none."
            raise ValueError(msg)
        if eps <= 0:
            msg = f"eps: expected a number above 0 to divide by, got {eps}."
            raise ValueError(msg)
        self.decay, self.eps, self.frozen = decay, eps, False
        self._stores: list[LocalMoments | SharedMoments] = [LocalMoments() for _ in self.in_keys]

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Scale sampled or rolled-out rows, without an update of the statistics.

        Args:
            batch: rows ``[*B]`` or ``[*B, T]``.

        Returns:
            The scaled rows.

        Raises:
            KeyError: an in key is neither at the root nor under ``"next"``.
            RuntimeError: there are no statistics yet.
            ValueError: they are of leaves of another shape.
        """
        changes: dict[NestedKey, Tensor] = {}
        for number, (key, out) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            # either side may be missing, as in batches that store observations once
            pairs = ((key, out), (next_key(key), next_key(out)))
            there = {to: leaf for at, to in pairs if (leaf := batch.get(at, None)) is not None}
            if not there:
                raise missing(self, key, batch)
            changes.update({to: self._scaled(number, leaf) for to, leaf in there.items()})
        return with_entries(batch, changes)

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Count and scale the observations of a reset; missing in keys are skipped.

        Args:
            root: ``[*B]``, after the reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The root; rows outside the mask are not counted, and keep their values.

        Raises:
            ValueError: an observation is not finite, or of another shape than before.
            RuntimeError: the transform is frozen and there are no statistics.
        """
        changes: dict[NestedKey, Tensor] = {}
        for number, (key, out) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            value = root.get(key, None)
            if value is None:
                continue
            # rows [R, ...]; unsqueezed so that a root without batch dimensions is one row
            seen = value.unsqueeze(0).flatten(0, root.ndim) if mask is None else value[mask]
            self._count(number, seen)
            # rows that were not reset keep what their last step returned
            changes[out] = merge_reset(mask, self._scaled(number, value), root.get(out, None))
        return with_entries(root, changes)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Count and scale the observations of a step.

        Args:
            root: ``[*B]``, what the step started from.
            after: ``[*B]``, the entries under ``"next"``.

        Returns:
            The new ``after``.

        Raises:
            KeyError: an in key is missing.
            ValueError: an observation is not finite, or of another shape than before.
            RuntimeError: the transform is frozen and there are no statistics.
        """
        changes: dict[NestedKey, Tensor] = {}
        for number, (key, out) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            value = required(self, after, key)
            self._count(number, value.unsqueeze(0).flatten(0, after.ndim))
            changes[out] = self._scaled(number, value)
        return with_entries(after, changes)

    def rows(self, batch: TensorDictBase, last: TensorDictBase | None = None) -> TensorDictBase:
        """Raise for finished rows: the statistics change with every step.

        Raises:
            ValueError: always.
        """
        msg = "VecNorm scales by what was seen so far: call step at every step, not rows."
        raise ValueError(msg)

    def update(self, batch: TensorDictBase) -> None:
        """Count the observations of rows, as those of ``env.rollout(1000)``; frozen or not.

        Args:
            batch: rows ``[*B]``, padding marked by ``("collector", "mask")``.

        Raises:
            KeyError: an observation is missing.
            TypeError: the batch is no tensordict.
            ValueError: one is not finite, or of another shape than before.
        """
        check_collection("batch", batch)
        mask = batch.get(keys.MASK, None)
        for number, key in enumerate(self.in_keys):
            leaf = required(self, batch, key)
            # [*B, ...] -> [R, ...], without padding
            rows = leaf.flatten(0, batch.ndim - 1) if mask is None else leaf[mask]
            self._count(number, rows, always=True)

    def freeze(self, frozen: bool = True) -> VecNorm:
        """Stop the updates of the statistics, or resume them; return this transform."""
        self.frozen = frozen
        return self

    def share_memory(self, lanes: int = 16) -> VecNorm:
        """Share the statistics with every copy made from now on; needs ``rl-slabs``.

        Args:
            lanes: the largest number of copies that write at the same time, each in its thread;
                copies of ended processes do not count.

        Returns:
            This transform. Its statistics so far become its part of the shared ones.

        Raises:
            ImportError: rl-slabs is not installed.

        Example:
            >>> import copy
            >>> from rl_layout.testing import trajectories
            >>> norm = VecNorm(decay=1).share_memory(lanes=2)
            >>> for one in (norm, copy.deepcopy(norm)):
            ...     one.update(trajectories([3]))
            >>> norm.statistics()[0]
            6.0
        """
        try:
            from rl_slabs import LazyFile
        except ImportError as error:
            msg = "sharing statistics needs rl-slabs: pip install rl-transforms[shared]."
            raise ImportError(msg) from error
        for number, store in enumerate(self._stores):
            if isinstance(store, LocalMoments):
                # from here on copies share the memory, and each counts in a lane of its own
                file = LazyFile.shared("rl-transforms moments")
                self._stores[number] = shared = SharedMoments(file, lanes)
                if store.part is not None:
                    shared.put(store.part)
        return self

    def statistics(self, key: NestedKey | None = None) -> tuple[float, Tensor, Tensor]:
        """Return the statistics of a leaf.

        Args:
            key: an entry of ``in_keys``; the first one if None.

        Returns:
            The weighted number of rows, and their mean and standard deviation, float64, in the
            shape of a row.

        Raises:
            RuntimeError: there are no statistics yet.
            KeyError: there is no such in key.
        """
        if key is not None and key not in self.in_keys:
            msg = f"{key!r} is not scaled here: {self.in_keys} are."
            raise KeyError(msg)
        known = self._known(0 if key is None else self.in_keys.index(key))
        return known.count, torch.from_numpy(known.mean), torch.from_numpy(known.std)

    def to_observation_norm(self, dtype: torch.dtype | None = None) -> Transform:
        """Return a fixed transform with the current statistics.

        Args:
            dtype: of the observations; torch's default if None.

        Returns:
            An `ObservationNorm`, or a `Compose` of one for each in key. What it makes of rows of
            that dtype has the same bits.

        Raises:
            RuntimeError: there are no statistics yet.
        """
        made = []
        for number, (key, out) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            loc, scale = self._loc_and_scale(number, dtype or torch.get_default_dtype())
            norm = ObservationNorm(loc, scale, [key], [out], standard_normal=True, eps=self.eps)
            made.append(norm)
        return made[0] if len(made) == 1 else Compose(*made)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Return the unbounded spec of a scaled leaf."""

        def as_float(leaf: Tensor) -> Tensor:
            return leaf if leaf.is_floating_point() else leaf.to(torch.get_default_dtype())

        return without_bounds(spec, as_float)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the statistics, as `state_dict` wants them."""
        states = [_as_state(store.all()) for store in self._stores]
        shared = [isinstance(store, SharedMoments) for store in self._stores]
        if not any(shared):
            return {"all": states}
        return {"all": states, "part": [_as_state(store.part) for store in self._stores]}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the statistics; a sharing transform restores its own part."""
        is_shared = any(isinstance(store, SharedMoments) for store in self._stores)
        if is_shared and "part" not in state:
            msg = "the state is that of statistics that are not shared: load it, then share_memory."
            raise RuntimeError(msg)
        parts = state["part"] if is_shared else state["all"]
        if len(parts) != len(self._stores):
            msg = f"the state is of {len(parts)} leaves, this transform scales {self.in_keys}."
            raise ValueError(msg)
        for number, (store, part) in enumerate(zip(self._stores, parts, strict=True)):
            if isinstance(store, LocalMoments):
                self._stores[number] = store = LocalMoments()
            if part is not None:
                store.put(Moments(part["count"], part["mean"].numpy(), part["squares"].numpy()))
            # no part was saved: what this one counted so far is dropped
            elif store.part is not None:
                store.put(Moments.none(store.part.mean.shape))

    def extra_repr(self) -> str:
        """List the settings and the keys."""
        return f"decay={self.decay}, eps={self.eps}, frozen={self.frozen}, {super().extra_repr()}"

    def _count(self, number: int, rows: Tensor, always: bool = False) -> None:
        """Count rows ``[R, ...]``."""
        if (self.frozen and not always) or not len(rows):
            return
        # float64 on the host: sums of squares of millions of float32 rows lose digits
        store, shape = self._stores[number], rows.shape[1:]
        before = store.to_update(shape)
        self._check_shape(number, before, shape)
        exact = rows.detach().to("cpu", torch.float64).numpy()
        if not bool(np.isfinite(exact).all()):
            msg = f"{self.in_keys[number]!r} holds NaN or infinite numbers, of which there are no "
            raise ValueError(msg + "statistics. Replace or clip them ahead of VecNorm.")
        # decayed once a call, then merged: a call is one step of all environments
        store.put(before.decayed(self.decay).joined(Moments.of(exact)))

    def _scaled(self, number: int, value: Tensor) -> Tensor:
        known = self._known(number)
        # leading dimensions are those of the batch, the last ones those of a row
        self._check_shape(number, known, value.shape[value.ndim - known.mean.ndim :])
        dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
        loc, scale = self._loc_and_scale(number, dtype, known)
        if value.device.type != "cpu":
            loc, scale = loc.to(value.device), scale.to(value.device)
        return (value - loc) / scale

    def _loc_and_scale(
        self, number: int, dtype: torch.dtype, known: Moments | None = None
    ) -> tuple[Tensor, Tensor]:
        moments = self._known(number) if known is None else known
        # in float64, then rounded once to the dtype of the leaf
        scale = np.maximum(moments.std, self.eps)
        return torch.from_numpy(moments.mean).to(dtype), torch.from_numpy(scale).to(dtype)

    def _known(self, number: int) -> Moments:
        known = self._stores[number].all()
        if known is None or not known.count:
            msg = (
                f"VecNorm has no statistics of {self.in_keys[number]!r} yet: step an environment "
                "with it, or call update(env.rollout(1000))."
            )
            raise RuntimeError(msg)
        return known

    def _check_shape(self, number: int, known: Moments, shape: Sequence[int]) -> None:
        if tuple(shape) != known.mean.shape:
            msg = f"{self.in_keys[number]!r}: the statistics are of leaves of shape "
            raise ValueError(f"{msg}{list(known.mean.shape)}, got {list(shape)}.")


def _as_state(part: Moments | None) -> dict[str, Any] | None:
    if part is None:
        return None
    mean, squares = torch.from_numpy(part.mean.copy()), torch.from_numpy(part.squares.copy())
    return {"count": part.count, "mean": mean, "squares": squares}
