"""Tables in ARFF, as OpenML keeps them."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rl_tensordict.types import Array

_ATTRIBUTE = re.compile(r"@attribute\s+('[^']*'|\"[^\"]*\"|\S+)\s+(.*)", re.IGNORECASE)


class Table(NamedTuple):
    """Columns by name; a missing number is NaN, a missing category -1."""

    numbers: dict[str, Array]  # float64 [N]
    categories: dict[str, Array]  # int64 [N]
    names: dict[str, list[str]]  # of the categories, in alphabetical order


def read_arff(path: Path) -> Table:
    """The columns of a table. Categories are counted in alphabetical order."""
    columns: list[tuple[str, list[str] | None]] = []
    cells: list[list[str]] = []
    with path.open(encoding="utf-8", newline="") as file:
        in_data = False
        for number, line in enumerate(file, 1):
            text = line.strip()
            if not text or text.startswith("%"):
                continue
            if in_data:
                (row,) = csv.reader([text], quotechar="'", skipinitialspace=True, escapechar="\\")
                if len(row) != len(columns):
                    raise ValueError(
                        f"{path}, line {number}: {len(row)} values for {len(columns)} columns."
                    )
                cells.append([value.strip().strip('"') for value in row])
            elif text.lower().startswith("@data"):
                in_data = True
            elif (match := _ATTRIBUTE.match(text)) is not None:
                columns.append((match[1].strip("'\""), _categories(match[2])))
    if not cells:
        raise ValueError(f"{path} ends without data: copy it again.")
    return _table(path, columns, cells)


def _table(
    path: Path, columns: list[tuple[str, list[str] | None]], cells: list[list[str]]
) -> Table:
    found = Table({}, {}, {})
    for place, (name, categories) in enumerate(columns):
        values = [row[place] for row in cells]
        try:
            if categories is None:
                numbers = [float("nan") if value == "?" else float(value) for value in values]
                found.numbers[name] = np.array(numbers)
                continue
            codes = {"?": -1} | {one: code for code, one in enumerate(categories)}
            found.categories[name] = np.array([codes[value] for value in values])
            found.names[name] = categories
        except (ValueError, KeyError) as error:
            raise ValueError(f"{path}, column {name!r}: {error} is none of its values.") from error
    return found


def _categories(kind: str) -> list[str] | None:
    """The categories of an attribute, in alphabetical order; None for a number."""
    if not kind.startswith("{"):
        return None
    (names,) = csv.reader(
        [kind.strip().strip("{}")], quotechar="'", skipinitialspace=True, escapechar="\\"
    )
    return sorted(name.strip().strip('"') for name in names)
