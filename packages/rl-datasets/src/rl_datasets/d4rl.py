"""Datasets of D4RL: one HDF5 file of rows end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_datasets.download import fetch
from rl_datasets.episodes import CountedFiles, Episode, EpisodeSource
from rl_datasets.flat_columns import BLOCK_ROWS, bounds_of, only_file, parts, require_length
from rl_datasets.hdf5_file import damaged, is_number, leaves, open_h5
from rl_datasets.paths import PathName
from rl_datasets.replay import BaseDatasetExperienceReplay
from rl_layout.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict.arguments import check_flags, check_type, check_whole
from rl_tensordict.types import Array, Flags, Ints, KeyPath

if TYPE_CHECKING:
    import h5py

ADDRESS = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
_OBSERVATION: KeyPath = ("observation",)
_NEXT_SEEN: KeyPath = ("next", "observation")
_KNOWN: dict[str, KeyPath] = {
    "observations": _OBSERVATION,
    "actions": ("action",),
    "rewards": NEXT_REWARD,
    "terminals": NEXT_TERMINATED,
    "timeouts": NEXT_TRUNCATED,
    "next_observations": _NEXT_SEEN,
}
_SMALL = 64  # values of metadata that are kept


class D4RLSource(CountedFiles):
    """Rows `[N]` of a file, cut where the file says that an episode ends.

    `observations[i + 1]` is the next observation of row i inside an episode. After its last row the
    file has none, unless it has `next_observations`; these are compared with the rows that follow,
    and where they differ an episode ends, whatever the flags say.

    Args:
        path: The file, or a folder with one.
        use_truncated_as_done: Whether time-outs are marked as truncations; otherwise only cut.
        terminate_on_end: False leaves out the last row of an episode that timed out, as
            `d4rl.qlearning_dataset` does.
        horizon: Steps after which an episode times out, for files without `timeouts`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A damaged file, or columns of different lengths.
    """

    format = "d4rl hdf5"

    def __init__(
        self,
        path: PathName,
        *,
        use_truncated_as_done: bool = True,
        terminate_on_end: bool | None = None,
        horizon: int | None = None,
    ) -> None:
        self.path = only_file(path, "*.hdf5")
        super().__init__([self.path])
        self._marks_timeouts = use_truncated_as_done
        self._keeps_last = terminate_on_end is not False
        self._horizon = None if horizon is None else int(horizon)  # JSON knows no numpy
        with open_h5(self.path) as file:
            columns = self._columns(file)
            for name in ("rewards", "terminals"):
                if _KNOWN[name] not in columns:
                    raise ValueError(f"{self.path}: there is no column {name!r}.")
            self._steps = int(columns[NEXT_REWARD].shape[0])
            names = {"/".join(key): column for key, column in columns.items()}
            require_length(names, self._steps, "rewards", self.path)
            self._timeouts, self._bounds = self._episodes(columns)

    @property
    def options(self) -> dict[str, Any]:
        """How time-outs are taken."""
        return {
            "use_truncated_as_done": self._marks_timeouts,
            "terminate_on_end": self._keeps_last,
            "horizon": self._horizon,
        }

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """The episodes in the order of the file."""
        with open_h5(self.path) as file:
            columns = self._columns(file)
            columns.pop(NEXT_TRUNCATED, None)
            try:
                for number, (row, found) in enumerate(parts(columns, self._bounds, first), first):
                    yield self._episode(number, row, found)
            except OSError as error:
                raise damaged(self.path, error) from error

    def _episode(self, number: int, row: int, found: dict[KeyPath, Array]) -> Episode:
        seen = {key: found.pop(key) for key in list(found) if key[0] in ("observation", "info")}
        steps = len(found[NEXT_REWARD])
        found[NEXT_TERMINATED] = found[NEXT_TERMINATED].astype(bool)
        timeouts = self._timeouts[row : row + steps]
        found[NEXT_TRUNCATED] = timeouts & self._marks_timeouts
        last = found.pop(_NEXT_SEEN, None)
        if not self._keeps_last and (timeouts & ~found[NEXT_TERMINATED])[-1]:
            found = {key: column[:-1] for key, column in found.items()}
            # what was seen in the row that is left out is the last observation
        elif last is not None:
            seen[_OBSERVATION] = np.concatenate([seen[_OBSERVATION], last[-1:]])
        infos = {
            key: seen.pop(key)[: len(found[NEXT_REWARD])] for key in list(seen) if key[0] == "info"
        }
        return Episode(seen, {**found, **infos}, f"{self.path}, row {row}", number)

    def _columns(self, file: h5py.File) -> dict[KeyPath, Any]:
        """The columns by our keys; notes what is left out."""
        found: dict[KeyPath, Any] = {}
        for path, dataset in leaves(file):
            name = "/".join(path)
            if path[0] == "metadata":
                if dataset.size is not None and dataset.size <= _SMALL:
                    self.metadata[name] = _plain(dataset[()])
            elif not is_number(dataset.dtype):
                self.left_out[name] = f"{dataset.dtype} is no number"
            elif not dataset.shape:
                self.metadata[name] = _plain(dataset[()])
            elif path[0] == "infos":
                found["info", *path[1:]] = dataset
            else:
                found[(*_KNOWN.get(path[0], (path[0],)), *path[1:])] = dataset
        return found

    def _episodes(self, columns: dict[KeyPath, Any]) -> tuple[Flags, Ints]:
        """Where episodes time out, and where they begin."""
        terminals = columns[NEXT_TERMINATED][:].astype(bool)
        timeouts = np.zeros(self._steps, bool)
        if NEXT_TRUNCATED in columns:
            timeouts = columns[NEXT_TRUNCATED][:].astype(bool)
        elif self._horizon is not None:
            timeouts = _after(terminals, self._horizon)
            self.assumptions.append(f"an episode of {self._horizon} steps timed out: no `timeouts`")
        elif _NEXT_SEEN not in columns:
            self.assumptions.append("only terminals end episodes: no `timeouts`, and no horizon")
        ends = terminals | timeouts
        if _NEXT_SEEN in columns:
            breaks = _breaks(columns[_OBSERVATION], columns[_NEXT_SEEN]) & ~ends
            if breaks.any():
                self.assumptions.append(
                    f"{int(breaks.sum())} rows end an episode without a flag: the next observation "
                    "is not the one of the next row"
                )
            ends |= breaks
        return timeouts, bounds_of(ends)


class D4RLExperienceReplay(BaseDatasetExperienceReplay):
    """A dataset of D4RL, read from its file: neither d4rl nor MuJoCo is needed.

    Rows have `"observation"`, `"action"`, reward and flags under `"next"`, and `"info"` as far as
    the file has it, all in the dtypes of the file. The peer puts zeros where an episode's last next
    observation is not in the file; here the row is marked `("collector", "next_missing")`.

    Args:
        dataset_id: As D4RL names it, `"hopper-medium-v2"`.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        from_env: Not needed any more, and refused: files are read directly.
        direct_download: Likewise; files are always downloaded directly.
        use_truncated_as_done: Mark time-outs as truncations; otherwise they only cut.
        terminate_on_end: False leaves out the last row of an episode that timed out.
        horizon: Steps after which an episode times out, for files without `timeouts`.
        options: As for `BaseDatasetExperienceReplay`.

    Raises:
        ValueError: Arguments that exclude each other, an unknown id, or a damaged file.
        FileNotFoundError: The dataset is not there.

    Example:
        >>> "hopper-medium-v2" in D4RLExperienceReplay.available_datasets
        True
    """

    family = "d4rl"
    sources_of_copies = (
        "The servers of D4RL are often down; the same tasks are in Minari, under ids that begin "
        "with D4RL/, for MinariExperienceReplay."
    )

    def __init__(  # noqa: PLR0913 - what the class of the peer takes
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        from_env: bool = False,
        direct_download: bool | None = None,
        use_truncated_as_done: bool = True,
        terminate_on_end: bool | None = None,
        horizon: int | None = None,
        **options: Any,
    ) -> None:
        check_flags(from_env=from_env, use_truncated_as_done=use_truncated_as_done)
        for name, flag in (
            ("direct_download", direct_download),
            ("terminate_on_end", terminate_on_end),
        ):
            check_type(name, flag, bool | None, "True, False or None")
        if horizon is not None:
            check_whole("horizon", horizon, 1)
        if from_env:
            both = "direct_download and from_env exclude each other: " if direct_download else ""
            raise ValueError(f"{both}from_env needs d4rl; the file is read directly, leave it out.")
        if direct_download is False:
            raise ValueError(
                "files are downloaded directly: direct_download=False is download=False."
            )
        self._taken: dict[str, Any] = {
            "use_truncated_as_done": use_truncated_as_done,
            "terminate_on_end": terminate_on_end,
            "horizon": horizon,
        }
        super().__init__(dataset_id, batch_size, **options)

    @classmethod
    def known_ids(cls) -> Sequence[str]:
        """The ids whose files are known."""
        return sorted(_addresses())

    def source(self, path: Path) -> EpisodeSource:
        """The episodes of a file."""
        return D4RLSource(path, **self._taken)

    def fetch(self, folder: Path) -> None:
        """Download the file."""
        address = _addresses()[self.dataset_id]
        fetch(f"{ADDRESS}/{address}", folder / Path(address).name)


def _after(terminals: Flags, horizon: int) -> Flags:
    """Rows that are the last of so many steps."""
    rows = np.arange(len(terminals))
    found = np.zeros(len(terminals), bool)
    bounds = bounds_of(terminals)
    for begin, end in pairwise(bounds):
        found[begin:end] = (rows[begin:end] - begin) % horizon == horizon - 1
    return found & ~terminals


def _breaks(seen: Any, after: Any) -> Flags:
    """Rows whose next observation is not what the next row saw, bit for bit."""
    found = np.zeros(len(seen), bool)
    for begin in range(0, len(seen) - 1, BLOCK_ROWS):
        end = min(begin + BLOCK_ROWS, len(seen) - 1)
        one, other = after[begin:end], seen[begin + 1 : end + 1]
        bits = (
            np.ascontiguousarray(a).reshape(end - begin, -1).view(np.uint8) for a in (one, other)
        )
        found[begin:end] = np.not_equal(*bits).any(1)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.tolist() if hasattr(value, "tolist") and value.dtype.kind in "biuf" else str(value)


def _addresses() -> dict[str, str]:
    """The file of each dataset, below the address of D4RL."""
    found = {}
    for body in ("halfcheetah", "walker2d", "hopper", "ant"):
        for kind in ("random", "medium", "expert", "medium-replay", "medium-expert"):
            old = {"medium-replay": "mixed"}.get(kind, kind).replace("-", "_")
            short = "walker" if (body, kind) == ("walker2d", "medium-replay") else body
            found[f"{body}-{kind}-v0"] = f"gym_mujoco/{short}_{old}.hdf5"
        for kind in ("random", "medium", "expert", "medium-replay", "full-replay", "medium-expert"):
            for version in ("v1", "v2"):
                file = f"{body}_{kind.replace('-', '_')}-{version}.hdf5"
                found[f"{body}-{kind}-{version}"] = f"gym_mujoco_{version}/{file}"
    for hand in ("pen", "hammer", "relocate", "door"):
        found[f"{hand}-human-v0"] = f"hand_dapg/{hand}-v0_demos_clipped.hdf5"
        found[f"{hand}-cloned-v0"] = f"hand_dapg/{hand}-demos-v0-bc-combined.hdf5"
        found[f"{hand}-expert-v0"] = f"hand_dapg/{hand}-v0_expert_clipped.hdf5"
        for kind in ("human", "cloned", "expert"):
            found[f"{hand}-{kind}-v1"] = f"hand_dapg_v1/{hand}-{kind}-v1.hdf5"
    for size in ("umaze", "medium", "large", "eval-umaze", "eval-medium", "eval-large"):
        found[f"maze2d-{size}-v1"] = f"maze2d/maze2d-{size}-sparse-v1.hdf5"
        found[f"maze2d-{size}-dense-v1"] = f"maze2d/maze2d-{size}-dense-v1.hdf5"
    mazes = {
        "umaze": "u-maze_noisy_multistart_False_multigoal_False",
        "umaze-diverse": "u-maze_noisy_multistart_True_multigoal_True",
        "medium-play": "big-maze_noisy_multistart_True_multigoal_False",
        "medium-diverse": "big-maze_noisy_multistart_True_multigoal_True",
        "large-play": "hardest-maze_noisy_multistart_True_multigoal_False",
        "large-diverse": "hardest-maze_noisy_multistart_True_multigoal_True",
    }
    for name, file in mazes.items():
        found[f"antmaze-{name}-v0"] = f"ant_maze_new/Ant_maze_{file}_sparse.hdf5"
        found[f"antmaze-{name}-v2"] = f"ant_maze_v2/Ant_maze_{file}_sparse_fixed.hdf5"
    kitchen = "kitchen_microwave_kettle"
    found["kitchen-complete-v0"] = f"kitchen/mini_{kitchen}_light_slider-v0.hdf5"
    found["kitchen-partial-v0"] = f"kitchen/{kitchen}_light_slider-v0.hdf5"
    found["kitchen-mixed-v0"] = f"kitchen/{kitchen}_bottomburner_light-v0.hdf5"
    return found
