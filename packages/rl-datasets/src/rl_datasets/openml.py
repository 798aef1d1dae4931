"""Tables of OpenML as contextual bandits: one step for each row."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_datasets.arff_file import Table, read_arff
from rl_datasets.download import fetch, fetch_json
from rl_datasets.episodes import CountedFiles, Episode, EpisodeSource
from rl_datasets.flat_columns import only_file
from rl_datasets.paths import PathName
from rl_datasets.replay import BaseDatasetExperienceReplay
from rl_layout.keys import NEXT_TERMINATED, NEXT_TRUNCATED
from rl_replay import SamplerWithoutReplacement
from rl_tensordict.types import Array, KeyPath

ADDRESS = "https://www.openml.org"


class Task(NamedTuple):
    """Which table of OpenML, and what is told apart in it."""

    table: str
    version: int
    target: str | None  # The last column that has categories unless given
    one_hot: bool = False


TASKS = {
    "adult_num": Task("adult", 1, "occupation"),
    "adult_onehot": Task("adult", 1, "occupation", one_hot=True),
    "mushroom_num": Task("mushroom", 1, None),
    "mushroom_onehot": Task("mushroom", 1, None, one_hot=True),
    "covertype": Task("covertype", 3, None),
    "shuttle": Task("shuttle", 1, None),
    "magic": Task("MagicTelescope", 1, None),
}


class OpenMLSource(CountedFiles):
    """Rows of a table, each a step that ends by itself: a context, and the right choice.

    Rows with a value that is missing are left out. Categories become numbers in alphabetical order,
    or with `one_hot` a column each; numbers, and such categories, are scaled to mean 0 and
    deviation 1.

    Args:
        path: The `.arff` file, or a folder with one.
        target: The column of choices; the last one with categories unless given.
        one_hot: Whether categories become columns.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A damaged file, or no such column.
    """

    format = "openml arff"

    def __init__(self, path: PathName, *, target: str | None = None, one_hot: bool = False) -> None:
        self.path = only_file(path, "*.arff")
        super().__init__([self.path])
        self._one_hot = one_hot
        table = read_arff(self.path)
        self._target = target or next(reversed(table.categories), "")
        if self._target not in table.categories:
            raise ValueError(
                f"{self.path} has no column {self._target!r} of categories, but "
                f"{list(table.categories)}."
            )
        self._context, self._choice = self._arrays(table)
        self._steps = len(self._choice)
        self.metadata["choices"] = table.names[self._target]
        self.assumptions.append("a row is a step that ends the episode: there is no next one")

    @property
    def options(self) -> dict[str, Any]:
        """How the columns are taken."""
        return {"target": self._target, "one_hot": self._one_hot}

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """One episode for all rows, each of which ends."""
        if first:
            return
        columns: dict[KeyPath, Array] = {
            ("X",): self._context,
            ("y",): self._choice,
            NEXT_TERMINATED: np.ones(self.steps, bool),
            NEXT_TRUNCATED: np.zeros(self.steps, bool),
        }
        yield Episode({}, columns, str(self.path))

    def _arrays(self, table: Table) -> tuple[Array, Array]:
        """Contexts `[N, features]` and choices `[N]` of the rows that are whole."""
        choice = table.categories[self._target]
        categories = {n: one for n, one in table.categories.items() if n != self._target}
        whole = choice >= 0
        for codes in categories.values():
            whole = whole & (codes >= 0)
        for numbers in table.numbers.values():
            whole = whole & np.isfinite(numbers)
        plain = [column[whole] for column in table.numbers.values()]
        coded = [
            np.eye(len(table.names[name]))[codes[whole]] if self._one_hot else codes[whole, None]
            for name, codes in categories.items()
        ]
        scaled = [_scaled(column[:, None]) for column in plain]
        scaled += coded if self._one_hot else [_scaled(codes) for codes in coded]
        return np.concatenate(scaled, 1), choice[whole]


class OpenMLExperienceReplay(BaseDatasetExperienceReplay):
    """A table of OpenML as a contextual bandit, without scikit-learn or pandas.

    Rows have `"X"`, float64 `[features]`, and `"y"`, int64 `[]`: the right choice. They are drawn
    without replacement unless another sampler is given.

    Args:
        name: One of seven tasks, `"adult_onehot"`.
        batch_size: Rows of a sample, unless `sample` says otherwise.
        root: The folder of all datasets.
        options: As for `BaseDatasetExperienceReplay`.

    Raises:
        ValueError: An unknown name, or a damaged file.
        FileNotFoundError: The dataset is not there.

    Example:
        >>> OpenMLExperienceReplay.available_datasets[:2]
        ['adult_num', 'adult_onehot']
    """

    family = "openml"
    sources_of_copies = "Tables can be had by hand from https://www.openml.org as .arff files."

    def __init__(
        self,
        name: str,
        batch_size: int | None = None,
        root: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        if all(options.get(one) is None for one in ("sampler", "num_slices", "slice_len")):
            options["sampler"] = SamplerWithoutReplacement()
        super().__init__(name, batch_size, root=root, **options)
        self.max_outcome_val = len(self.metadata["choices"]) - 1

    @classmethod
    def known_ids(cls) -> Sequence[str]:
        """The names of the tasks."""
        return list(TASKS)

    def source(self, path: Path) -> EpisodeSource:
        """The rows of a file."""
        task = TASKS[self.dataset_id]
        return OpenMLSource(path, target=task.target, one_hot=task.one_hot)

    def fetch(self, folder: Path) -> None:
        """Download the table."""
        task = TASKS[self.dataset_id]
        fetch_table(task.table, task.version, folder)


def fetch_table(name: str, version: int, folder: Path, *, endpoint: str = ADDRESS) -> Path:
    """Download a table of OpenML by its name and version."""
    api = f"{endpoint}/api/v1/json/data"
    listed = fetch_json(f"{api}/list/data_name/{name}/data_version/{version}")
    number = listed["data"]["dataset"][0]["did"]
    about = fetch_json(f"{api}/{number}")["data_set_description"]
    return fetch(about["url"], folder / f"{name}.arff")


def _scaled(column: Array) -> Array:
    spread = column.std(0)
    scaled: Array = (column - column.mean(0)) / np.where(spread > 0, spread, 1.0)
    return scaled
