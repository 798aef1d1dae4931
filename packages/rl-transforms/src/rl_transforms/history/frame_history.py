"""The rows that hold the earlier frames of each row, as far as the markers prove them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import RowSource, keys
from rl_tensordict import NestedKey
from rl_transforms.entries import missing
from rl_transforms.history.walk import walk


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


def _without_starts(who: object, batch: TensorDictBase) -> KeyError:
    """Make the KeyError for rows that do not say where trajectories begin."""
    return KeyError(
        f"{missing(who, keys.TRAJ_STEP, batch).args[0]} It, or 'is_init', tells where the first "
        "frame is repeated: store one of them, as 'is_init' True in the first row of each episode."
    )


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
        cls,
        who: object,
        batch: TensorDictBase,
        near: tuple[RowSource, Tensor],
        num_frames: int,
    ) -> FrameHistory:
        """Walk back from the rows of a batch, by their numbers in a source."""
        source, rows = near
        walked = [walk(source, rows, -far) for far in range(num_frames)]
        places = torch.stack([place for place, _ in walked])  # [N, R], the newest first
        proved = torch.stack([proof for _, proof in walked])
        ages = proved.long().cumprod(0).sum(0) - 1  # [R], up to the first gap
        back = torch.arange(num_frames, device=places.device)[:, None]
        # rows before the oldest one are that one again; [N, R] -> [R, N], the oldest first
        places = places.gather(0, torch.minimum(back, ages)).flip(0).T.contiguous()
        steps = batch.get(keys.TRAJ_STEP, None)
        if steps is not None:
            is_first = steps.reshape(-1).to(ages.device) == ages
        elif batch.get(keys.IS_INIT, None) is not None:
            try:  # slices have the flag of the sampler, whatever is stored
                first, there = read_stored(source, places[:, 0], [keys.IS_INIT])
            except KeyError as error:
                raise _without_starts(who, batch) from error
            is_first = first[keys.IS_INIT].reshape(-1).to(there.device) & there
        else:
            raise _without_starts(who, batch)
        if batch.get(keys.MID_EPISODE, None) is not None:  # earlier frames have another id
            first, there = read_stored(source, places[:, 0], [keys.MID_EPISODE])
            begun = ~first[keys.MID_EPISODE].reshape(-1).to(there.device) & there
            is_first = is_first & begun.to(ages.device)
        return cls(places, ages, is_first | (ages == num_frames - 1))

    def ahead(self, near: tuple[RowSource, Tensor], far: Tensor) -> tuple[Tensor, Tensor]:
        """Find the N - 1 predecessors of the rows `far` steps later, and which are proved."""
        num_frames = self.places.shape[1]
        backs = torch.arange(num_frames - 1, 0, -1, device=far.device) - far[:, None]  # [R, N - 1]
        # backs >= 0: at this row or before it, so the history holds the place; < 0: after it
        held = torch.minimum(backs.clamp_min(0), self.ages[:, None])
        places = self.places.gather(1, num_frames - 1 - held)
        is_whole = (backs <= self.ages[:, None]).all(1) | self.is_whole
        for later in backs[backs < 0].unique().neg().tolist():
            there, proved = walk(*near, later)
            is_asked = backs == -later
            places = torch.where(is_asked, there[:, None], places)
            is_whole = is_whole & (proved | ~is_asked.any(1))
        return places, is_whole
