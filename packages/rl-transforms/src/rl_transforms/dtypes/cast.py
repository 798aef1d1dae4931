"""Casting leaves of one dtype to another."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_specs import Composite, TensorSpec
from rl_tensordict import NestedKey, as_key, leaves
from rl_transforms.entries import required, with_entries
from rl_transforms.transform import Keys, Transform, with_specs


class DTypeCastTransform(Transform):
    """Casts leaves of one dtype to another on their way out, and back on their way in.

    Without keys it casts every leaf of that dtype. On the way into an environment it then casts
    the leaves whose action and state specs have ``dtype_in``; into a buffer, which has no specs,
    every leaf of ``dtype_out``.

    Args:
        dtype_in: dtype inside the environment or the buffer.
        dtype_out: dtype outside.
        in_keys: leaves to cast on the way out; None for every one of ``dtype_in``.
        out_keys: what to call them; the same by default.
        in_keys_inv: leaves to cast on the way in, by their inner names; None as said above.
        out_keys_inv: their names outside; the same by default.

    Raises:
        TypeError: a dtype is not one of torch's.
        ValueError: there are out keys without in keys.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> batch = DTypeCastTransform(torch.float32, torch.float16)(trajectories([3]))
        >>> batch["observation"].dtype, batch["next", "reward"].dtype, batch["action"].dtype
        (torch.float16, torch.float16, torch.int64)
    """

    def __init__(
        self,
        dtype_in: torch.dtype,
        dtype_out: torch.dtype,
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        given: dict[str, object] = {"dtype_in": dtype_in, "dtype_out": dtype_out}
        for name, dtype in given.items():
            if not isinstance(dtype, torch.dtype):
                msg = f"{name}: expected a torch.dtype, got {dtype!r}. Write torch.float32."
                raise TypeError(msg)
        self.dtype_in, self.dtype_out = dtype_in, dtype_out
        self.casts_all, self._all_in = in_keys is None, in_keys_inv is None
        # actions and states to cast; None if no spec was seen, as in a buffer
        self._inputs: set[NestedKey] | None = None

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Cast sampled or rolled-out rows.

        Args:
            batch: rows ``[*B]`` or ``[*B, T]``.

        Returns:
            The rows, uncast leaves shared.

        Raises:
            KeyError: an in key is neither at the root nor under ``"next"``.
            TypeError: a leaf named by an in key has neither dtype.
        """
        if not self.casts_all:
            return super().forward(batch)
        return _cast_all(batch, self.dtype_in, self.dtype_out)

    def inv(self, batch: TensorDictBase) -> TensorDictBase | None:
        """Cast data going in.

        Args:
            batch: a step's root ``[*B]``, or rows ``[*B]`` or ``[*B, T]``.

        Returns:
            The data, uncast leaves shared.

        Raises:
            KeyError: a key to cast is missing.
            TypeError: a leaf named by a key has neither dtype.
        """
        if not self._all_in:
            return super().inv(batch)
        # a buffer has no specs: every leaf of the outer dtype is cast
        if self._inputs is None:
            return _cast_all(batch, self.dtype_out, self.dtype_in)
        return with_entries(
            batch,
            {
                key: self._named(self.invert_leaf, key, required(self, batch, key))
                for key in self._inputs
            },
        )

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Cast what a reset returned; a cast changes no row that has the outer dtype already."""
        if self.casts_all:
            return _cast_all(root, self.dtype_in, self.dtype_out)
        return super().reset(root, mask)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Cast what a step returned."""
        if not self.casts_all:
            return super().step(root, after)
        return _cast_all(after, self.dtype_in, self.dtype_out)

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Cast one leaf outward."""
        return _cast(value, self.dtype_in, self.dtype_out)

    def invert_leaf(self, value: Tensor) -> Tensor:
        """Cast one leaf inward."""
        return _cast(value, self.dtype_out, self.dtype_in)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a leaf after the cast."""
        cast: TensorSpec = spec.to(self.dtype_out) if spec.dtype == self.dtype_in else spec
        return cast

    def inverse_leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a leaf that is cast to fit."""
        return self.leaf_spec(spec)

    def _outward(self, spec: Composite) -> Composite:
        return self._cast_specs(spec)[0] if self.casts_all else super()._outward(spec)

    def _inward(self, spec: Composite) -> Composite:
        if not self._all_in:
            return super()._inward(spec)
        described, cast = self._cast_specs(spec)
        # called for actions and for states: both are kept
        self._inputs = (self._inputs or set()) | cast
        return described

    def _cast_specs(self, spec: Composite) -> tuple[Composite, set[NestedKey]]:
        named = {key: spec[key] for key in spec.keys(include_nested=True, leaves_only=True)}
        found = {k: leaf for k, leaf in named.items() if leaf.dtype == self.dtype_in}
        changes = {key: self.leaf_spec(leaf) for key, leaf in found.items()}
        return with_specs(spec, changes), set(found)


class DoubleToFloat(DTypeCastTransform):
    """Casts double precision to single on the way out, and back on the way in.

    Args:
        in_keys: leaves to cast on the way out; None for every one of float64.
        out_keys: what to call them; the same by default.
        in_keys_inv: leaves to cast on the way in, by their inner names; None as in
            `DTypeCastTransform`.
        out_keys_inv: their names outside; the same by default.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"observation": torch.zeros(3, dtype=torch.float64)}, [3])
        >>> DoubleToFloat()(batch)["observation"].dtype
        torch.float32
    """

    def __init__(
        self,
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
    ) -> None:
        inverse = (in_keys_inv, out_keys_inv)
        super().__init__(torch.float64, torch.float32, in_keys, out_keys, *inverse)


def _cast(value: Tensor, source: torch.dtype, target: torch.dtype) -> Tensor:
    if value.dtype not in (source, target):
        msg = f"expected a leaf of {source} to cast to {target}: got {value.dtype}. Name another."
        raise TypeError(msg)
    return value.to(target)


def _cast_all(batch: TensorDictBase, source: torch.dtype, target: torch.dtype) -> TensorDictBase:
    found = [(key, value) for key, value in leaves(batch) if isinstance(value, Tensor)]
    changes = {as_key(key): v.to(target) for key, v in found if v.dtype == source}
    return with_entries(batch, changes) if changes else batch
