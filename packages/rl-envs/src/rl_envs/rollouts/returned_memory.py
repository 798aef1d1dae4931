"""The memory of what an environment returns, which later steps must not overwrite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_envs.env.interface import Environment
from rl_envs.env.spec_leaves import has_fixed_form
from rl_layout import keys
from rl_tensordict import find
from rl_tensordict.torch_internals import version_of
from rl_tensordict.types import KeyPath

SAMPLED = 512  # about as many numbers of a leaf are compared


Returned: TypeAlias = tuple[Tensor, KeyPath, int, int]
"""A leaf that an environment returned, its key, the step (-1: a reset), torch's count of writes."""


class ReturnedMemory:
    """Sees where an environment returns one buffer in two steps, and writes to it in between."""

    # Steps that are stacked at the end hold the leaves until then, so equal addresses are one
    # memory. A constant that is returned again and again is none the worse for it: numbers of the
    # first step, or torch's count of writes, tell them apart.

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._held: dict[int, Returned] = {}
        self._first: dict[int, Tensor] = {}  # numbers of the first leaves
        self._again: list[tuple[int, Returned]] = []

    def add_reset(self, root: TensorDictBase) -> None:
        """Take note of a first root."""
        # leaves of varying shapes are in lazy stacks, which are made anew when they are read
        shown = [key for key, spec in self._env.layout.observation if has_fixed_form(spec)]
        self.add_step({key: find(root, key) for key in shown}, -1)

    def add_step(self, after: Mapping[KeyPath, Any], t: int) -> None:
        """Take note of what step t has returned, by key."""
        held = self._held
        for key, leaf in after.items():
            if type(leaf) is not Tensor:  # fake ones have no memory
                continue
            address = leaf.data_ptr()
            before = held.get(address)
            if before is None:
                held[address] = leaf, key, t, _writes(leaf)
                if t <= 0 and address:
                    self._first[address] = _sample(leaf)
            elif before[2] != t and address:
                self._again.append((address, (leaf, key, t, _writes(leaf))))

    def check(self) -> None:
        """Raise for a leaf that a later step has overwritten."""
        for address, (_, key, t, writes) in self._again:
            leaf, first_key, first_t, first_writes = self._held[address]
            if address in self._first:
                is_kept = torch.equal(self._first[address], _sample(leaf))
            else:
                is_kept = writes == first_writes
            if not is_kept:
                one, other = _named(first_key, first_t), _named(key, t)
                msg = (
                    f"{type(self._env).__name__} returned {one} and {other} in one memory, and "
                    "overwrote the first: return a copy of the buffer, as by clone()."
                )
                raise ValueError(msg)


def _named(key: KeyPath, t: int) -> str:
    return f"{keys.as_key(key)!r} of {'a reset' if t < 0 else f'step {t}'}"


def _writes(leaf: Tensor) -> int:
    return 0 if leaf.is_inference() else version_of(leaf)


def _sample(leaf: Tensor) -> Tensor:
    """Some numbers of a leaf, as bytes, so that NaN equals NaN."""
    flat = leaf.detach().reshape(-1)
    few = flat[:: max(1, flat.numel() // SAMPLED)].clone()
    return few.view(torch.uint8) if few.dtype != torch.bool else few
