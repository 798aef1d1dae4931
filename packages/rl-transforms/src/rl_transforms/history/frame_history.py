"""The rows that hold the earlier frames of each row, as far as the markers prove them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import RowSource, Segments, keys
from rl_tensordict import NestedKey
from rl_transforms.entries import missing


class Neighbours(Protocol):
    """Access to the rows before and after those of a batch, in the batch or in a buffer."""

    def at(self, far: int) -> tuple[Tensor, Tensor]:
        """Find the rows `far` steps later (earlier if negative), and which are proved, ``[R]``."""
        ...

    def read(self, places: Tensor, leaf_keys: Sequence[NestedKey]) -> tuple[TensorDictBase, Tensor]:
        """Read leaves of rows ``[*P]``, and which rows are still stored, bool ``[*P]``."""
        ...


class InBatch:
    """Neighbours inside one batch, by their index in the flattened batch."""

    def __init__(self, batch: TensorDictBase) -> None:
        segments = Segments.of(batch)
        self._batch = batch
        self._rows = torch.arange(segments.num_rows, device=segments.starts.device)
        # padding is in no segment: its first row comes after the batch
        firsts = segments.scatter(segments.spread(segments.starts), fill=segments.num_rows)
        lasts = segments.scatter(segments.spread(segments.lasts))
        self._firsts, self._lasts = firsts.reshape(-1), lasts.reshape(-1)

    def at(self, far: int) -> tuple[Tensor, Tensor]:
        """Find the rows some steps later or earlier in the same segments."""
        there = self._rows + far
        return there, (there >= self._firsts) & (there <= self._lasts)

    def read(self, places: Tensor, leaf_keys: Sequence[NestedKey]) -> tuple[TensorDictBase, Tensor]:
        """Read leaves of rows by their place in the flattened batch."""
        leaves = self._batch.select(*leaf_keys).reshape(-1)[places]
        return leaves, torch.ones_like(places, dtype=torch.bool)


class InBuffer:
    """Neighbours in a buffer, by their write numbers."""

    def __init__(self, source: RowSource, numbers: Tensor) -> None:
        self._source = source
        self._numbers = numbers

    def at(self, far: int) -> tuple[Tensor, Tensor]:
        """Find the rows some steps later or earlier in the same trajectories."""
        if far == 0:
            return self._numbers, torch.ones_like(self._numbers, dtype=torch.bool)
        find = self._source.after if far > 0 else self._source.before
        return find(self._numbers, abs(far))

    def read(self, places: Tensor, leaf_keys: Sequence[NestedKey]) -> tuple[TensorDictBase, Tensor]:
        """Read leaves of rows by their number; a KeyError says what must be stored."""
        return read_stored(self._source, places, leaf_keys)


def read_stored(
    source: RowSource, rows: Tensor, leaf_keys: Sequence[NestedKey]
) -> tuple[TensorDictBase, Tensor]:
    """Read leaves of a buffer; the KeyError for a leaf that is not stored says what to do."""
    try:
        return source.read(rows, leaf_keys)
    except KeyError as error:
        msg = (
            "earlier rows are read as the buffer stores them, and it does not store all of "
            f"{list(leaf_keys)}. A transform of the buffer that makes them is too late: put it "
            "into the environment, so that they are stored. "
            f"({error.args[0] if error.args else error})"
        )
        raise KeyError(msg) from error


@dataclass(frozen=True)
class FrameHistory:
    """The last rows of each row's trajectory."""

    # the row and its predecessors, the oldest first, int64 [R, N]; the oldest one that is proved is
    # repeated in front of it
    places: Tensor
    ages: Tensor  # how many predecessors are proved, up to N - 1, int64 [R]
    # bool [R]: the oldest one is N - 1 steps back, or the first step of the trajectory, and that is
    # not in the middle of an episode
    is_whole: Tensor

    @classmethod
    def of(
        cls, who: object, batch: TensorDictBase, near: Neighbours, num_frames: int
    ) -> FrameHistory:
        """Walk back from the rows of a batch."""
        walked = [near.at(-far) for far in range(num_frames)]
        places = torch.stack([place for place, _ in walked])  # [N, R], the newest first
        proved = torch.stack([proof for _, proof in walked])
        proved[0] = True  # padding is in no segment, but is the row that it is
        ages = proved.long().cumprod(0).sum(0) - 1  # [R], up to the first gap
        back = torch.arange(num_frames, device=places.device)[:, None]
        # rows before the oldest one are that one again; [N, R] -> [R, N], the oldest first
        places = places.gather(0, torch.minimum(back, ages)).flip(0).T.contiguous()
        steps = batch.get(keys.TRAJ_STEP, None)
        if steps is not None:
            is_first = steps.reshape(-1).to(ages.device) == ages
        elif batch.get(keys.IS_INIT, None) is not None:
            first, there = near.read(places[:, 0], [keys.IS_INIT])
            is_first = first[keys.IS_INIT].reshape(-1) & there
        else:
            raise missing(who, keys.TRAJ_STEP, batch)
        if batch.get(keys.MID_EPISODE, None) is not None:  # earlier frames have another id
            first, there = near.read(places[:, 0], [keys.MID_EPISODE])
            begun = ~first[keys.MID_EPISODE].reshape(-1) & there
            is_first = is_first & begun.to(ages.device)
        return cls(places, ages, is_first | (ages == num_frames - 1))

    def ahead(self, near: Neighbours, far: Tensor) -> tuple[Tensor, Tensor]:
        """Find the N - 1 predecessors of the rows `far` steps later, and which are proved."""
        num_frames = self.places.shape[1]
        backs = torch.arange(num_frames - 1, 0, -1, device=far.device) - far[:, None]  # [R, N - 1]
        # backs >= 0: at this row or before it, so the history holds the place; < 0: after it
        held = torch.minimum(backs.clamp_min(0), self.ages[:, None])
        places = self.places.gather(1, num_frames - 1 - held)
        is_whole = (backs <= self.ages[:, None]).all(1) | self.is_whole
        for later in backs[backs < 0].unique().neg().tolist():
            there, proved = near.at(later)
            is_asked = backs == -later
            places = torch.where(is_asked, there[:, None], places)
            is_whole = is_whole & (proved | ~is_asked.any(1))
        return places, is_whole
