"""Which buffers of an ensemble a batch is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch

from rl_replay.ensembles.members import Members
from rl_replay.samplers import Sampler
from rl_slabs.internals import positive
from rl_tensordict.arguments import check_state


class SamplerEnsemble(Members[Sampler]):
    """Chooses the buffers of a batch; the sampler of each then chooses its rows.

    Args:
        *samplers: One for each buffer.
        p: How likely each is, `[members]`; they need not add up to 1. All alike unless given.
            Buffers without rows are left out, and the others stand for them.
        sample_from_all: Draw from every buffer, as many rows from each.
        num_buffer_sampled: How many buffers a batch comes from, one perhaps several times; as many
            as there are unless given.

    Attributes:
        generator: Source of randomness; torch's global one if None.

    Raises:
        ValueError: No sampler, `p` of another length, negative or all 0, or together
            with `sample_from_all`.
        TypeError: A member that is no sampler.

    Example:
        >>> from rl_replay import RandomSampler
        >>> sampler = SamplerEnsemble(RandomSampler(), RandomSampler(), p=[1.0, 0.0])
        >>> sampler.choose(10, [3, 3])
        ([0, 0], 5)
    """

    _kind = Sampler
    generator: torch.Generator | None = None

    def __init__(
        self,
        *samplers: Sampler,
        p: Sequence[float] | torch.Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
    ) -> None:
        super().__init__(*samplers)
        count = len(samplers)
        if sample_from_all and p is not None:
            raise ValueError(
                "p says how likely each buffer is, and sample_from_all draws from every one: give "
                "one of them."
            )
        if num_buffer_sampled is not None:
            positive(num_buffer_sampled, "num_buffer_sampled")
        if sample_from_all and num_buffer_sampled not in (None, count):
            raise ValueError(
                f"sample_from_all draws from {count} buffers, num_buffer_sampled says "
                f"{num_buffer_sampled}: give one of them."
            )
        self.sample_from_all = sample_from_all
        self.num_buffer_sampled = count if num_buffer_sampled is None else num_buffer_sampled
        self.p = p

    @property
    def p(self) -> torch.Tensor | None:
        """How likely each buffer is, float64 `[members]`, in total 1; None for all alike."""
        return self._p

    @p.setter
    def p(self, given: Sequence[float] | torch.Tensor | None) -> None:
        if given is None:
            self._p: torch.Tensor | None = None
            return
        p = torch.as_tensor(given, dtype=torch.float64, device="cpu")
        if p.shape != (len(self),):
            raise ValueError(f"p has shape {list(p.shape)}, and there are {len(self)} buffers.")
        if not bool(torch.isfinite(p).all()) or bool((p < 0).any()) or not float(p.sum()):
            raise ValueError(f"p must be at least 0 and not all 0, got {p.tolist()}.")
        self._p = p / p.sum()

    def choose(self, batch_size: int, sizes: Sequence[int]) -> tuple[list[int], int]:
        """Choose the buffers of a batch.

        Args:
            batch_size: Rows of the batch.
            sizes: How many rows each buffer has.

        Returns:
            The number of a buffer for each part of the batch, and the rows of a part.

        Raises:
            ValueError: A batch that does not divide into parts, or no rows.
        """
        parts = self.num_buffer_sampled
        if batch_size % parts:
            raise ValueError(
                f"a batch of {batch_size} rows does not divide into {parts} parts of the same "
                f"size: ask for {max(batch_size // parts, 1) * parts}."
            )
        empty = [number for number, size in enumerate(sizes) if not size]
        if self.sample_from_all:
            if empty:
                raise ValueError(
                    f"sample_from_all draws from every buffer, and {empty} have no rows yet: "
                    "extend them first."
                )
            return list(range(len(sizes))), batch_size // parts
        return self._drawn(parts, sizes, empty), batch_size // parts

    def _drawn(self, parts: int, sizes: Sequence[int], empty: list[int]) -> list[int]:
        count = len(sizes)
        if self._p is None and not empty:
            places = torch.randint(count, (parts,), generator=self.generator, device="cpu")
            found: list[int] = places.tolist()
            return found
        if self._p is None:
            p = torch.ones(count, dtype=torch.float64, device="cpu")
        else:
            p = self._p.clone()
        p[empty] = 0
        if not float(p.sum()):
            raise ValueError(
                f"none of the {count} buffers that may be drawn from has rows (sizes "
                f"{list(sizes)}): extend them first."
            )
        drawn: list[int] = torch.multinomial(p, parts, True, generator=self.generator).tolist()
        return drawn

    def chosen(self, places: list[int]) -> Self:
        """An ensemble of some samplers, with their share of `p`."""
        made = type(self)(
            *(list(self)[place] for place in places),
            p=None if self._p is None else self._p[places],
            sample_from_all=self.sample_from_all,
        )
        made.generator = self.generator
        return made

    def state_dict(self) -> dict[str, Any]:
        """How likely the buffers are; the samplers are saved with their buffers."""
        return {"p": self._p, "num_buffer_sampled": self.num_buffer_sampled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draws as another ensemble did.

        Args:
            state: What its `state_dict` returned.

        Raises:
            ValueError: It lacks entries, as the state of a sampler of another kind.
        """
        check_state(type(self).__name__, state, ("p", "num_buffer_sampled"))
        self.p = state["p"]
        self.num_buffer_sampled = int(state["num_buffer_sampled"])
