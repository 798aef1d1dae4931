"""The DQN replay dataset of Atari games: shards of gzipped arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from rl_datasets.episodes import CountedFiles, Episode, EpisodeSource
from rl_datasets.flat_columns import BLOCK_ROWS
from rl_datasets.npy_stream import NpyStream
from rl_datasets.paths import PathName, path_of
from rl_datasets.replay import BaseDatasetExperienceReplay
from rl_layout.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict.types import Array, KeyPath

_COLUMNS: dict[str, KeyPath] = {
    "observation": ("observation",),
    "action": ("action",),
    "reward": NEXT_REWARD,
    "terminal": NEXT_TERMINATED,
}
_GAMES = """AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider
Berzerk Bowling Boxing Breakout Carnival Centipede ChopperCommand CrazyClimber DemonAttack
DoubleDunk ElevatorAction Enduro FishingDerby Freeway Frostbite Gopher Gravitar Hero IceHockey
Jamesbond JourneyEscape Kangaroo Krull KungFuMaster MontezumaRevenge MsPacman NameThisGame Phoenix
Pitfall Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest Skiing Solaris
SpaceInvaders StarGunner Tennis TimePilot Tutankham UpNDown Venture VideoPinball WizardOfWor
YarsRevenge Zaxxon"""


class AtariDQNSource(CountedFiles):
    """Frames, actions, rewards and terminals of a run, in shards of a million rows.

    The next frame of a row is that of the next row; shards with consecutive numbers are taken to
    follow each other. After a terminal, and after the last row, there is none.

    Args:
        folder: A folder with `$store$_observation_ckpt.0.gz` and its siblings, or one above.

    Raises:
        FileNotFoundError: There are no shards, or columns of one are missing.
        ValueError: A damaged file, or columns of different lengths.
    """

    format = "atari dqn"

    def __init__(self, folder: PathName) -> None:
        folder = path_of(folder)
        found = {
            int(match[1]): path
            for path in folder.rglob("*store*_terminal_ckpt.*.gz")
            if (match := re.search(r"_ckpt\.(\d+)\.gz$", path.name)) is not None
        }
        if not found:
            raise FileNotFoundError(f"there is no $store$_terminal_ckpt.*.gz in {folder}.")
        self._shards = [_Shard(number, found[number]) for number in sorted(found)]
        super().__init__([path for shard in self._shards for path in shard.paths.values()])
        self._steps = sum(shard.rows for shard in self._shards)
        if len(found) > 1:
            self.assumptions.append(
                "a trajectory continues in the next shard where their numbers do"
            )
        self.assumptions.append("episodes end at terminals only: the files have no time-outs")

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """The episodes of all shards."""
        pieces: list[dict[KeyPath, Array]] = []
        number, begin, former = 0, "", None
        for shard in self._shards:
            if pieces and (former is None or shard.number != former + 1):
                yield from _whole(pieces, begin, number, first)
                number, pieces = number + 1, []
            former = shard.number
            for row, piece, is_end in shard.pieces():
                begin = begin if pieces else f"{shard.paths['terminal']}, row {row}"
                pieces.append(piece)
                if is_end:
                    yield from _whole(pieces, begin, number, first)
                    number, pieces = number + 1, []
        if pieces:
            yield from _whole(pieces, begin, number, first)


class _Shard:
    """The files of one shard."""

    def __init__(self, number: int, terminals: Path) -> None:
        self.number = number
        name = terminals.name
        self.paths = {
            column: terminals.with_name(name.replace("terminal", column)) for column in _COLUMNS
        }
        lengths = {}
        for column, path in self.paths.items():
            if not path.exists():
                raise FileNotFoundError(f"{path} is missing, but {terminals} is there.")
            with NpyStream(path) as stream:
                lengths[column] = stream.shape[0]
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{terminals.parent}, shard {number}: rows of columns are {lengths}.")
        self._count = lengths["terminal"]
        added = self._added(terminals.with_name(name.replace("$store$_terminal", "add_count")))
        self.rows = self._count if added is None else min(self._count, added)
        # the ring was written up to here last: what follows is older
        self._seam = 0 if added is None or added <= self._count else added % self._count

    def _added(self, path: Path) -> int | None:
        """How many rows were ever written; what is beyond them was never written."""
        if not path.exists():
            return None
        with NpyStream(path) as stream:
            return int(stream.read(math.prod(stream.shape[:1])).reshape(-1)[0])

    def pieces(self) -> Iterator[tuple[int, dict[KeyPath, Array], bool]]:
        """Rows that follow each other, with the first one's place and whether an episode ends."""
        with ExitStack() as stack:
            streams = {
                key: stack.enter_context(NpyStream(self.paths[name]))
                for name, key in _COLUMNS.items()
            }
            row = 0
            while row < self.rows:
                count = min(BLOCK_ROWS // 8, self.rows - row)
                block = {key: stream.read(count) for key, stream in streams.items()}
                ends = block[NEXT_TERMINATED].astype(bool)
                if row < self._seam <= row + count:
                    ends[self._seam - 1 - row] = True
                begin = 0
                for end in [*(np.flatnonzero(ends) + 1).tolist(), count]:
                    if end > begin:
                        piece = {key: rows[begin:end] for key, rows in block.items()}
                        yield row + begin, piece, bool(ends[end - 1])
                    begin = end
                row += count


def _whole(
    pieces: list[dict[KeyPath, Array]], place: str, number: int, first: int
) -> Iterator[Episode]:
    """An episode of its pieces, unless it comes before the `first` that is wanted."""
    if number < first:
        return
    joined = {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}
    seen: dict[KeyPath, Array] = {("observation",): joined.pop(("observation",))}
    joined[NEXT_TERMINATED] = joined[NEXT_TERMINATED].astype(bool)
    joined[NEXT_TRUNCATED] = np.zeros(len(joined[NEXT_REWARD]), bool)
    yield Episode(seen, joined, place, number)


class AtariDQNExperienceReplay(BaseDatasetExperienceReplay):
    """A run of the DQN replay dataset: what an agent saw of an Atari game while it learned.

    Rows have uint8 `"observation" [84, 84]`, `"action"`, reward and flags; frames are not stacked
    (`CatFrames` of rl-transforms does). Each frame is stored once.

    Args:
        dataset_id: The game and the run, `"Pong/5"`.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        strict_len: As `strict_length`.
        num_procs: No effect: nothing is unpacked while sampling.
        mp_start_method: No effect.
        options: As for `BaseDatasetExperienceReplay`; `path=` for the files, whose bucket is gone.

    Example:
        >>> "Pong/5" in AtariDQNExperienceReplay.available_datasets
        True
    """

    family = "atari_dqn"
    sources_of_copies = (
        "The public bucket of the dataset is gone. Copies of single runs circulate, and RL "
        "Unplugged has the transitions in another order (rlu_atari of TensorFlow Datasets)."
    )

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        strict_len: bool = True,
        num_procs: int = 0,
        mp_start_method: str = "fork",
        **options: Any,
    ) -> None:
        del num_procs, mp_start_method
        super().__init__(dataset_id, batch_size, **{"strict_length": strict_len, **options})

    @classmethod
    def known_ids(cls) -> Sequence[str]:
        """Five runs of sixty games."""
        return [f"{game}/{run}" for game in _GAMES.split() for run in range(1, 6)]

    def source(self, path: Path) -> EpisodeSource:
        """The episodes of a folder of shards."""
        return AtariDQNSource(path)
