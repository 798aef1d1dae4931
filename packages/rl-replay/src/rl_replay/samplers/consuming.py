"""Rows that are drawn a number of times and then no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from rl_replay.edges import edge
from rl_replay.samplers.arrivals import Arrivals
from rl_replay.samplers.rows import RandomSampler
from rl_replay.samplers.sampler import Sampler
from rl_tensordict import CPU, UnfitValue
from rl_tensordict.arguments import check_state, check_whole
from rl_tensordict.types import Ints

if TYPE_CHECKING:
    from rl_replay.storages.ring import Ring
    from rl_replay.storages.storage import Storage

NOTHING = np.empty(0, np.int64)


class ConsumingSampler(Sampler):
    """Draws each row a number of times at most: uniformly among the rows that are left.

    A batch holds no row twice, and is shorter if fewer are left. Rows stay in the buffer, and
    can be indexed, until they are overwritten. Iterating over the buffer ends when none is left.
    Counts are those of this process, and of one buffer: in another one they begin anew.

    Args:
        max_sample_count: How often each row is drawn.

    Attributes:
        ran_out: Whether no row was left after the last batch.

    Raises:
        ValueError: A count below 1.

    Example:
        >>> from rl_replay import LazyTensorStorage, ReplayBuffer
        >>> sampler = ConsumingSampler()
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=sampler, batch_size=3)
        >>> _ = buffer.extend(torch.arange(5))
        >>> [len(batch) for batch in buffer]
        [3, 2]
    """

    proven: ClassVar[bool] = True

    def __init__(self, max_sample_count: int = 1) -> None:
        check_whole("max_sample_count", max_sample_count, 1)
        self.max_sample_count = max_sample_count
        self.reset()

    def reset(self) -> None:
        """Forget which rows were drawn."""
        self.ran_out = False
        self._arrivals = Arrivals()
        self._pool = _Pool()

    @edge
    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Draw rows that are left.

        Raises:
            ValueError: None is left; it is a `RuntimeError` too.
        """
        self.catch_up(storage)
        pool, found, counts = self._pool, [NOTHING], [NOTHING]
        if len(pool) > 2 * storage.max_size:  # most were overwritten
            pool.add(*pool.take(np.arange(len(pool)), storage.ring))
        missing = batch_size
        while missing and len(pool):
            rows, drawn = pool.take(_distinct(len(pool), missing, self.generator), storage.ring)
            found.append(rows)
            counts.append(drawn + 1)
            missing -= len(rows)
        rows, drawn = np.concatenate(found), np.concatenate(counts)
        if not len(rows):
            raise UnfitValue(
                f"no row is left of {len(storage)} that are stored, each of which is drawn "
                f"{self.max_sample_count} times: write more, or sample less."
            )
        again = drawn < self.max_sample_count
        pool.add(rows[again], drawn[again])
        pool.drop_last(batch_size, storage.ring)
        self.ran_out = not len(pool)
        return torch.from_numpy(rows), {}

    def catch_up(self, storage: Storage) -> None:
        """Takes in the rows that came, and forgets those of another buffer."""
        if self._arrivals.begin_anew(storage):
            self._pool, self.ran_out = _Pool(), False
        for _, numbers in self._arrivals.take(storage.ring.window()):
            self._pool.add(numbers, np.zeros_like(numbers))

    def progress(self) -> dict[str, Any]:
        """The state, and whose rows they are."""
        return {**self.state_dict(), "rows_of": self._arrivals.rows_of}

    def state_dict(self) -> dict[str, Any]:
        """The rows that are left, and how often each was drawn."""
        pool = self._pool
        kept = {"rows": pool.rows, "drawn": pool.drawn}
        left = {name: torch.tensor(each, device=CPU) for name, each in kept.items()}
        return {**left, "next": self._arrivals.state(), "ran_out": self.ran_out}

    @edge
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the rows that another sampler has left.

        Args:
            state: What its `state_dict` returned.

        Raises:
            ValueError: It lacks entries, as the state of a sampler of another kind.
        """
        check_state(type(self).__name__, state, ("rows", "drawn", "next", "ran_out"))
        self._pool = _Pool()
        kept = (torch.as_tensor(state[name], device=CPU) for name in ("rows", "drawn"))
        self._pool.add(*(each.numpy() for each in kept))
        self._arrivals = Arrivals(state["next"], state.get("rows_of"))
        self.ran_out = bool(state["ran_out"])

    def stats(self) -> dict[str, float]:
        """How many rows are left, overwritten ones among them."""
        return {"left": len(self._pool)}

    def __repr__(self) -> str:
        return f"ConsumingSampler(max_sample_count={self.max_sample_count})"


def consuming(count: int | None, sampler: Sampler | None, prefetch: int | None) -> Sampler | None:
    """The sampler of a buffer's `consume_after_n_samples`; raise where it goes with no other."""
    if count is None:
        return sampler
    if sampler is not None and type(sampler) is not RandomSampler:
        raise ValueError(
            f"consume_after_n_samples={count} is a sampler of its own, and {sampler} was given "
            "too: leave one of them out, or pass sampler=ConsumingSampler(...)."
        )
    if prefetch:
        raise ValueError(
            f"consume_after_n_samples={count} with prefetch={prefetch}: prefetched batches would "
            "count as drawn. Leave prefetch out."
        )
    return ConsumingSampler(count)


class _Pool:
    """Rows in no order, and how often each was drawn; the cost of a draw depends on its size."""

    def __init__(self) -> None:
        self._held = np.zeros((2, 0), np.int64)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def rows(self) -> Ints:
        """Their ids."""
        return self._held[0, : self._size]

    @property
    def drawn(self) -> Ints:
        """How often each was drawn."""
        return self._held[1, : self._size]

    def add(self, rows: Ints, drawn: Ints) -> None:
        """Add rows."""
        end = self._size + len(rows)
        if end > self._held.shape[1]:
            grown = np.zeros((2, max(end, 2 * self._size)), np.int64)
            grown[:, : self._size] = self._held[:, : self._size]
            self._held = grown
        self._held[:, self._size : end] = rows, drawn
        self._size = end

    def take(self, places: Ints, ring: Ring) -> tuple[Ints, Ints]:
        """Remove the entries at distinct indices; return the rows that are still stored."""
        rows, drawn = self._held[:, places]
        kept = self._size - len(places)
        is_gone = np.zeros(len(places), bool)
        is_gone[places[places >= kept] - kept] = True
        # the last kept rows move to the places of the removed ones
        self._held[:, places[places < kept]] = self._held[:, kept + np.flatnonzero(~is_gone)]
        self._size = kept
        live = ring.is_live(torch.from_numpy(rows)).numpy()
        return rows[live], drawn[live]

    def drop_last(self, few: int, ring: Ring) -> None:
        """Remove overwritten rows from the end, until one of the last few is still stored."""
        rows = NOTHING
        while len(self) and not len(rows):
            rows, drawn = self.take(np.arange(max(len(self) - few, 0), len(self)), ring)
            self.add(rows, drawn)


def _distinct(total: int, count: int, generator: torch.Generator | None) -> Ints:
    """Draw distinct numbers below a total, all if they are fewer, in time of the count."""
    if 4 * count >= total:
        order: Ints = torch.randperm(total, generator=generator, device=CPU)[:count].numpy()
        return order
    found = torch.randint(total, (2 * count,), generator=generator, device=CPU).numpy()
    _, first = np.unique(found, return_index=True)
    distinct: Ints = found[np.sort(first)][:count]
    if len(distinct) < count:  # fewer than half of them differ, which is rare
        return _distinct(total, count, generator)
    return distinct
