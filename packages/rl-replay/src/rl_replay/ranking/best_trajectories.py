"""Keeps the best trajectories of a storage, each whole."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase

from rl_layout import Segments, keys
from rl_replay.ranking.ranks import RankKey, SeenRows, rows_of
from rl_replay.samplers import Sampler
from rl_replay.storages import TensorStorage
from rl_replay.storages.positions import positions_by_age
from rl_tensordict import as_tensor, build, nest, tensors


class Stored(NamedTuple):
    """A trajectory that is kept; they compare by rank, of equal ones the newest first."""

    rank: float
    newness: int  # minus the count of trajectories before it
    length: int


@dataclass
class Finished:
    """A trajectory whose last step has come."""

    rows: TensorDictBase  # [length]
    rank: float
    places: torch.Tensor  # its rows in the batch that brought its end, int64


class BestTrajectories:
    """The trajectories with the highest ranks that fit together, each whole."""

    # A trajectory waits in memory of its own until its last step has come. Then it takes the room
    # of trajectories that are worse, the worst first, if those have enough; else it is dropped.

    def __init__(self, rank: RankKey) -> None:
        self.rank = rank
        self._stored: list[Stored] = []  # in the order of their rows
        self._seen: SeenRows | None = None  # the rows that are ranked; None while they change
        self._open: dict[int, list[TensorDictBase]] = {}  # what came of unfinished trajectories
        self._came = 0
        self._restored: dict[str, Any] | None = None
        self._origins: torch.Tensor | None = None  # former positions that the sampler is told of
        self.is_changed = False  # whether what ranks the rows was changed in place

    def store(
        self, storage: TensorStorage, rows: TensorDictBase, *, elements: bool
    ) -> torch.Tensor:
        """Stores trajectories that end and are among the best; the position of each row, or -1."""
        del elements
        finished = list(self._finished(rows))
        self._bound(storage.max_size)
        former = self._known(storage)
        kept, new = self._chosen(former, finished, storage.max_size)
        index = torch.full((rows.numel(),), -1, device="cpu")
        if not new:
            return index
        self._seen = None  # until the ranks are those of the rows again
        added = _end_to_end([finished[number].rows for number, _ in new])
        if len(kept) < len(former):
            origins = _positions_of(storage, former, kept)
            added = _end_to_end([storage.read(origins), added])
            _require_fitting(storage, added)
            self._origins = origins
            storage.empty()
        storage.extend(added)
        self._stored = [*(former[number] for number in kept), *(one for _, one in new)]
        self._seen = rows_of(storage)
        ends = list(accumulate(one.length for one in self._stored))
        for (number, _), end in zip(new, ends[len(kept) :], strict=True):
            places = finished[number].places
            index[places] = torch.arange(end - len(places), end, device="cpu")
        return index

    def tell(self, storage: TensorStorage, sampler: Sampler) -> None:
        """Tells a sampler where the rows were that the last call laid out anew."""
        origins, self._origins = self._origins, None
        if origins is not None:
            sampler.moved(storage, origins)

    def state_dict(self) -> dict[str, Any]:
        """The ranks of the stored trajectories, and the rows of unfinished ones."""
        parts = [(name, part) for name, found in self._open.items() for part in found]
        return {
            "stored": [list(one) for one in self._stored] if self._seen is not None else [],
            "came": self._came,
            "open": {
                str(number): {"name": name, "leaves": _named(part)}
                for number, (name, part) in enumerate(parts)
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the ranks of rows that are restored next, and unfinished trajectories."""
        self._seen, self._open, self._restored = None, {}, state or None
        for part in (state.get("open") or {}).values():
            self._open.setdefault(part["name"], []).append(_unnamed(part["leaves"]))

    def forget(self) -> None:
        """Takes the stored rows for others, to be ranked anew."""
        self._seen = self._restored = None

    def _known(self, storage: TensorStorage) -> list[Stored]:
        """The stored trajectories, read anew if others wrote, emptied or loaded the rows."""
        found, state = rows_of(storage), self._restored
        if self._seen == found and self._stored and self.is_changed:
            lengths = [one.length for one in self._stored]
            parts = storage.read(positions_by_age(storage.ring)).split(lengths)
            self._stored = [
                one._replace(rank=self._rank_of(part))
                for one, part in zip(self._stored, parts, strict=True)
            ]
        self.is_changed = False
        if self._seen == found:
            return self._stored
        self._restored, self._stored = None, []
        if state and sum(one[2] for one in state["stored"]) == len(storage):
            self._came = int(state["came"])
            self._stored = [Stored(float(r), int(n), int(c)) for r, n, c in state["stored"]]
        elif len(storage):
            rows = storage.read(positions_by_age(storage.ring))
            for part in rows.split(Segments.of(rows).lengths.tolist()):
                self._stored.append(Stored(self._rank_of(part), -self._came, len(part)))
                self._came += 1
        self._seen = found
        return self._stored

    def _finished(self, rows: TensorDictBase) -> Iterator[Finished]:
        """The trajectories that a batch brings to their end; the others wait."""
        batch = rows.exclude(keys.MASK)
        columns = batch.batch_size[-1] if batch.batch_dims > 1 else max(batch.numel(), 1)
        flat = batch.reshape(-1)
        ended, segments = _ends(flat), Segments.of(batch)
        real = rows.get(keys.MASK, None)
        begin = 0
        for length in segments.lengths.tolist():
            places = torch.arange(begin, begin + length, device="cpu")
            part = flat[begin : begin + length]
            begin += length
            if real is not None and not bool(real.reshape(-1)[places].all()):
                continue  # padding
            name = _name_of(part, int(places[0]) // columns)
            waiting = self._open.pop(name, [])
            if waiting and not _continues(waiting[-1], part):
                waiting = []
            if not waiting and not _begins(part):
                continue  # its first steps are not here
            if not bool(ended[places[-1]]):
                self._open[name] = [*waiting, part.clone()]
                continue
            whole = _end_to_end([*waiting, part])
            yield Finished(whole, self._rank_of(whole), places)

    def _bound(self, room: int) -> None:
        """Drops unfinished trajectories, the one that waits longest first, that take more room."""
        while sum(len(part) for found in self._open.values() for part in found) > room:
            self._open.pop(next(iter(self._open)))

    def _rank_of(self, rows: TensorDictBase) -> float:
        return float(self.rank.of(rows, 1)[0])

    def _chosen(
        self, former: list[Stored], finished: list[Finished], room: int
    ) -> tuple[list[int], list[tuple[int, Stored]]]:
        """The stored trajectories that stay, and the finished ones that are stored."""
        # (trajectory, number among the stored ones or -1, number among the finished ones or -1)
        ordered = sorted((one, number, -1) for number, one in enumerate(former))
        used = sum(one.length for one in former)
        for number, new in enumerate(finished):
            one = Stored(new.rank, -self._came, len(new.rows))
            self._came += 1
            freed, worse = room - used, 0
            while freed < one.length and worse < len(ordered) and ordered[worse][0].rank < one.rank:
                freed, worse = freed + ordered[worse][0].length, worse + 1
            if freed < one.length:
                continue
            used = room - freed + one.length
            del ordered[:worse]
            insort(ordered, (one, -1, number))
        kept = sorted(number for _, number, _ in ordered if number >= 0)
        return kept, sorted((number, one) for one, _, number in ordered if number >= 0)


def _ends(flat: TensorDictBase) -> torch.Tensor:
    """Which rows are the last of their trajectory, bool `[n]`."""
    found = [flat.get(key, None) for key in keys.NEXT_DONE_KEYS]
    flags = [flag.reshape(len(flat), -1).any(1) for flag in found if flag is not None]
    if not flags:
        raise KeyError(
            f"whole trajectories are kept, and no flag says where one ends: store {keys.NEXT_DONE}."
        )
    return torch.stack(flags).any(0).cpu()


def _name_of(part: TensorDictBase, column: int) -> int:
    """What the parts of one trajectory have in common: its id, or the column that they come in."""
    ids = part.get(keys.TRAJ_IDS, None)
    return -1 - column if ids is None else int(ids.reshape(-1)[0])


def _continues(before: TensorDictBase, part: TensorDictBase) -> bool:
    """Whether a part is what comes next of a trajectory."""
    steps = [one.get(keys.TRAJ_STEP, None) for one in (before, part)]
    if steps[0] is not None and steps[1] is not None:
        return int(steps[1].reshape(-1)[0]) == int(steps[0].reshape(-1)[-1]) + 1
    first = part.get(keys.IS_INIT, None)
    return first is None or not bool(first.reshape(len(part), -1)[0].any())


def _begins(part: TensorDictBase) -> bool:
    """Whether a part begins with the first step of a trajectory, as far as its markers say."""
    step = part.get(keys.TRAJ_STEP, None)
    if step is not None:
        return not int(step.reshape(-1)[0])
    first = part.get(keys.IS_INIT, None)
    return first is None or bool(first.reshape(len(part), -1)[0].any())


def _positions_of(storage: TensorStorage, stored: list[Stored], chosen: list[int]) -> torch.Tensor:
    """The positions of the rows of some of the stored trajectories, int64 `[n]`."""
    lengths = torch.tensor([one.length for one in stored], device="cpu")
    stays = torch.zeros(len(stored), dtype=torch.bool, device="cpu")
    stays[chosen] = True
    return positions_by_age(storage.ring)[stays.repeat_interleave(lengths)]


def _end_to_end(parts: list[TensorDictBase]) -> TensorDict:
    """Trajectories in one batch, which markers alone divide."""
    found = [tensors(part) for part in parts]
    whole = {key: torch.cat([leaves[key] for leaves in found]) for key in found[0]}
    count = len(next(iter(whole.values())))
    return build(nest(whole), torch.Size([count]), [keys.TIME])


def _require_fitting(storage: TensorStorage, rows: TensorDict) -> None:
    """Raises for rows that the storage would refuse once it is empty."""
    fields = storage.session.rows.layout.schema.fields
    found = tensors(rows)
    for field in fields:
        leaf = found.get(field.path)
        if leaf is None or leaf.dtype != field.dtype or leaf.shape[1:] != torch.Size(field.shape):
            raise ValueError(
                f"{field.key!r} is {field.dtype} {list(field.shape)} in the stored trajectories: "
                "give the others the same leaves."
            )


def _named(part: TensorDictBase) -> dict[str, Any]:
    leaves = tensors(part)
    return {
        str(number): {"path": list(path), "leaf": leaf.clone()}
        for number, (path, leaf) in enumerate(leaves.items())
    }


def _unnamed(leaves: dict[str, Any]) -> TensorDict:
    found = {tuple(one["path"]): as_tensor(one["leaf"]) for one in leaves.values()}
    return build(nest(found), next(iter(found.values())).shape[:1])
