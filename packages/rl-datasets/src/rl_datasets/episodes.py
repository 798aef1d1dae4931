"""What a file of a dataset gives: episodes, in order, as columns of numpy arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_layout.keys import NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict.arguments import check_type
from rl_tensordict.types import Array, KeyPath

REQUIRED: tuple[KeyPath, ...] = (NEXT_TERMINATED, NEXT_TRUNCATED)


@dataclass(frozen=True)
class Episode:
    """One episode of T steps, or what a file holds of one.

    Args:
        observations: What is seen before each step, by key, `[T + 1, ...]` where the file has what
            was seen after the last step, `[T, ...]` where it has not.
        columns: Everything else by key, `[T, ...]`: root keys, and what a step produced under
            `"next"`. `("next", "terminated")` and `("next", "truncated")` are among them, `[T]`
            each, and `("next", "reward")` where the file has rewards.
        place: Where it is, for errors: the file, and the episode in it.
        number: Which episode it is, as the file counts.

    Raises:
        ValueError: Columns of different lengths, or one that is required is missing.

    Example:
        >>> import numpy as np
        >>> flags = np.zeros(2, bool)
        >>> episode = Episode(
        ...     {("observation",): np.zeros((3, 4))},
        ...     {
        ...         ("next", "reward"): np.ones(2),
        ...         ("next", "terminated"): flags,
        ...         ("next", "truncated"): flags,
        ...     },
        ...     place="a file, episode 0",
        ... )
        >>> len(episode), episode.has_last
        (2, True)
    """

    observations: Mapping[KeyPath, Array]
    columns: Mapping[KeyPath, Array]
    place: str
    number: int = 0
    has_last: bool = field(init=False)  # whether the observation after the last step is there

    def __post_init__(self) -> None:
        for name in ("observations", "columns"):
            check_type(name, getattr(self, name), Mapping, "arrays by their keys")
        for key in REQUIRED:
            if key not in self.columns:
                raise ValueError(f"{self.place}: there is no column {key}.")
        steps = len(self.columns[NEXT_TERMINATED])
        for key, column in self.columns.items():
            if len(column) != steps:
                raise ValueError(
                    f"{self.place}: column {key} has {len(column)} rows, "
                    f"{NEXT_TERMINATED} has {steps}."
                )
        lengths = {len(column) for column in self.observations.values()}
        for key, column in self.observations.items():
            if len(column) not in (steps, steps + 1) or len(lengths) > 1:
                raise ValueError(
                    f"{self.place}: observation {key} has {len(column)} rows for {steps} steps: "
                    f"expected {steps + 1}, or {steps} where the last one is not in the file, the "
                    f"same for all observations; found {sorted(lengths)}."
                )
        object.__setattr__(self, "has_last", lengths == {steps + 1})

    def __len__(self) -> int:
        return len(self.columns[NEXT_TERMINATED])


class EpisodeSource(ABC):
    """Episodes of a dataset in a format, and what that format cannot tell.

    Derive from it and write `steps`, `files` and `episodes` to read another format.

    Attributes:
        format: The name of the format, as reports show it.
        assumptions: What was assumed where the files do not say, a sentence each.
        lossy: Columns that are not what the environment gave, with the reason.
        left_out: Columns that no tensor can hold, with the reason.
        metadata: What else the files say of the dataset; plain values, as JSON has them.
    """

    format: str = "files"

    def __init__(self) -> None:
        self.assumptions: list[str] = []
        self.lossy: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.metadata: dict[str, Any] = {}

    @property
    @abstractmethod
    def steps(self) -> int:
        """How many steps there are at most."""

    @property
    @abstractmethod
    def files(self) -> Sequence[Path]:
        """The files that the episodes are in; others of the same names and sizes are the same."""

    @property
    def options(self) -> Mapping[str, Any]:
        """What else the episodes depend on; plain values."""
        return {}

    @abstractmethod
    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """The episodes in order.

        Args:
            first: How many to pass over.
        """

    def fingerprint(self) -> dict[str, Any]:
        """Names, sizes and times of the files, and the options: what a conversion is of."""
        stats = [(path, path.stat()) for path in self.files]
        return {
            "format": self.format,
            "files": [[path.name, stat.st_size, stat.st_mtime_ns] for path, stat in stats],
            "options": dict(self.options),
        }


class CountedFiles(EpisodeSource):
    """Episodes of some files, counted once; who derives from it sets `_steps`."""

    def __init__(self, files: Sequence[Path]) -> None:
        super().__init__()
        self._files, self._steps = files, 0

    @property
    def steps(self) -> int:
        """How many steps there are at most."""
        return self._steps

    @property
    def files(self) -> Sequence[Path]:
        """The files, by name."""
        return self._files


def key_text(key: KeyPath) -> str:
    """A key as reports write it."""
    return "/".join(key)
