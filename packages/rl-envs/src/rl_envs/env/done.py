"""Done flags: their groups, the flags that follow from others, and the rows that they end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_specs import Binary, Composite
from rl_tensordict.types import KeyPath

RESET = "_reset"


def groups_of(names: Iterable[KeyPath]) -> list[KeyPath]:
    """List the prefixes of the groups with done flags, the root's `()` first."""
    prefixes = {key[:-1]: None for key in names if key[-1] in keys.DONE_KEYS}
    return sorted(prefixes, key=lambda prefix: (len(prefix), prefix))


def complete_done_spec(full_done_spec: Composite) -> Composite:
    """Return a spec with `done`, `terminated` and `truncated` in every group."""
    spec = full_done_spec.clone()
    for prefix in groups_of(map(keys.as_tuple, spec.keys(True, True))):
        there = [name for name in keys.DONE_KEYS if spec.get((*prefix, name)) is not None]
        model = spec[*prefix, there[0]]
        for name in keys.DONE_KEYS:
            flag = Binary(shape=model.shape, dtype=torch.bool, device=model.device)
            spec.set((*prefix, name), flag)
    return spec


def derive_flags(
    flags: dict[str, Any], prefix: KeyPath, what: str, *, waits: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Derive done, terminated and truncated of one group from the given flags."""
    # done is terminated | truncated; done alone means that the task ended, truncated alone that
    # it did not
    done, terminated, truncated = (flags.get(name) for name in keys.DONE_KEYS)
    if terminated is None and truncated is None:
        if done is None:
            name = keys.as_key((*prefix, keys.DONE))
            msg = f"{what}: {name!r} is missing. Return 'terminated' and 'truncated'."
            raise KeyError(msg)
        return done, done.clone(), torch.zeros_like(done)
    if terminated is None:
        if done is not None:
            msg = (
                f"{what}: {(*prefix, 'done')} and 'truncated' do not tell whether the task ended. "
                f"Return 'terminated' as well."
            )
            raise ValueError(msg)
        assert truncated is not None
        return truncated.clone(), torch.zeros_like(truncated), truncated
    if not waits and truncated is None and done is not None:
        truncated = done & ~terminated
    truncated = torch.zeros_like(terminated) if truncated is None else truncated
    either = terminated | truncated
    if waits and done is not None:
        if torch.equal(done, either):
            return done, terminated, truncated
        if flags.get(keys.TRUNCATED) is not None or bool((terminated & ~done).any()):
            msg = (
                f"{what}: {(*prefix, 'done')} must be terminated or truncated: got {done.tolist()} "
                f"alongside {terminated.tolist()} and {truncated.tolist()}."
            )
            raise ValueError(msg)
        truncated, either = done & ~terminated, done
    return either, terminated, truncated


def ends(step: TensorDictBase, groups: list[KeyPath]) -> dict[KeyPath, Tensor]:
    """Return the `done` flag of each group whose rows a step may end."""
    # where the root has a flag it alone decides; otherwise each group decides for itself
    deciding = [()] if () in groups else groups
    flags = {prefix: step.get((*prefix, keys.DONE), None) for prefix in deciding}
    return {prefix: flag for prefix, flag in flags.items() if flag is not None}
