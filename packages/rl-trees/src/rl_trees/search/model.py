"""Models that a search steps, and their states by node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

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


SearchModel = Callable[[S, S], tuple[Any, ...]]
"""From states `[B, ...]` and actions, int64 `[B]`, to a `SearchStep`."""


def step_of(given: Any) -> SearchStep[Any]:
    """What a model returned as a step."""
    least = len(SearchStep._fields) - len(SearchStep._field_defaults)
    if not isinstance(given, tuple) or not least <= len(given) <= len(SearchStep._fields):
        raise TypeError(
            f"model: expected a SearchStep, or a tuple of {', '.join(SearchStep._fields)}, got "
            f"{shown(given)}."
        )
    return SearchStep(*given)


class NodeStates(ABC, Generic[S]):
    """The states of the nodes of B trees: those of a tree one after the other."""

    def __init__(self, states: S, nodes: int, rows: S) -> None:
        self.shape: tuple[int, ...] = states.shape
        self.dtype: Any = states.dtype
        self.rows: S = rows
        self.first: Ints = np.arange(len(states)) * nodes

    @abstractmethod
    def read(self, nodes: Ints) -> S:
        """The states of a node of each tree."""

    @abstractmethod
    def write(self, nodes: Ints, states: S) -> None:
        """Keeps the states of a node of each tree."""

    @abstractmethod
    def like(self, numbers: Ints) -> S:
        """Numbers as what states are: on their device."""

    def checked(self, states: Any) -> S:
        """States as the first ones were."""
        if (
            type(states) is not type(self.rows)
            or states.shape != self.shape
            or states.dtype != self.dtype
        ):
            raise ValueError(
                f"model: expected states {self.dtype} {list(self.shape)} as at the roots, got "
                f"{shown(states)}."
            )
        checked: S = states
        return checked


class TensorStates(NodeStates[torch.Tensor]):
    """States as a tensor, on any device."""

    def read(self, nodes: Ints) -> torch.Tensor:
        """The states of a node of each tree."""
        return self.rows.index_select(0, self.like(self.first + nodes))

    def write(self, nodes: Ints, states: torch.Tensor) -> None:
        """Keeps the states of a node of each tree."""
        self.rows.index_copy_(0, self.like(self.first + nodes), states)

    def like(self, numbers: Ints) -> torch.Tensor:
        """Numbers as a tensor on the states' device."""
        return torch.from_numpy(numbers).to(self.rows.device)


class ArrayStates(NodeStates[NDArray[Any]]):
    """States as an array of numpy, for models in numpy, whose calls cost less than torch's."""

    def read(self, nodes: Ints) -> NDArray[Any]:
        """The states of a node of each tree."""
        return self.rows.take(self.first + nodes, 0)

    def write(self, nodes: Ints, states: NDArray[Any]) -> None:
        """Keeps the states of a node of each tree."""
        self.rows[self.first + nodes] = states

    def like(self, numbers: Ints) -> NDArray[Any]:
        """Numbers as they are."""
        return numbers


def node_states(states: Any, trees: int, nodes: int) -> NodeStates[Any]:
    """Room for the states of all nodes, with those of the roots in place."""
    known = isinstance(states, torch.Tensor | np.ndarray)
    if not known or not states.ndim or len(states) != trees:
        raise TypeError(
            f"states: expected a tensor or an array of a state for each of {trees} trees, "
            f"[{trees}, ...], got {shown(states)}."
        )
    shape = (trees * nodes, *states.shape[1:])
    kept: NodeStates[Any]
    if isinstance(states, torch.Tensor):
        kept = TensorStates(states, nodes, states.new_empty(shape))
    else:
        kept = ArrayStates(states, nodes, np.empty(shape, states.dtype))
    kept.write(np.zeros(trees, np.int64), states)
    return kept
