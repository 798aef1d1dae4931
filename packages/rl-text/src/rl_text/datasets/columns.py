"""Arrays in files that are mapped, with what they are in JSON: no pickle is written or read."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MANIFEST = "manifest.json"
FORMAT = 1
NumpyColumns = dict[str, NDArray[Any]]


def write_columns(folder: Path, arrays: Mapping[str, NDArray[Any]], about: dict[str, Any]) -> None:
    """Write arrays beside a folder, and put them in its place once all is on the disk."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        described = {}
        for name, array in arrays.items():
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            described[name] = {"dtype": little.dtype.str, "shape": list(array.shape)}
            _write(draft / f"{name}.bin", np.ascontiguousarray(little).tobytes())
        manifest = {"format": FORMAT, "columns": described, "about": about}
        _write(draft / MANIFEST, json.dumps(manifest).encode())
        try:
            draft.rename(folder)
        except OSError:
            if not (folder / MANIFEST).exists():  # another process was not the quicker one
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def read_columns(folder: Path) -> tuple[NumpyColumns, dict[str, Any]] | None:
    """Map the arrays of a folder; None where there are none of this format."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if manifest.get("format") != FORMAT:
        return None
    arrays: NumpyColumns = {}
    for name, described in manifest["columns"].items():
        dtype, shape = np.dtype(described["dtype"]), tuple(described["shape"])
        file, size = folder / f"{name}.bin", int(np.prod(shape)) * dtype.itemsize
        found = file.stat().st_size if file.exists() else -1
        if dtype.hasobject or found != size:
            msg = f"{file}: expected {size} bytes, found {found}. Remove the folder: it is damaged."
            raise ValueError(msg)
        mapped = np.memmap(file, dtype, "c", shape=shape) if size else np.empty(shape, dtype)
        arrays[name] = mapped
    return arrays, manifest["about"]


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
