"""The leaves of a tensordict of rows: dense tensors."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor

from rl_tensordict.entries import entries_of
from rl_tensordict.flatten import check_items


class Leaves(dict[tuple[str, ...], Tensor]):
    """Leaves by key, as `leaves_of` collects them; a type of its own marks them as collected."""


def leaves_of(tensordict: TensorDictBase | Leaves) -> Leaves:
    """Collect the leaves of a tensordict that must hold dense tensors only.

    Args:
        tensordict: a tensordict; leaves that were collected already are returned as they are.

    Returns:
        Each leaf by its key.

    Raises:
        TypeError: a leaf is no tensor, or a nested or sparse one; or it is no tensordict.

    Example:
        >>> from tensordict import TensorDict
        >>> list(leaves_of(TensorDict({"a": {"b": torch.zeros(2)}}, [2])))
        [('a', 'b')]
    """
    if isinstance(tensordict, Leaves):
        return tensordict
    if type(tensordict) is not TensorDict:
        check_items("tensordict", tensordict)
    found = Leaves()
    _collect(tensordict, (), found)
    return found


def _collect(tensordict: TensorDictBase, prefix: tuple[str, ...], found: Leaves) -> None:
    is_plain = type(tensordict) is TensorDict and not torch.compiler.is_compiling()
    entries = entries_of(tensordict) if is_plain else tensordict
    for name, value in entries.items():
        path = (*prefix, name)
        if isinstance(value, Tensor):
            if value.layout is not torch.strided or value.is_nested:
                msg = (
                    f"leaf {path} is a nested or sparse tensor: rows hold dense tensors of one "
                    "shape. Pad it, or keep it outside."
                )
                raise TypeError(msg)
            found[path] = value
        elif type(value) is not TensorDict and (
            is_non_tensor(value) or not hasattr(value, "items")
        ):
            msg = (
                f"leaf {path} is a {type(value).__name__}: rows hold tensors. "
                f"Leave it out with tensordict.exclude({path})."
            )
            raise TypeError(msg)
        else:
            _collect(value, path, found)
