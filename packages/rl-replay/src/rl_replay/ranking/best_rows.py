"""Keeps the best rows of a storage, each for itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_layout import keys
from rl_replay.ranking.ranks import RankKey, SeenRows, rows_of
from rl_replay.ranking.rows_in_place import overwrite, unlink
from rl_replay.ranking.top_rows import TopRows
from rl_replay.samplers import Sampler
from rl_replay.storages import TensorStorage


class BestRows:
    """The rows with the highest ranks; each is a trajectory of its own."""

    # Rows that are replaced get other row ids, and so do all others, since the ids of a ring are
    # consecutive: a sample that comes back later writes to none of them.

    def __init__(self, rank: RankKey) -> None:
        self.rank = rank
        self._rows: TopRows | None = None
        self._seen: SeenRows | None = None  # the rows that are ranked; None while they change
        self._restored: dict[str, Any] | None = None
        self._replaced: torch.Tensor | None = None  # positions of rows that the sampler is told of
        self.is_changed = False  # whether what ranks the rows was changed in place

    def store(
        self, storage: TensorStorage, rows: TensorDictBase, *, elements: bool
    ) -> torch.Tensor:
        """Stores the rows that are among the best; the position of each, or -1."""
        element = _element_of(storage, rows, elements=elements)
        whole = rows.reshape(-1, *element) if rows.batch_dims != 1 + len(element) else rows
        ranks, top = self.rank.of(whole, len(whole)), self._ranked(storage)
        entries = top.plan(ranks)
        added, replaced = (
            torch.from_numpy(some) for some in np.split(entries.kept, [entries.appended])
        )
        self._seen = None  # until the ranks are those of the rows again
        if len(added):
            self._append(storage, whole[added], elements=elements and bool(element))
        if len(replaced):
            places = torch.from_numpy(entries.places[entries.appended :])
            overwrite(storage, places, whole[replaced])
            self._replaced = places
        top.enter(entries, ranks)
        self._seen = rows_of(storage)
        index = np.full(len(whole), -1)
        index[entries.kept] = entries.places
        return torch.from_numpy(index)

    def tell(self, storage: TensorStorage, sampler: Sampler) -> None:
        """Tells a sampler which rows the last call replaced."""
        places, self._replaced = self._replaced, None
        if places is not None:
            sampler.replaced(storage, places)

    def state_dict(self) -> dict[str, Any]:
        """The ranks and ages of the stored rows."""
        return {} if self._rows is None or self._seen is None else self._rows.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the ranks and ages of rows that are restored next."""
        self._rows, self._seen = None, None
        self._restored = state

    def forget(self) -> None:
        """Takes the stored rows for others, to be ranked anew."""
        self._seen = self._restored = None

    def _append(self, storage: TensorStorage, rows: TensorDictBase, *, elements: bool) -> None:
        if rows.batch_dims == 1:
            # by markers alone: rows of a sample of all are no neighbours whose observations differ
            rows = rows.copy()
            rows.names = [keys.TIME]
        span = storage.extend_elements(rows) if elements else storage.extend(rows)
        unlink(storage, span)

    def _ranked(self, storage: TensorStorage) -> TopRows:
        """The ranks of the stored rows, read anew if others wrote, emptied or loaded them."""
        top, state = self._rows, self._restored
        if (
            top is not None
            and self._seen == rows_of(storage)
            and len(top.ranks) == storage.max_size
        ):
            if self.is_changed:
                ranks = self.rank.of(storage.read(torch.arange(top.count, device="cpu")), top.count)
                top.restore(ranks, top.ages[: top.count], top.came)
                self.is_changed = False
            return top
        self._rows = top = TopRows(storage.max_size)
        count = len(storage)
        if state and len(state["ranks"]) == count:
            saved = (torch.as_tensor(state[each], device="cpu") for each in ("ranks", "ages"))
            ranks, ages = (each.numpy() for each in saved)
            top.restore(ranks, ages, int(state["came"]))
        elif count:
            ranks = self.rank.of(storage.read(torch.arange(count, device="cpu")), count)
            top.restore(ranks, np.arange(count), count)
            unlink(storage, None)
        self._restored, self.is_changed = None, False
        return top


def _element_of(storage: TensorStorage, rows: TensorDictBase, *, elements: bool) -> torch.Size:
    """The batch dimensions of one element: of the stored ones, or of the first that is added."""
    structure = storage.structure
    if structure is not None and not storage.session.is_open:
        return structure.element
    return torch.Size(rows.batch_size[1:]) if elements else torch.Size()
