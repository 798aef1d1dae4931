"""Exceptions in the middle of every call that changes a map or a forest, or writes a dump of one.

Run with `nox -s faults`, or as a script: `--seconds 100 --seed 3`, or `--once` for every line. A
call is interrupted at one line of our sources, as Ctrl-C interrupts it. Then every key of a map has
a value that was written for it, and every step of a forest the result that it had; a write or a
load is done, or undone, or, of a load, nothing is left; a folder holds the former dump or the new
one, whole; and the same call made again does what it does without an interrupt.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

sys.path.insert(0, str(Path(__file__).parent))

from inject import options_of, sweep_as_asked
from interrupts import Interrupt, interrupting

from rl_replay import LazyMemmapStorage, LazyTensorStorage
from rl_trees import MCTSForest, QueryModule, TensorDictMap

Kept = TensorDictMap | MCTSForest
Call = Callable[[Kept, Path], Any]
NEWER = 1000  # what a later version of a value adds to it
ROOM = 40


def keys_of(first: int, count: int) -> TensorDict:
    """Keys `[count]` of two entries that follow from a number."""
    number = torch.arange(first, first + count)
    return TensorDict({"state": torch.stack([number, -number], -1), "move": number % 3}, [count])


def values_of(first: int, count: int, newer: int = 0) -> TensorDict:
    """The values of the same keys; a later version differs in every leaf."""
    number = torch.arange(first, first + count) + newer
    return TensorDict(
        {"value": number.double(), "wide": number.unsqueeze(-1).repeat(1, 70)}, [count]
    )


def steps_of(first: int, count: int) -> TensorDict:
    """Steps `[count]` of a chain of observations."""
    number = torch.arange(first, first + count)
    ended = (number % 5 == 4).unsqueeze(-1)
    return TensorDict(
        {
            "observation": torch.stack([number, -number], -1),
            "action": number % 3,
            "next": {
                "observation": torch.stack([number + 1, -number - 1], -1),
                "reward": number.double().unsqueeze(-1),
                "done": ended,
            },
        },
        [count],
    )


def map_in(storage: Callable[[], Any], **options: Any) -> Callable[[], TensorDictMap]:
    """Make maps of 12 keys; those from 20 on are free."""

    def make() -> TensorDictMap:
        query = QueryModule(["state", "move"])
        made = TensorDictMap(query_module=query, storage=storage(), **options)
        made[keys_of(0, 12)] = values_of(0, 12)
        return made

    return make


def forest() -> MCTSForest:
    """A forest of 12 steps."""
    made = MCTSForest(max_size=ROOM)
    made.extend(steps_of(0, 12))
    return made


def contents(kept: Kept) -> tuple[dict[int, Any], list[str]]:
    """What is there by number, and what is wrong with it."""
    found: dict[int, Any] = {}
    lines: list[str] = []
    for number in range(ROOM):
        if isinstance(kept, TensorDictMap):
            key = keys_of(number, 1)
            if bool(kept.contains(key).all()):
                value = kept[key]
                found[number] = float(value["value"])
                if found[number] not in (number, number + NEWER):
                    lines.append(f"key {number} has the value {found[number]}")
                if not bool((value["wide"] == found[number]).all()):
                    lines.append(f"key {number} has a torn value")
            continue
        step = steps_of(number, 1)
        with contextlib.suppress(KeyError):
            result = kept.get_child(step.select("observation", "action"))["next"]
            counts = kept.get_tree(step, compact=False).count
            found[number] = int(counts)
            if any(bool((result[key] != step["next", key]).any()) for key in ("reward", "done")):
                lines.append(f"step {number} has another result")
    if len(found) != len(kept):
        lines.append(f"{len(kept)} are there and {len(found)} are found")
    return found, lines


@dataclass
class Case:
    """A map or a forest, and a folder that holds a dump of another one."""

    kept: Kept
    folder: Path


@dataclass(frozen=True)
class MapScenario:
    """A call of a map or a forest.

    Attributes:
        name: What it is called in the output.
        fill: Makes a filled one.
        change: What is interrupted; it is given the folder too.
        root: Where folders are made.
        may_empty: Whether nothing may be left, as of a load.
        by_row: Whether a part of the rows may be changed, each of them whole.
    """

    name: str
    fill: Callable[[], Kept]
    change: Call
    root: Path
    may_empty: bool = False
    by_row: bool = False

    def make(self) -> Case:
        """A filled one, and a dump of another one."""
        path = Path(tempfile.mkdtemp(dir=self.root)) / "dump"
        other = self.fill()
        write_more(other)
        other.dumps(path)
        return Case(self.fill(), path)

    def call(self, case: Case) -> None:
        """Make the call."""
        self.change(case.kept, case.folder)

    def loaded(self, folder: Path) -> Any:
        """What a folder holds."""
        other = self.fill()
        other.loads(folder)
        return contents(other)


def write_more(kept: Kept, *_: Any) -> None:
    """Write new ones, and others again."""
    if isinstance(kept, TensorDictMap):
        kept[keys_of(8, 12)] = values_of(8, 12, NEWER)
    else:
        kept.extend(steps_of(8, 12))


def write_new(kept: Kept) -> None:
    """Write new ones alone."""
    if isinstance(kept, TensorDictMap):
        kept[keys_of(25, 4)] = values_of(25, 4)
    else:
        kept.extend(steps_of(25, 4))


def trial(scenario: MapScenario, place: int) -> list[str]:
    """Interrupt a call at a line, and say what is wrong afterwards."""
    case, whole = scenario.make(), scenario.make()
    before, former = contents(case.kept)[0], scenario.loaded(case.folder)
    scenario.call(whole)
    after, newer = contents(whole.kept)[0], scenario.loaded(whole.folder)
    with contextlib.suppress(Interrupt), interrupting(place) as seen:
        scenario.call(case)
    try:
        found, lines = contents(case.kept)
        states = [before, after, *([{}] if scenario.may_empty else [])]
        mixed = scenario.by_row and all(
            found.get(n) in (before.get(n), after.get(n)) for n in {*before, *after, *found}
        )
        if found not in states and not mixed:
            lines.append(f"neither as before nor as after: {found}")
        if scenario.loaded(case.folder) not in (former, newer):
            lines.append("the folder holds neither the former dump nor the new one")
        path = case.folder.with_name("after")
        if len(case.kept):
            case.kept.dumps(path)
            if scenario.loaded(path) != (found, []):
                lines.append(f"a dump of it holds {scenario.loaded(path)}")
        again = found == before or not isinstance(case.kept, MCTSForest) or scenario.may_empty
        if again:
            scenario.call(case)
            write_new(case.kept), write_new(whole.kept)
            if contents(case.kept) != contents(whole.kept):
                lines.append(f"the same call again leaves {contents(case.kept)}, with new ones")
        lines += wrong_files(case.folder, whole.folder) if again else []
    except (Exception, AssertionError):
        lines = [f"a check or the next call fails: {traceback.format_exc()[-900:]}"]
    return [f"at {seen[-1]} {line}" for line in lines]


def wrong_files(folder: Path, other: Path) -> list[str]:
    """The files that one dump has, and another one that was not interrupted has not."""
    kinds = [
        sorted(name.name.partition("-")[0] for name in one.iterdir()) for one in (folder, other)
    ]
    return [] if kinds[0] == kinds[1] else [f"the folder holds {kinds[0]}, not {kinds[1]}"]


def scenarios(root: Path) -> list[MapScenario]:
    """Every call that changes maps and forests, and their dumps."""
    combine = lambda new, old=None: new if old is None else new.clone()  # noqa: E731
    kinds: dict[str, Callable[[], Kept]] = {
        "map": map_in(lambda: LazyTensorStorage(ROOM)),
        "mapped map": map_in(lambda: LazyMemmapStorage(ROOM)),
        "map with write_fn": map_in(lambda: LazyTensorStorage(ROOM), write_fn=combine),
        "forest": forest,
    }
    dumps: Call = lambda kept, folder: kept.dumps(folder)  # noqa: E731
    loads: Call = lambda kept, folder: kept.loads(folder)  # noqa: E731
    found = []
    for kind, make in kinds.items():
        found += [
            MapScenario(f"{kind}: write", make, write_more, root, by_row=kind != "forest"),
            MapScenario(f"{kind}: dumps", make, dumps, root),
            MapScenario(f"{kind}: loads", make, loads, root, may_empty=True),
        ]
    return found


if __name__ == "__main__":
    sys.exit(sweep_as_asked(options_of(__doc__), scenarios, trial))
