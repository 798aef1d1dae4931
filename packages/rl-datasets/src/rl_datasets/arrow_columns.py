"""Columns of Arrow and Parquet as arrays of numpy, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_tensordict.types import Array


def import_parquet() -> tuple[Any, Any]:
    """Import pyarrow and its parquet module, or say what to install."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise ImportError(
            "this dataset is a table of Parquet and pyarrow is not installed: pip install "
            "'rl-datasets[parquet]'."
        ) from error
    return pa, pq


def open_parquet(path: Path) -> Any:
    """A Parquet file, to be read."""
    pa, pq = import_parquet()
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> ValueError:
    """The error for a file that cannot be read to its end."""
    size = path.stat().st_size
    return ValueError(f"{path} is damaged, or ends too early, after byte {size} ({error}).")


def read_batches(path: Path, columns: Sequence[str], rows: int) -> Iterator[Any]:
    """Record batches of some columns."""
    pa, _ = import_parquet()
    with open_parquet(path) as file:
        try:
            yield from file.iter_batches(batch_size=rows, columns=list(columns))
        except (pa.ArrowInvalid, OSError) as error:
            raise damaged(path, error) from error


def to_array(column: Any, shape: Sequence[int]) -> Array:
    """Rows of numbers, `[N, *shape]`, of a column of numbers or of lists, of any depth."""
    pa, _ = import_parquet()
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    rows, values = len(column), column
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if values.null_count:
        raise ValueError(f"{values.null_count} rows are missing")
    while pa.types.is_list(values.type) or _is_list_of_length(pa, values.type):
        values = values.flatten()
    if len(values) != rows * math.prod(shape):
        raise ValueError(f"{len(values)} values in {rows} rows, expected {list(shape)} in each")
    found: Array = values.to_numpy(zero_copy_only=False)
    return found.reshape(rows, *shape)


def to_column(rows: Array) -> Any:
    """A column of numbers, or of nested lists of fixed lengths."""
    pa, _ = import_parquet()
    column = pa.array(np.ascontiguousarray(rows).reshape(-1))
    for length in reversed(rows.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, length)
    return column


def _is_list_of_length(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind))
