"""Next observations as differences of few bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.keys import next_key
from rl_specs import Composite
from rl_tensordict import NestedKey, as_key, as_tuple, leaves
from rl_tensordict.arguments import check_choice, shown
from rl_transforms.entries import required, with_entries, without_entries
from rl_transforms.transform import Keys, Transform

EXCLUDED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


class NextObservationDelta(Transform):
    """Keeps next observations as differences to the root's, in a dtype of few bits.

    `rows`, on finished rows of an environment, and `inv`, on rows going into a buffer, write
    ``("next", "delta", key)`` = (next - root) in `delta_dtype`, and drop ``("next", key)``.
    `forward`, on samples, adds the root's again. Lossy: an entry comes back up to half a step of
    `delta_dtype` off, up to 1/2048 of the delta for float16, and up to the rounding of the sum
    itself. A step of the environment keeps its next observation, from which the next one starts.

    What it does in a buffer depends on `side`:

    - ``"read"``: rows come as differences already; samples are rebuilt.
    - ``"write"``: whole rows become differences when they are stored (rows that are differences
      stay), and samples are rebuilt.
    - ``"rebuild"``: differences become whole rows when they are stored, for a transform after that
      needs them whole, as a `MultiStepTransform` ahead of it in a `Compose`.
      One with ``"write"`` ahead of both keeps the n-step rows small again.

    Args:
        in_keys: observations to keep as differences; None for every floating-point one.
        delta_dtype: dtype of the differences.
        restore_dtype: dtype of the observations that come back; ``"root"`` for the root's.
        drop_delta: drop the difference where the observation is back.
        excluded_dtypes: dtypes that ``in_keys=None`` leaves alone.
        side: what to do in a buffer, as said above.

    Raises:
        TypeError: keys are not given as a list.
        ValueError: a dtype is not floating-point, or the side is none of the three.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> delta, batch = NextObservationDelta(["observation"]), trajectories([3])
        >>> small = delta.rows(batch)
        >>> small["next", "delta", "observation"].dtype, "observation" in small["next"]
        (torch.float16, False)
        >>> torch.equal(delta(small)["next", "observation"], batch["next", "observation"])
        True
    """

    online = False
    rows_only = True
    places = frozenset({"environment", "buffer"})

    def __init__(
        self,
        in_keys: Keys = None,
        *,
        delta_dtype: torch.dtype = torch.float16,
        restore_dtype: torch.dtype | Literal["root"] = "root",
        drop_delta: bool = True,
        excluded_dtypes: Sequence[torch.dtype] = EXCLUDED,
        side: Literal["read", "write", "rebuild"] = "read",
    ) -> None:
        super().__init__(in_keys)
        _check_float("delta_dtype", delta_dtype)
        if not (isinstance(restore_dtype, str) and restore_dtype == "root"):
            _check_float("restore_dtype", restore_dtype)
        check_choice("side", side, ("read", "write", "rebuild"))
        self.delta_dtype = delta_dtype
        self.restore_dtype = restore_dtype
        self.drop_delta = drop_delta
        if not isinstance(excluded_dtypes, list | tuple | set | frozenset) or not all(
            isinstance(dtype, torch.dtype) for dtype in excluded_dtypes
        ):
            msg = f"excluded_dtypes: expected a list of dtypes, got {shown(excluded_dtypes)}."
            raise TypeError(msg)
        self.excluded_dtypes = tuple(excluded_dtypes)
        # `side` is what buffers ask for, and rebuilding is done on write too
        self.direction = side
        self.side = "read" if side == "read" else "write"
        if side != "read":  # going into an environment there is no next observation
            self.places = frozenset({"buffer"})
        self._all = in_keys is None
        # learned from specs; without specs, every batch is searched
        self._observations: list[NestedKey] | None = None

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Rebuild next observations of sampled rows.

        Args:
            batch: TED rows ``[N]`` or ``[*B, T]``.

        Returns:
            The rows with their next observations; with ``side="rebuild"`` the rows themselves.

        Raises:
            KeyError: a difference is missing, or the observation at the root.
        """
        return batch if self.direction == "rebuild" else self._restored(batch)

    def inv(self, batch: TensorDictBase) -> TensorDictBase:
        """Take differences of rows to be stored, or rebuild them, as `side` says.

        Args:
            batch: TED rows ``[N]`` or ``[*B, T]``.

        Returns:
            The smaller rows with ``side="write"``, the whole ones with ``"rebuild"``, and the rows
            themselves with ``"read"``.

        Raises:
            KeyError: an observation is missing, at the root or under ``"next"``, or a difference.
            TypeError: an observation is not floating-point.
            ValueError: a difference does not fit into `delta_dtype`.
        """
        if self.direction == "read":
            return batch
        if self.direction == "rebuild":
            return self._restored(batch)
        return self.rows(batch) if batch.get(keys.DELTA, None) is None else batch

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Leave a reset as it is."""
        return root

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Leave a step as it is: the next one starts from its observation."""
        return after

    def rows(self, batch: TensorDictBase, last: TensorDictBase | None = None) -> TensorDictBase:
        """Replace next observations of finished rows by differences.

        Args:
            batch: TED rows ``[N]`` or ``[*B, T]``.
            last: not used.

        Returns:
            The smaller rows.

        Raises:
            KeyError: an observation is missing, at the root or under ``"next"``.
            TypeError: an observation is not floating-point.
            ValueError: a difference does not fit into `delta_dtype`.
        """
        changes: dict[NestedKey, Tensor] = {}
        found = self._found(batch)
        for key in found:
            root, after = (required(self, batch, name) for name in (key, next_key(key)))
            changes[(*keys.DELTA, *as_tuple(key))] = self._difference(key, root, after)
        return with_entries(without_entries(batch, [next_key(key) for key in found]), changes)

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Learn which observations there are; the spec itself stays as it is."""
        named = spec.keys(include_nested=True, leaves_only=True)
        self._observations = [key for key in named if self._takes(spec[key].dtype)]
        return spec

    def _takes(self, dtype: torch.dtype | None) -> bool:
        return dtype is not None and dtype.is_floating_point and dtype not in self.excluded_dtypes

    def _found(self, batch: TensorDictBase) -> list[NestedKey]:
        """The keys to replace: named ones, those of the specs, or those stored on both sides."""
        if not self._all:
            return self.in_keys
        # n-step or compact rows may lack some of the observations
        if self._observations is not None:
            return [key for key in self._observations if batch.get(next_key(key), None) is not None]
        required(self, batch, keys.NEXT)
        found = []
        for key, after in leaves(batch[keys.NEXT]):
            root = batch.get(key, None)
            # a difference needs both sides, in one shape and dtype
            alike = root is not None and (root.shape, root.dtype) == (after.shape, after.dtype)
            if alike and self._takes(after.dtype):
                found.append(as_key(key))
        return found

    def _difference(self, key: NestedKey, root: Tensor, after: Tensor) -> Tensor:
        if not (root.is_floating_point() and after.is_floating_point()):
            msg = f"{key!r}: expected floating-point observations, got {after.dtype}. Leave it out."
            raise TypeError(msg)
        delta = (after - root).to(self.delta_dtype)
        # lost: a finite observation that comes back infinite, or an infinite one that changes
        back = root + delta.to(root.dtype)
        lost = (after.isfinite() & ~back.isfinite()) | (after.isinf() & (back != after))
        if lost.any():
            widest = float((after - root)[lost].abs().max())
            limit = torch.finfo(self.delta_dtype).max
            msg = (
                f"{key!r}: a difference of {widest:g} does not fit into {self.delta_dtype}, which "
                f"ends at {limit:g}. Pass delta_dtype=torch.bfloat16 or torch.float32, or leave "
                "the key out."
            )
            raise ValueError(msg)
        return delta

    def _restored(self, batch: TensorDictBase) -> TensorDictBase:
        required(self, batch, keys.DELTA)
        named = [as_key(k) for k, _ in leaves(batch[keys.DELTA])] if self._all else self.in_keys
        deltas: list[NestedKey] = [(*keys.DELTA, *as_tuple(key)) for key in named]
        changes: dict[NestedKey, Tensor] = {}
        for key, stored in zip(named, deltas, strict=True):
            root, delta = (required(self, batch, name) for name in (key, stored))
            dtype = root.dtype if self.restore_dtype == "root" else self.restore_dtype
            # added in the root's dtype, in which the difference was taken
            changes[next_key(key)] = (root + delta.to(root.dtype)).to(dtype)
        return with_entries(without_entries(batch, deltas if self.drop_delta else []), changes)


def _check_float(name: str, dtype: object) -> None:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        msg = f"{name}: expected a floating-point dtype, got {dtype!r}. Pass torch.float16."
        raise ValueError(msg)
