"""How value networks are called: how often, over what, how much at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from rl_tensordict.arguments import check_choice, check_integer, check_whole

MissingNext = Literal["skip", "root"]


@dataclass(frozen=True)
class ValueCallConfig:
    """Settings of the calls of a value network."""

    # read a sequence of fixed length, and leave out the steps that do not fit
    shifted: bool = False
    shifted_budget: int = 1  # how much longer than time that sequence is
    single_call: bool = True  # values and next values from one call; False makes two
    value_chunk_size: int | None = None  # most elements of one dimension of the batch at a time
    num_chunks: int | None = None  # how many calls to make instead
    value_chunk_dim: int = 0  # the dimension that value_chunk_size counts
    # leave steps out whose next observation is missing, or put their own in its place
    missing_next: MissingNext = "skip"

    def __post_init__(self) -> None:
        for name in ("shifted", "single_call"):
            if not isinstance(getattr(self, name), bool):
                msg = f"{name}: expected True or False, got {getattr(self, name)!r}."
                raise ValueError(msg)
        check_integer("value_chunk_dim", self.value_chunk_dim)
        check_whole("shifted_budget", self.shifted_budget, 1)
        for name in ("value_chunk_size", "num_chunks"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        if self.value_chunk_size is not None and self.num_chunks is not None:
            msg = (
                f"value_chunk_size={self.value_chunk_size} and num_chunks={self.num_chunks} say "
                "the same in two ways: pass one of them."
            )
            raise ValueError(msg)
        check_choice("missing_next", self.missing_next, get_args(MissingNext))

    def chunk_slots(self, shape: torch.Size, slots: int) -> int | None:
        """Say how many slots one call may have."""
        if self.num_chunks is not None:
            return -(-slots // self.num_chunks)
        if self.value_chunk_size is None:
            return None
        if not -len(shape) <= self.value_chunk_dim < len(shape):
            msg = f"value_chunk_dim={self.value_chunk_dim}: the batch is {list(shape)}."
            raise ValueError(msg)
        return max(1, self.value_chunk_size * slots // shape[self.value_chunk_dim])


def one_number(num_chunks: int | None, num_chunk: int | None) -> int | None:
    """The number of chunks, which has two names."""
    if None not in (num_chunks, num_chunk) and num_chunks != num_chunk:
        msg = f"num_chunks={num_chunks} and num_chunk={num_chunk} are one setting: pass one."
        raise ValueError(msg)
    return num_chunk if num_chunks is None else num_chunks
