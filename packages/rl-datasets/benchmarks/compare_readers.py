"""Read the same small files with the peer's readers and with ours, and count what differs.

Run with `nox -s "bench(rl-datasets)"`, or this file alone with `--page docs/compare-readers.md`,
which writes its tables into the page. No figure depends on the machine. Every number in the files
is another one, so that each row that a reader returns is found among the transitions that made the
file: by its observation, which is number 100 e + t in step t of episode e.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import session
from readers import files, peer
from readers.files import Row

import rl_datasets as ours
from rl_datasets import BaseDatasetExperienceReplay

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)


@dataclass(frozen=True)
class Format:
    """A format: how its files are written, and read by both sides."""

    name: str
    write: Callable[[Path], list[Row]]
    peer: Callable[[Path, Path], Any]  # of the files and of a place for rows
    own: Callable[[Path, Path], BaseDatasetExperienceReplay]
    seen: str = "observation"


def rows_of(data: Any, seen: str) -> list[Row]:
    """The rows that a reader has, in the numbers of the files."""
    rows = data[:]
    count = len(rows)
    missing = rows.get(("collector", "next_missing"), None)

    def column(*key: str) -> list[int]:
        if key not in rows.keys(True):
            return [0] * count
        leaf = rows[key].reshape(count, -1)[:, 0]
        return [int(value) for value in leaf.nan_to_num(-1)]  # type: ignore[no-any-return]

    found = [
        Row(one, action, reward, following, bool(ended), bool(cut))
        for one, action, reward, following, ended, cut in zip(
            column(seen),
            column("action"),
            column("next", "reward"),
            column("next", seen),
            column("next", "terminated"),
            column("next", "truncated"),
            strict=True,
        )
    ]
    if missing is not None:
        return [
            row._replace(following=None) if gone else row
            for row, gone in zip(found, missing, strict=True)
        ]
    return found


def verdicts(found: list[Row], expected: list[Row]) -> dict[str, int]:
    """How many rows are right, and what is wrong with the others."""
    known = {row.observation: row for row in expected}
    pairs = [(row, known.get(row.observation)) for row in found]
    true = [(row, one) for row, one in pairs if one is not None]
    return {
        "rows": len(found),
        "that are a transition of the file": sum(row == one for row, one in true),
        "that are none": len(pairs) - len(true),
        "action of another step": sum(row.action != one.action for row, one in true),
        "reward of another step": sum(row.reward != one.reward for row, one in true),
        "next observation of another step": sum(
            row.following is not None and row.following != one.following for row, one in true
        ),
        "next observation marked as missing": sum(row.following is None for row, _ in true),
        "flags of another end": sum(row[-2:] != one[-2:] for row, one in true),
    }


def compared(format_: Format, folder: Path) -> str:
    """The table of a format."""
    source = folder / "files"
    source.mkdir(parents=True)
    expected = format_.write(source)
    with silence():
        found = rows_of(format_.peer(source, folder / "peer"), format_.seen)
        right = rows_of(format_.own(source, folder / "own"), format_.seen)
    if right != expected:
        raise AssertionError(f"{format_.name}: read {right}, expected {expected}")
    lines = [f"{format_.name:<42}{'torchrl':>10}{'rl-datasets':>14}"]
    of_right = verdicts(right, expected)
    for name, count in verdicts(found, expected).items():
        if count or of_right[name]:
            lines.append(f"  {name:<40}{count:>10}{of_right[name]:>14}")
    wrong = next((row for row in found if row not in expected), None)
    if wrong is not None:
        true = {row.observation: row for row in expected}.get(wrong.observation)
        lines.append(f"  torchrl has   {wrong}")
        lines.append(f"  the file has  {true or 'no such transition'}")
    return "\n".join(lines)


@contextmanager
def silence() -> Iterator[None]:
    """Nothing of what readers print."""
    with Path(os.devnull).open("w") as nothing, redirect_stderr(nothing), redirect_stdout(nothing):
        yield


def own(kind: type, name: str, within: str = "", **options: Any) -> Callable[[Path, Path], Any]:
    """Our rows."""
    return lambda files, place: kind(
        name, path=files / within, root=place, verbose=False, **options
    )


FORMATS = [
    Format(
        "V-D4RL, npz of 64 pixels",
        files.write_vd4rl_npz,
        peer.read_vd4rl,
        own(ours.VD4RLExperienceReplay, "main/64px", totensor=False),
        "pixels",
    ),
    Format(
        "V-D4RL, HDF5 of 84 pixels",
        files.write_vd4rl_hdf5,
        peer.read_vd4rl,
        own(ours.VD4RLExperienceReplay, "main/84px", totensor=False),
        "pixels",
    ),
    Format(
        "D4RL, without next_observations",
        files.write_d4rl,
        peer.read_d4rl,
        own(ours.D4RLExperienceReplay, "hopper-medium-v2"),
    ),
    Format(
        "RoboSet",
        files.write_roboset,
        peer.read_roboset,
        own(ours.RobosetExperienceReplay, "DAPG(expert)/door_v2d-v1"),
    ),
    Format(
        "Atari DQN, two shards",
        files.write_atari,
        peer.read_atari,
        own(ours.AtariDQNExperienceReplay, "Pong/5"),
    ),
    Format(
        "Gen-DGRL",
        files.write_gen_dgrl,
        peer.read_gen_dgrl,
        own(ours.GenDGRLExperienceReplay, "bigfish-1M_E"),
    ),
    Format(
        "Minari, HDF5",
        files.write_minari,
        peer.read_minari,
        own(ours.MinariExperienceReplay, "demo/steps-v0", "demo/steps-v0"),
    ),
]


def main() -> None:
    """All tables, printed, and written into a page where one is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    with session(parser) as given, tempfile.TemporaryDirectory() as name:
        tables = [compared(one, Path(name, str(number))) for number, one in enumerate(FORMATS)]
        text = "\n\n".join(tables)
        print(f"\n{text}")
        if given.page is not None:
            page = given.page.read_text(encoding="utf-8")
            made = re.sub(r"```text\n.*?```", lambda _: f"```text\n{text}\n```", page, flags=re.S)
            given.page.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
