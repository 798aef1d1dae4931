"""New weights for a policy that is acting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

SHOWN = 8
"""Wrong weights that an error lists."""

Size = tuple[torch.dtype, tuple[int, ...]]
WeightSizes = Mapping[str, Size | None]


class PolicyWeights:
    """The weights of the policy that acts, and of the caller's, which it may be a copy of."""

    def __init__(self, source: Any, acting: Any) -> None:
        self._source = source
        self.acting = acting  # its weights have the names that the caller knows

    def update(self, policy_or_weights: Any, wrapped: Any) -> None:
        """Take new weights, those of the caller's policy where None.

        They may have the names of the policy as it was wrapped to act on a tensordict.
        """
        if policy_or_weights is None and self._source is not self.acting:
            policy_or_weights = self._source
        if policy_or_weights is None:
            return
        names = state_of(policy_or_weights).keys()
        is_wrapped = isinstance(wrapped, nn.Module) and names == state_of(wrapped).keys()
        load_weights(wrapped if is_wrapped else self.acting, policy_or_weights)

    def state_dict(self) -> dict[str, Tensor]:
        """The weights to save; none if the policy has none."""
        return self.acting.state_dict() if isinstance(self.acting, nn.Module) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved weights, of the caller's policy too."""
        if isinstance(self.acting, nn.Module):
            load_weights(self.acting, state)
            if self._source is not self.acting:
                load_weights(self._source, state)


def load_weights(policy: Any, weights: Any) -> None:
    """Copy weights into a policy, in place."""
    if not isinstance(policy, nn.Module):
        msg = f"a {type(policy).__name__} has no weights that could be replaced."
        raise TypeError(msg)
    if weights is policy:
        return
    given = check_weights(state_of(weights), sizes_of(state_of(policy)))
    own = {_plain(name): name for name in policy.state_dict()}
    with torch.no_grad():
        policy.load_state_dict({own.get(name, name): leaf for name, leaf in given.items()})


def sizes_of(state: Mapping[str, Any]) -> WeightSizes:
    """The dtype and shape of each weight; None for what is no tensor, or not initialised."""
    return {name: _size(leaf) for name, leaf in state.items()}


def check_weights(state: dict[str, Tensor], expected: WeightSizes) -> dict[str, Tensor]:
    """The state; raises unless its weights have the expected names and shapes, and can be cast."""
    wrong = [
        f"{name!r}: expected {_size_text(one)}, got {_text_of(state.get(name))}"
        for name, one in expected.items()
        if name not in state or not _fits(state[name], one)
    ]
    if unknown := sorted(state.keys() - expected.keys()):
        wrong.insert(0, f"{unknown} are none of its weights")
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        msg = (
            f"these are not the weights of the policy that acts: {'; '.join(wrong[:SHOWN])}{more}. "
            "Give those of a policy that was made alike."
        )
        raise ValueError(msg)
    return state


def _size(leaf: object) -> Size | None:
    if not isinstance(leaf, Tensor) or is_lazy(leaf):
        return None
    return leaf.dtype, tuple(leaf.shape)


def _fits(leaf: object, expected: Size | None) -> bool:
    found = _size(leaf)
    if expected is None:
        return True
    return found is not None and found[1] == expected[1] and torch.can_cast(found[0], expected[0])


def _text_of(leaf: object) -> str:
    found = _size(leaf)
    if found is None and leaf is not None:
        return f"a {type(leaf).__name__}"
    return "nothing" if found is None else _size_text(found)


def _size_text(size: Size | None) -> str:
    if size is None:
        return "one"
    return f"{str(size[0]).removeprefix('torch.')} {list(size[1])}"


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
