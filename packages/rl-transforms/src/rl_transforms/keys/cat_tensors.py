"""Concatenation of leaves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout.keys import NEXT
from rl_specs import Bounded, Composite, TensorSpec, Unbounded
from rl_tensordict import NestedKey, as_tuple
from rl_tensordict.arguments import check_whole, key_list
from rl_transforms.entries import merge_rows, required, with_entries, without_entries
from rl_transforms.transform import Transform, spec_of, with_specs, without_specs


class CatTensors(Transform):
    """Concatenates leaves along one of their dimensions.

    Args:
        in_keys: leaves, all of one shape but for that dimension.
        out_key: key of the result.
        dim: dimension to concatenate along, counted from the end.
        del_keys: drop the original leaves.
        sort: order leaves by key; otherwise as in `in_keys`.

    Raises:
        ValueError: there is no leaf to join, or the dimension is not negative.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"place": torch.zeros(3, 2), "speed": torch.ones(3, 1)}, [3])
        >>> CatTensors(["place", "speed"])(batch)["observation_vector"][0]
        tensor([0., 0., 1.])
    """

    def __init__(
        self,
        in_keys: Sequence[NestedKey],
        out_key: NestedKey = "observation_vector",
        dim: int = -1,
        *,
        del_keys: bool = True,
        sort: bool = True,
    ) -> None:
        named = key_list("in_keys", in_keys)
        check_whole("dim", dim)
        as_tuple(out_key)
        ordered = sorted(named, key=as_tuple) if sort else named
        if not ordered or dim >= 0:
            msg = f"expected leaves, and a dimension counted from the end: got {in_keys} and {dim}."
            raise ValueError(msg)
        super().__init__(ordered, [out_key] * len(ordered))
        self.out_key, self.dim, self.del_keys = out_key, dim, del_keys
        self.dropped_keys = [key for key in ordered if as_tuple(key) != as_tuple(out_key)]

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Join leaves of sampled or rolled-out rows.

        Args:
            batch: rows ``[*B]`` or ``[*B, T]``.

        Returns:
            The rows with the joined leaf.

        Raises:
            KeyError: a leaf is missing at the root, or some but not all under ``"next"``.
            ValueError: shapes do not fit.
        """
        joined = self._joined(batch)
        after = batch.get(NEXT, None)
        # a buffer may store observations at the root only
        if after is None or all(after.get(key, None) is None for key in self.in_keys):
            return joined
        return with_entries(joined, {NEXT: self._joined(after)})

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Join what a reset returned; rows outside the mask keep what was joined before."""
        fresh, kept = self._together(root), root.get(self.out_key, None)
        # rows that were not reset keep what their last step returned
        if mask is not None and kept is not None and kept.shape == fresh.shape:
            fresh = merge_rows(mask, fresh, kept)
        changed = with_entries(root, {self.out_key: fresh})
        return without_entries(changed, self.dropped_keys * self.del_keys)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Join what a step returned."""
        return self._joined(after)

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Describe the joined observation.

        Raises:
            KeyError: there is no such observation.
        """
        parts = [spec_of("CatTensors", spec, key, "observation") for key in self.in_keys]
        changed = with_specs(spec, {self.out_key: _spec_of(parts, self.dim)})
        return without_specs(changed, self.dropped_keys) if self.del_keys else changed

    # the base would change rewards and done flags that are named like an in key
    def transform_reward_spec(self, spec: Composite) -> Composite:
        """Leave rewards as they are."""
        return spec

    def transform_done_spec(self, spec: Composite) -> Composite:
        """Leave done flags as they are."""
        return spec

    def _joined(self, batch: TensorDictBase) -> TensorDictBase:
        changed = with_entries(batch, {self.out_key: self._together(batch)})
        return without_entries(changed, self.dropped_keys * self.del_keys)

    def _together(self, batch: TensorDictBase) -> Tensor:
        leaves = [required(self, batch, key) for key in self.in_keys]
        try:
            return torch.cat(leaves, self.dim)
        except (RuntimeError, IndexError) as error:
            pairs = zip(self.in_keys, leaves, strict=True)
            shapes = {str(key): list(leaf.shape) for key, leaf in pairs}
            msg = f"CatTensors: expected one shape but for dimension {self.dim}: got {shapes}."
            raise ValueError(msg) from error


def _spec_of(parts: list[TensorSpec], dim: int) -> TensorSpec:
    """The spec of leaves laid side by side."""
    if all(isinstance(part, Bounded) for part in parts):
        low, high = (torch.cat([getattr(p, end) for p in parts], dim) for end in ("low", "high"))
        return Bounded(low, high, dtype=low.dtype, device=parts[0].device)
    # one part without bounds leaves the whole without: zeros tell shape and dtype
    whole = torch.cat([part.zero() for part in parts], dim)
    return Unbounded(whole.shape, dtype=whole.dtype, device=parts[0].device)
