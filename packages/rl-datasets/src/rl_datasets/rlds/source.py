"""Episodes of RLDS: one example each, whose steps are flattened feature by feature."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_datasets.encoded_images import decode_image
from rl_datasets.episodes import Episode, EpisodeSource, key_text
from rl_datasets.paths import PathName, path_of
from rl_datasets.rlds.records import Feature, Record, example, read, records, unpacked
from rl_layout.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED
from rl_tensordict.types import Array, KeyPath

_STEPS = "steps"
_INSTRUCTIONS = ("language_instruction", "observation/natural_language_instruction")
_MARKS = ("is_first", "is_last", "is_terminal")


class StepFeature(NamedTuple):
    """What `features.json` says of a leaf of the steps."""

    kind: str  # "tensor", "image" or "text"
    shape: list[int]
    dtype: str
    encoding: str


class RLDSSource(EpisodeSource):
    """Episodes in records of TensorFlow, as OpenX has them; TensorFlow is not needed.

    By the standard the last step of an episode has an observation and nothing else: its action and
    its reward are dummies, so T steps are T - 1 transitions, and every last observation is there.

    Args:
        folder: The folder with `features.json` and `*.tfrecord-*`, or one above the only one.
        split: Of which split, `"train"`.
        last_action: Whether the last step has a real action and reward, as in some conversions;
            what it led to is then not in the files.

    Raises:
        FileNotFoundError: There are no such files.
        ValueError: Damaged files, or columns of different lengths.
    """

    format = "rlds"

    def __init__(
        self, folder: PathName, *, split: str = "train", last_action: bool = False
    ) -> None:
        super().__init__()
        folder = path_of(folder)
        found = sorted(folder.rglob("features.json"))
        if len(found) != 1:
            raise FileNotFoundError(f"expected one features.json in {folder}, found {len(found)}.")
        self.folder, self._split, self._last_action = found[0].parent, split, last_action
        self._files = sorted(self.folder.glob(f"*-{split}.tfrecord*"))
        if not self._files:
            raise FileNotFoundError(f"there is no *-{split}.tfrecord* in {self.folder}.")
        self.leaves = _leaves(found[0])
        self._read: dict[str, KeyPath] = {}
        for name, leaf in self.leaves.items():
            self._choose(name, leaf)
        self._has_tasks = any(name in self.leaves for name in _INSTRUCTIONS)
        self._tasks: dict[str, int] = {}
        self.metadata["tasks"] = {}
        last = "has an action" if last_action else "has an observation only, as the standard says"
        self.assumptions.append(f"the last step of an episode {last}")

    @cached_property
    def steps(self) -> int:
        """How many transitions there are; of each record only the marks are looked at."""
        return sum(self._transitions(steps) for _, steps, _ in self._found())

    @property
    def files(self) -> Sequence[Path]:
        """The records, and their description."""
        return [*self._files, self.folder / "features.json"]

    @property
    def options(self) -> dict[str, Any]:
        """Which split, and what the last step is."""
        return {"split": self._split, "last_action": self._last_action}

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """The episodes, file by file."""
        for number, (record, steps, text) in enumerate(self._found()):
            if number < first:
                continue
            place = f"{record.path}, byte {record.begin}"
            with record.path.open("rb") as file:
                features = example(read(file, record))
            columns = {
                name: self._rows(name, unpacked(features[f"{_STEPS}/{name}"]), steps, place)
                for name in [*self._read, *_MARKS]
                if f"{_STEPS}/{name}" in features
            }
            task = np.full(steps, self._tasks.get(text or "", 0))
            yield self._episode(columns, task, steps, place, number)

    def _episode(
        self, found: Mapping[str, Array], task: Array, steps: int, place: str, number: int
    ) -> Episode:
        count = self._transitions(steps)
        terminal = found.get("is_terminal", np.zeros(steps, bool)).astype(bool)
        # a step is terminal in whose observation the task has ended: what the step before led to
        ended = terminal if self._last_action else terminal[1:]
        is_last = np.arange(count) == count - 1
        seen: dict[KeyPath, Array] = {}
        columns: dict[KeyPath, Array] = {
            NEXT_TERMINATED: ended,
            NEXT_TRUNCATED: is_last & ~ended,
        }
        if self._has_tasks:
            columns["task_index",] = task[:count]
        for name, key in self._read.items():
            if key[0] == "observation":
                seen[key] = found[name][:steps]
            else:
                columns[key] = found[name][:count]
        return Episode(seen, columns, place, number)

    def _choose(self, name: str, leaf: StepFeature) -> None:
        """Which key a leaf gets, if it is read."""
        head, *rest = name.split("/")
        if leaf.kind == "text" or leaf.dtype == "string":
            self.left_out[name] = "text is no number; instructions are in metadata['tasks']"
            return
        if head in _MARKS and not rest:
            return
        known: dict[str, KeyPath] = {"reward": NEXT_REWARD, "discount": ("next", "discount")}
        key = known.get(name, (head, *rest))
        self._read[name] = key
        if leaf.encoding == "jpeg":
            self.lossy[key_text(key)] = "its frames are JPEG"
        if leaf.dtype == "float64":
            self.lossy[key_text(key)] = "records hold float32"

    def _rows(self, name: str, values: Feature, steps: int, place: str) -> Array:
        """A column `[steps, ...]` of the flat values of an episode."""
        leaf = self.leaves[name]
        if isinstance(values, list):
            rows = [_frame(value, leaf) for value in values]
            found = np.stack(rows) if rows else np.empty((0, *leaf.shape), leaf.dtype)
        else:
            size = math.prod(leaf.shape)
            if len(values) != steps * size:
                raise ValueError(
                    f"{place}: column {name!r} has {len(values)} values, expected {steps} steps of "
                    f"{leaf.shape}."
                )
            found = values.reshape(steps, *leaf.shape).astype(leaf.dtype, copy=False)
        if len(found) != steps:
            raise ValueError(f"{place}: column {name!r} has {len(found)} rows for {steps} steps.")
        return found

    def _transitions(self, steps: int) -> int:
        """How many transitions an episode of so many steps has."""
        return steps if self._last_action else max(0, steps - 1)

    def _found(self) -> Iterator[tuple[Record, int, str | None]]:
        """The records, how many steps each has, and its instruction."""
        for path in self._files:
            for record, content in records(path):
                features = example(content)
                mark = features.get(f"{_STEPS}/is_first", features.get(f"{_STEPS}/is_last"))
                if mark is None:
                    raise ValueError(f"{path}, byte {record.begin}: there is no steps/is_first.")
                text = self._text(features)
                if text is not None and text not in self._tasks:
                    self.metadata["tasks"][str(len(self._tasks))] = text
                    self._tasks[text] = len(self._tasks)
                yield record, len(unpacked(mark)), text

    def _text(self, features: Mapping[str, memoryview]) -> str | None:
        """The instruction of an episode: that of its first step."""
        for name in _INSTRUCTIONS:
            packed = features.get(f"{_STEPS}/{name}")
            values = [] if packed is None else unpacked(packed)
            if len(values) and isinstance(values, list):
                return values[0].decode("utf-8", "replace")
        return None


def _frame(value: bytes, leaf: StepFeature) -> Array:
    """A row of bytes: an encoded image, or the bytes of a tensor."""
    if leaf.kind == "image":
        return decode_image(value).reshape(leaf.shape)
    raw = zlib.decompress(value) if leaf.encoding == "zlib" else value
    return np.frombuffer(raw, leaf.dtype).reshape(leaf.shape)


def _leaves(path: Path) -> dict[str, StepFeature]:
    """The leaves of the steps by their names, as `features.json` describes them."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        steps = plain["featuresDict"]["features"][_STEPS]["sequence"]["feature"]
        return dict(_flat(steps, ""))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not describe steps of RLDS: {error!r}.") from error


def _flat(plain: Mapping[str, Any], name: str) -> Iterator[tuple[str, StepFeature]]:
    if "featuresDict" in plain:
        for inner, one in plain["featuresDict"]["features"].items():
            yield from _flat(one, f"{name}/{inner}" if name else inner)
        return
    kind = next(one for one in ("tensor", "image", "text") if one in plain)
    about = plain[kind]
    shape = [int(size) for size in about.get("shape", {}).get("dimensions", [])]
    encoding = about.get("encodingFormat", about.get("encoding", "none"))
    default = "string" if kind == "text" else "uint8"
    yield name, StepFeature(kind, shape, about.get("dtype", default), encoding)
