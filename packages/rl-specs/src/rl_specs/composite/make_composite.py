"""Specs guessed from data."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase, is_non_tensor, is_tensor_collection

from rl_specs.composite.composite import Composite
from rl_specs.core.tensor_spec import TensorSpec
from rl_specs.leaves.non_tensor import NonTensor
from rl_specs.leaves.unbounded import Unbounded


def make_composite_from_td(
    data: Any, *, unsqueeze_null_shapes: bool = True, dynamic_shape: bool = False
) -> Composite:
    """Guess the spec of a tensordict: every tensor unbounded, all else a Python object.

    Args:
        data: a tensordict or a tensorclass. It is not changed.
        unsqueeze_null_shapes: give tensors without dimensions the shape `(1,)`.
        dynamic_shape: make the last dimension of every tensor dynamic.

    Returns:
        A `Composite` of the batch size of `data`.

    Raises:
        TypeError: the data is no tensordict.

    Example:
        >>> from tensordict import TensorDict
        >>> data = TensorDict(obs=torch.zeros(5, 3), batch_size=(5,))
        >>> make_composite_from_td(data)["obs"]
        UnboundedContinuous(shape=(5, 3), dtype=torch.float32, device=cpu)
    """
    if not is_tensor_collection(data) or is_non_tensor(data):
        msg = f"expected a tensordict: got {type(data).__name__}. Wrap it in TensorDict(...)."
        raise TypeError(msg)
    specs = {
        name: _guess(entry, len(data.batch_size), unsqueeze_null_shapes, dynamic_shape)
        for name, entry in data.items()
    }
    data_cls = None if isinstance(data, TensorDictBase) else type(data)
    return Composite(specs, shape=data.batch_size, device=data.device, data_cls=data_cls)


def _guess(entry: Any, batch_ndim: int, unsqueeze: bool, dynamic: bool) -> TensorSpec:
    if is_non_tensor(entry):
        example = entry
        while hasattr(example, "unbind") and not hasattr(example, "_non_tensordict"):
            example = example[0]
        return NonTensor(
            entry.batch_size,
            entry.device,
            example_data=getattr(example, "data", None),
            feature_dims=len(entry.batch_size) - batch_ndim,
        )
    if is_tensor_collection(entry):
        return make_composite_from_td(entry, unsqueeze_null_shapes=unsqueeze, dynamic_shape=dynamic)
    shape = entry.shape
    if not shape and unsqueeze:
        shape = torch.Size((1,))
    elif shape and dynamic:
        shape = torch.Size((*shape[:-1], -1))
    return Unbounded(shape, entry.device, entry.dtype)
