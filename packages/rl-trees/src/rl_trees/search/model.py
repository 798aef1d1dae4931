"""Models that a search steps, and their states by node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from rl_tensordict.arguments import shown
from rl_tensordict.types import Ints
from rl_trees.search.results import TensorLike

S = TypeVar("S", torch.Tensor, NDArray[Any])


class SearchStep(NamedTuple, Generic[S]):
    """What a model tells of a step in each of B trees."""

    state: S  # [B, ...], after the step
    reward: TensorLike  # [B]
    logits: TensorLike  # [B, A], of the priors after it
    value: TensorLike  # [B], the estimate after it; not read where done
    discount: TensorLike = 1.0  # [B] or a number; -1 where the other player is to move
    done: TensorLike | None = None  # bool [B], nowhere unless given
    legal: TensorLike | None = None  # bool [B, A] after the step, all actions unless given


REQUIRED = 4
"""The first entries of a step, which have no defaults."""

Copies = tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]
"""The states of nodes `[B, N, W]`, those after a step `[B, W]`, and room for those to step next."""

SearchModel = Callable[[S, S], tuple[Any, ...]]
"""From states `[B, ...]` and actions, int64 `[B]`, to a `SearchStep`."""


def step_of(given: Any) -> SearchStep[Any]:
    """What a model returned as a step."""
    if isinstance(given, SearchStep):
        return given
    if not isinstance(given, tuple) or not REQUIRED <= len(given) <= len(SearchStep._fields):
        raise TypeError(
            f"model: expected a SearchStep, or a tuple of {', '.join(SearchStep._fields)}, got "
            f"{shown(given)}."
        )
    return SearchStep(*given)


class NodeStates(ABC, Generic[S]):
    """The states of the nodes of B trees, and the inputs of the next call of the model."""

    first: S  # those of the roots

    @abstractmethod
    def given(self, leaves: Ints) -> tuple[S, S]:
        """States and actions for the model: of the leaves `[2, B, 1]` of the last round."""

    @abstractmethod
    def taken(self, states: S) -> Copies:
        """What the loops copy, bytes: the kept ones, those after the step, and the next ones."""

    @abstractmethod
    def keep(self, children: Ints, states: S) -> None:
        """Keeps the states of new nodes `[B, 1]`, where the loops do not."""

    def checked(self, states: Any) -> S:
        """States as those of the roots are."""
        first = self.first
        if (
            not isinstance(states, torch.Tensor | np.ndarray)
            or states.shape != first.shape
            or states.dtype != first.dtype
        ):
            raise ValueError(
                f"model: expected states {first.dtype} {list(first.shape)} as at the roots, got "
                f"{shown(states)}."
            )
        return cast("S", states)


class HostStates(NodeStates[S]):
    """States that numpy can hold, copied by the loops: tensors on the CPU, and arrays."""

    def __init__(self, states: S, nodes: int) -> None:
        self.first = states
        self.tensors = isinstance(states, torch.Tensor)
        self.next = np.array(_array(states), order="C")
        self.kept = np.empty((len(states), nodes, _bytes(self.next).shape[1]), np.uint8)
        self.kept[:, 0] = _bytes(self.next)

    def given(self, leaves: Ints) -> tuple[S, S]:
        """States and actions for the model."""
        both = (self.next, leaves[1, :, 0])
        return tuple(map(torch.from_numpy, both)) if self.tensors else both  # type: ignore[return-value]

    def taken(self, states: S) -> Copies:
        """Bytes of the kept states, of those after the step, and of the next ones."""
        # new ones each time: the model may have kept the ones before
        self.next = np.empty(self.next.shape, self.next.dtype)
        return self.kept, _bytes(np.ascontiguousarray(_array(states))), _bytes(self.next)

    def keep(self, children: Ints, states: S) -> None:
        """Does nothing: the loops did."""


class DeviceStates(NodeStates[torch.Tensor]):
    """States on another device, or of a dtype that numpy does not have."""

    def __init__(self, states: torch.Tensor, nodes: int) -> None:
        self.first = states
        self.begin: Ints = np.arange(len(states)) * nodes
        self.rows = states.new_empty((len(states) * nodes, *states.shape[1:]))
        self.keep(np.zeros((len(states), 1), np.int64), states)

    def given(self, leaves: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """States and actions for the model."""
        nodes, actions = leaves[:, :, 0]
        return self.rows.index_select(0, self._like(self.begin + nodes)), self._like(actions)

    def taken(self, states: torch.Tensor) -> Copies:
        """Nothing."""
        empty = np.empty((len(states), 0), np.uint8)
        return empty[:, None], empty, empty

    def keep(self, children: Ints, states: torch.Tensor) -> None:
        """Keeps the states of new nodes."""
        self.rows.index_copy_(0, self._like(self.begin + children[:, 0]), states)

    def _like(self, numbers: Ints) -> torch.Tensor:
        """Numbers on the states' device."""
        return torch.from_numpy(numbers).to(self.rows.device)


def node_states(states: Any, trees: int, nodes: int) -> NodeStates[Any]:
    """Room for the states of all nodes, with those of the roots in place."""
    known = isinstance(states, torch.Tensor | np.ndarray)
    objects = isinstance(states, np.ndarray) and states.dtype.hasobject
    if objects or not known or not states.ndim or len(states) != trees:
        raise TypeError(
            f"states: expected a tensor or an array of a state for each of {trees} trees, "
            f"[{trees}, ...], got {shown(states)}."
        )
    if isinstance(states, torch.Tensor) and (states.device.type != "cpu" or _is_foreign(states)):
        return DeviceStates(states, nodes)
    return HostStates(states, nodes)


def _is_foreign(states: torch.Tensor) -> bool:
    """Whether numpy lacks a dtype."""
    try:
        states[:0].numpy(force=True)
    except TypeError:
        return True
    return False


def _array(states: Any) -> NDArray[Any]:
    """States as an array, which shares their memory."""
    array: NDArray[Any] = states.numpy(force=True) if isinstance(states, torch.Tensor) else states
    return array


def _bytes(states: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of contiguous rows `[B, W]`."""
    return states.reshape(len(states), -1).view(np.uint8)
