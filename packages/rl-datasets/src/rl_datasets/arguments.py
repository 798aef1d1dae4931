"""What a caller asks of a dataset, checked before anything is read."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from rl_replay import (
    ReplayBuffer,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)


def require_known(kind: type, parts: Mapping[str, Any]) -> None:
    """Raises for an argument that no buffer takes, before anything is read."""
    known = {*inspect.signature(ReplayBuffer).parameters, "priority_key"}
    for name in parts:
        if name not in known:
            inits = [vars(one)["__init__"] for one in kind.__mro__ if "__init__" in vars(one)]
            own = {argument for init in inits for argument in inspect.signature(init).parameters}
            close = difflib.get_close_matches(name, sorted(known | own))
            hint = f": did you mean {close[0]!r}?" if close else "."
            raise TypeError(f"{kind.__name__} takes no argument {name!r}{hint}")


def sampler_of(
    sampler: Sampler | None,
    num_slices: int | None,
    slice_len: int | None,
    *,
    strict: bool,
    again: bool | None,
) -> Sampler | None:
    """The sampler that is given, or asked for by its slices; None for rows in any order."""
    if num_slices is None and slice_len is None:
        return SamplerWithoutReplacement() if again is False and sampler is None else sampler
    if sampler is not None:
        raise ValueError("num_slices and slice_len make a sampler, and one was given: leave them.")
    if num_slices is not None and slice_len is not None:
        raise ValueError(
            f"num_slices={num_slices} and slice_len={slice_len}: give one of them, the other "
            "follows from the batch size."
        )
    kind = SliceSamplerWithoutReplacement if again is False else SliceSampler
    return kind(num_slices=num_slices, slice_len=slice_len, strict_length=strict)
