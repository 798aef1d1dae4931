"""New weights for a policy that is acting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn


def load_weights(policy: Any, weights: Any) -> None:
    """Copy weights into a policy, in place."""
    if not isinstance(policy, nn.Module):
        msg = f"a {type(policy).__name__} has no weights that could be replaced."
        raise TypeError(msg)
    if weights is policy:
        return
    given = state_of(weights)
    own = {_plain(name): name for name in policy.state_dict()}
    with torch.no_grad():
        policy.load_state_dict({own.get(name, name): leaf for name, leaf in given.items()})


def state_of(weights: Any) -> dict[str, Tensor]:
    """Name the tensors of weights as a state dictionary does, those of compiled modules alike."""
    if isinstance(weights, nn.Module):
        weights = weights.state_dict()
    elif isinstance(weights, TensorDictBase):
        weights = weights.flatten_keys(".")
    if isinstance(weights, Mapping | TensorDictBase):
        return {_plain(str(name)): leaf for name, leaf in weights.items()}
    msg = (
        f"weights must be a module, a state dictionary or a tensordict of parameters: got "
        f"{type(weights).__name__}."
    )
    raise TypeError(msg)


def has_weights(policy: Any) -> bool:
    """Tell whether there is something to replace."""
    return isinstance(policy, nn.Module | Mapping) and bool(state_of(policy))


def _plain(name: str) -> str:
    """The name of a weight where no part of the policy is compiled."""
    return name.replace("_orig_mod.", "")
