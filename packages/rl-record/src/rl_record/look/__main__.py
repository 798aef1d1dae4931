"""Write the page of a folder of rows.

    python -m rl_record.look runs/sac/buffer --out buffer.html

PATH is a folder that `buffer.dumps` wrote, of a dataset that rl-datasets converted, or of a
`LazyMemmapStorage`. Nothing in it is run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rl_record.look.look import look


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m rl_record.look", description="Write a page that shows the rows of a folder."
    )
    parser.add_argument("path", help="a dump, a dataset or a mapped storage")
    parser.add_argument("--out", help="the page; PATH.html by default")
    given = parser.parse_args(arguments)
    out = Path(given.out) if given.out else Path(f"{Path(given.path).resolve()}.html")
    try:
        look(given.path).save(out)
    except (ImportError, OSError, TypeError, ValueError) as error:
        parser.error(str(error))
    sys.stdout.write(f"{out}\n")


def import_less() -> None:
    """Keeps out what takes longer to import here than it saves, or is of no use."""
    # In numpy all loops over a million rows take less time than the import of numba. And what
    # tensordict marks for `torch.compile` as it is imported takes in the whole compiler.
    sys.modules["numba"] = None  # type: ignore[assignment]
    for mark in ("allow_in_graph", "assume_constant_result", "disable"):
        setattr(torch.compiler, mark, _unmarked)


def _unmarked(function: Any = None, **_options: Any) -> Any:
    return _unmarked if function is None else function


if __name__ == "__main__":
    import_less()
    main()
