"""Several episodes end to end, as rows that a storage takes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tensordict import TensorDict

from rl_datasets.episodes import Episode, key_text
from rl_datasets.report import ColumnReport, DatasetReport, count_rows
from rl_layout import keys
from rl_tensordict import build, nest
from rl_tensordict.types import Array, Flags, Ints, KeyPath

CHUNK_ROWS = 16_384
CHUNK_BYTES = 1 << 26

_FLAGS: tuple[KeyPath, KeyPath] = (keys.NEXT_TERMINATED, keys.NEXT_TRUNCATED)
EPISODE: KeyPath = ("episode",)


@dataclass(frozen=True)
class Chunk:
    """Rows of whole episodes, all of which have their last observation, or all of which lack it."""

    observations: dict[KeyPath, Array]  # [N, ...]
    nexts: dict[KeyPath, Array]  # [N, ...]; empty where the last ones are not in the files
    columns: dict[KeyPath, Array]  # [N, ...]
    starts: Flags  # First rows of trajectories [N]

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> Chunk:
        """Lays episodes end to end."""
        lengths = np.array([len(episode) for episode in episodes])
        columns: dict[KeyPath, Array] = {key: _joined(episodes, key) for key in episodes[0].columns}
        for key in _FLAGS:
            columns[key] = columns[key].astype(bool, copy=False)
        columns[EPISODE] = np.repeat([episode.number for episode in episodes], lengths)
        done = columns[keys.NEXT_TERMINATED] | columns[keys.NEXT_TRUNCATED]
        columns[keys.NEXT_DONE] = done
        # an end that the file marks inside an episode begins a trajectory as well
        ends = done.copy()
        ends[np.cumsum(lengths) - 1] = True
        seen: dict[KeyPath, Array] = {}
        nexts: dict[KeyPath, Array] = {}
        for key in episodes[0].observations:
            seen[key], nexts[key] = _before_and_after(episodes, key)
        if not episodes[0].has_last:
            nexts = {}
        return cls(seen, nexts, columns, np.concatenate([[True], ends[:-1]]))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, each observation counted once."""
        return sum(a.nbytes for a in (*self.observations.values(), *self.columns.values()))

    def rows(self, first_id: int) -> TensorDict:
        """The rows as tensors, with ids from `first_id` on."""
        ids = np.cumsum(self.starts) - 1 + first_id
        columns: dict[KeyPath, Array] = {**self.columns, **self.observations}
        columns |= {(keys.NEXT, *key): leaf for key, leaf in self.nexts.items()}
        columns |= {(keys.IS_INIT,): self.starts, keys.TRAJ_IDS: ids}
        columns[keys.TRAJ_STEP] = self._steps()
        leaves = {key: _tensor(column) for key, column in columns.items()}
        for key in ((keys.IS_INIT,), keys.NEXT_REWARD, *keys.NEXT_DONE_KEYS):
            if key in leaves and leaves[key].ndim == 1:
                leaves[key] = leaves[key].unsqueeze(-1)
        return build(nest(leaves), torch.Size([len(self)]))

    def take_into(self, report: DatasetReport) -> int:
        """Counts the rows, and returns how many trajectories begin."""
        terminated, truncated = (self.columns[key] for key in _FLAGS)
        rewards = self.columns.get(keys.NEXT_REWARD)
        last = count_rows(report, self.starts, terminated, truncated, rewards)
        if self.observations and not self.nexts:
            report.next_missing += len(last)
        for key, column in {**self.observations, **self.columns}.items():
            name = key_text(key)
            report.columns.setdefault(name, ColumnReport.of(column)).take(column)
        for key, column in self.nexts.items():  # only the last ones are new
            report.columns[key_text(key)].take(column[last])
        return len(last)

    def _steps(self) -> Ints:
        rows = np.arange(len(self))
        steps: Ints = rows - np.maximum.accumulate(np.where(self.starts, rows, 0))
        return steps


def chunks(
    episodes: Iterable[Episode], size: int = CHUNK_BYTES
) -> Generator[tuple[list[Episode], Chunk | None]]:
    """Groups of episodes, and their rows; None if none of them has a step."""
    for group in _groups(episodes, size):
        full = [episode for episode in group if len(episode)]
        yield group, Chunk.of(full) if full else None


def _groups(episodes: Iterable[Episode], size: int) -> Iterator[list[Episode]]:
    """Groups episodes of one kind, and those without a step, until there are many rows or bytes."""
    group: list[Episode] = []
    rows = taken = 0
    has_last: bool | None = None  # of the episodes in the group that have steps
    for episode in episodes:
        if len(episode) and episode.has_last is not has_last:
            if has_last is not None:
                yield group
                group, rows, taken = [], 0, 0
            has_last = episode.has_last
        group.append(episode)
        rows += len(episode)
        taken += sum(a.nbytes for a in episode.observations.values())
        taken += sum(a.nbytes for a in episode.columns.values())
        if rows >= CHUNK_ROWS or taken >= size:
            yield group
            group, rows, taken, has_last = [], 0, 0, None
    if group:
        yield group


def _joined(episodes: Sequence[Episode], key: KeyPath) -> Array:
    return _concatenated([_column(episode, episode.columns, key) for episode in episodes], key)


def _before_and_after(episodes: Sequence[Episode], key: KeyPath) -> tuple[Array, Array]:
    """Observations before and after each step."""
    found = [_column(episode, episode.observations, key) for episode in episodes]
    steps = [len(episode) for episode in episodes]
    before = _concatenated([a[:n] for a, n in zip(found, steps, strict=True)], key)
    if not episodes[0].has_last:
        return before, before
    return before, _concatenated([a[1:] for a in found], key)


def _column(episode: Episode, columns: object, key: KeyPath) -> Array:
    try:
        column: Array = columns[key]  # type: ignore[index]
    except KeyError:
        raise ValueError(
            f"{episode.place}: there is no column {key}, which episodes before have."
        ) from None
    return column


def _tensor(column: Array) -> torch.Tensor:
    # rows of a file that is mapped or unpacked may be read-only, which torch warns of
    own = column if column.flags.writeable else column.copy()
    return torch.from_numpy(np.ascontiguousarray(own))


def _concatenated(arrays: Sequence[Array], key: KeyPath) -> Array:
    first = arrays[0]
    if any(a.dtype != first.dtype or a.shape[1:] != first.shape[1:] for a in arrays):
        forms = sorted({f"{a.dtype} {list(a.shape[1:])}" for a in arrays})
        raise ValueError(f"column {key} has rows of different forms: {forms}.")
    return first if len(arrays) == 1 else np.concatenate(arrays)
