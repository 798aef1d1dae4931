"""Changing the shape of leaves, counted from their last dimension."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rl_specs import TensorSpec
from rl_tensordict.arguments import check_whole
from rl_transforms.described import described
from rl_transforms.transform import Keys, Transform

OBSERVATION = ["observation"]


class FlattenObservation(Transform):
    """Merges a run of dimensions into one.

    Args:
        first_dim: the first of them, counted from the end: -3 for the third last.
        last_dim: the last of them, likewise.
        in_keys: leaves; ``["observation"]`` by default.
        out_keys: what to call them; the same by default.

    Raises:
        ValueError: a dimension is not negative, or the first comes after the last.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"observation": torch.zeros(3, 4, 5)}, [3])
        >>> FlattenObservation(-2, -1)(batch)["observation"].shape
        torch.Size([3, 20])
    """

    def __init__(
        self, first_dim: int, last_dim: int, in_keys: Keys = None, out_keys: Keys = None
    ) -> None:
        super().__init__(OBSERVATION if in_keys is None else in_keys, out_keys)
        self.first_dim, self.last_dim = _from_the_end(first_dim), _from_the_end(last_dim)
        if self.first_dim > self.last_dim:
            msg = f"expected first_dim <= last_dim: got {first_dim} and {last_dim}."
            raise ValueError(msg)

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Merge the dimensions of one leaf."""
        # negative dimensions are the leaf's own, whatever batch dimensions precede
        return value.flatten(_within(self.first_dim, value), self.last_dim)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a leaf with its dimensions merged."""
        merged: TensorSpec = spec.flatten(self.first_dim, self.last_dim)
        return merged


class UnsqueezeTransform(Transform):
    """Adds a dimension of size 1 on the way out, and takes it away on the way in.

    Args:
        dim: index of the new dimension, counted from the end: -1 for the last.
        in_keys: leaves; ``["observation"]`` by default.
        out_keys: what to call them; the same by default.
        in_keys_inv: leaves to take a dimension from on the way in, by their inner names.
        out_keys_inv: their names outside; the same by default.

    Raises:
        ValueError: the dimension is not negative.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"observation": torch.zeros(3, 4)}, [3])
        >>> UnsqueezeTransform(-2)(batch)["observation"].shape
        torch.Size([3, 1, 4])
    """

    def __init__(
        self,
        dim: int,
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
    ) -> None:
        default = OBSERVATION if in_keys is None and in_keys_inv is None else in_keys
        super().__init__(default, out_keys, in_keys_inv, out_keys_inv)
        self.dim = _from_the_end(dim)

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Add the dimension to one leaf."""
        return _unsqueezed(value, self.dim)

    def invert_leaf(self, value: Tensor) -> Tensor:
        """Take the dimension from one leaf."""
        return _squeezed(value, self.dim)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a leaf with the dimension."""
        wide: TensorSpec = spec.unsqueeze(self.dim)
        return wide

    def inverse_leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a leaf from which the dimension is taken."""
        return self.leaf_spec(spec)


class SqueezeTransform(UnsqueezeTransform):
    """Takes a dimension of size 1 away on the way out, and adds it on the way in.

    Args:
        dim: which, counted from the end: -1 for the last.
        in_keys: leaves; ``["observation"]`` by default.
        out_keys: what to call them; the same by default.
        in_keys_inv: leaves to add a dimension to on the way in, by their inner names.
        out_keys_inv: their names outside; the same by default.

    Raises:
        ValueError: the dimension is not negative.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"observation": torch.zeros(3, 1, 4)}, [3])
        >>> SqueezeTransform(-2)(batch)["observation"].shape
        torch.Size([3, 4])
    """

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Take the dimension from one leaf."""
        return _squeezed(value, self.dim)

    def invert_leaf(self, value: Tensor) -> Tensor:
        """Add the dimension to one leaf."""
        return _unsqueezed(value, self.dim)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a leaf without the dimension."""
        narrow: TensorSpec = spec.squeeze(self.dim)
        return narrow


class PermuteTransform(Transform):
    """Reorders the last dimensions, and puts them back on the way in.

    Args:
        dims: the last dimensions in their new order, counted from the end: ``(-1, -3, -2)`` moves
            the last of three to the front.
        in_keys: leaves; ``["observation"]`` by default.
        out_keys: what to call them; the same by default.
        in_keys_inv: leaves to put back on the way in, by their inner names.
        out_keys_inv: their names outside; the same by default.

    Raises:
        ValueError: these are no reordering of the last dimensions.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"observation": torch.zeros(2, 8, 9, 3)}, [2])
        >>> PermuteTransform((-1, -3, -2))(batch)["observation"].shape
        torch.Size([2, 3, 8, 9])
    """

    def __init__(
        self,
        dims: Sequence[int],
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
    ) -> None:
        default = OBSERVATION if in_keys is None and in_keys_inv is None else in_keys
        super().__init__(default, out_keys, in_keys_inv, out_keys_inv)
        self.dims = tuple(dims)
        last = list(range(-len(self.dims), 0))
        if sorted(self.dims) != last:
            msg = f"dims: expected {last} in another order, got {list(self.dims)}."
            raise ValueError(msg)
        places = [dim + len(last) for dim in self.dims]
        self._back = tuple(places.index(place) - len(last) for place in range(len(last)))

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Reorder the dimensions of one leaf."""
        return _permuted(value, self.dims)

    def invert_leaf(self, value: Tensor) -> Tensor:
        """Put the dimensions of one leaf back."""
        return _permuted(value, self._back)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a leaf with its dimensions in another order."""
        return described(spec, self.apply_leaf)

    def inverse_leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a leaf whose dimensions are put back."""
        return described(spec, self.apply_leaf)


def _permuted(value: Tensor, dims: tuple[int, ...]) -> Tensor:
    _within(-len(dims), value)
    lead = range(value.ndim - len(dims))
    return value.permute(*lead, *(value.ndim + dim for dim in dims))


def _from_the_end(dim: int) -> int:
    check_whole("dim", dim)
    if dim >= 0:
        msg = (
            f"expected a dimension counted from the end, as -1, since batches have any number of "
            f"dimensions in front: got {dim}."
        )
        raise ValueError(msg)
    return dim


def _within(dim: int, value: Tensor) -> int:
    if -dim > value.ndim:
        msg = f"there is no dimension {dim} in a leaf of shape {list(value.shape)}."
        raise ValueError(msg)
    return dim


def _unsqueezed(value: Tensor, dim: int) -> Tensor:
    # a leaf [..., a] takes a new dimension at -1 and at -2: one more than it has
    _within(dim + 1 or -1, value)
    return value.unsqueeze(dim)


def _squeezed(value: Tensor, dim: int) -> Tensor:
    if value.shape[_within(dim, value)] != 1:
        msg = f"dimension {dim} of a leaf of shape {list(value.shape)} must have size 1."
        raise ValueError(msg)
    return value.squeeze(dim)
