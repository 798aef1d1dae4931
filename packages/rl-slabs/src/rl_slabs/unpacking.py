"""From packed rows to a finished TensorDict of views, by a function written for the schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

import torch
from tensordict import TensorDict

from rl_slabs.schema import Field
from rl_slabs.tensordict_fast import finished

Unpack = Callable[[torch.Tensor | None, list[torch.Tensor], torch.Size], TensorDict]


def unpacking(fields: Sequence[Field], row_bytes: int, *, contiguous: bool = False) -> Unpack:
    """A function from packed rows and own arrays to one TensorDict of the leaves in `fields`.

    It is compiled from straight source, because a loop over the leaves costs half as much again
    as the tensor operations in it. One split per dtype makes the views. Each leaf has a version
    counter of its own: an in-place write to a reward does not invalidate the observation that a
    network has saved for its backward pass.

    Args:
        fields: The leaves to hand out, packed ones first, by rising offset.
        row_bytes: Bytes of a packed row.
        contiguous: Copy the packed leaves, so that each has memory of its own.

    Returns:
        A function of the packed rows `[*B, row_bytes / 8]`, int64 (None where no packed leaf is
        wanted), of the own arrays `[*B, *shape]` in the order of `fields`, and of B.

    Example:
        >>> from rl_slabs.schema import RowSchema
        >>> schema = RowSchema({"reward": (torch.float32, (1,)), "id": (torch.int64, ())})
        >>> unpack = unpacking(schema.fields, schema.row_bytes)
        >>> unpack(torch.zeros(5, 2, dtype=torch.int64), [], torch.Size([5]))["reward"].shape
        torch.Size([5, 1])
    """
    source = unpacking_source(fields, row_bytes, contiguous=contiguous)
    scope: dict[str, Any] = {"torch": torch, "finished": finished}
    exec(compile(source, "<unpacking of a row schema>", "exec"), scope)
    return cast("Unpack", scope["unpack"])


def unpacking_source(fields: Sequence[Field], row_bytes: int, *, contiguous: bool = False) -> str:
    r"""The source of the function that `unpacking` makes.

    Example:
        >>> from rl_slabs.schema import RowSchema
        >>> schema = RowSchema({"reward": (torch.float32, (1,)), "id": (torch.int64, ())})
        >>> print(unpacking_source(schema.fields, schema.row_bytes))
        def unpack(packed, arrays, batch):
            leaf0 = packed.select(-1, 0).data
            _, leaf1, _ = packed.view(torch.float32).unsafe_split_with_sizes((2, 1, 1), -1)
            return finished({'id': leaf0, 'reward': leaf1}, batch)
    """
    names = {field.path: f"leaf{number}" for number, field in enumerate(fields)}
    packed = [field for field in fields if field.offset is not None]
    lines = ["def unpack(packed, arrays, batch):"]
    for dtype in dict.fromkeys(field.dtype for field in packed):
        lines += _cut([field for field in packed if field.dtype is dtype], row_bytes, names)
    for field in packed:
        name = names[field.path]
        if len(field.shape) > 1:
            lines.append(f"{name} = {name}.view(batch + {field.shape})")
        if contiguous:
            lines.append(f"{name} = {name}.clone(memory_format=torch.contiguous_format)")
    large = [names[field.path] for field in fields if field.offset is None]
    lines += [f"{', '.join(large)}, = arrays"] if large else []
    lines.append(f"return {_literal(names)}")
    return "\n    ".join(lines)


def _cut(fields: Sequence[Field], row_bytes: int, names: dict[tuple[str, ...], str]) -> list[str]:
    # plain views share the version counter of their base; pieces of unsafe_split and .data do not
    dtype = fields[0].dtype
    view = "packed" if dtype is torch.int64 else f"packed.view({dtype})"
    lines = []
    targets: list[str] = []
    sizes: list[int] = []
    for field in fields:
        item = (field.offset or 0) // dtype.itemsize
        if not field.shape:
            lines.append(f"{names[field.path]} = {view}.select(-1, {item}).data")
            continue
        if gap := item - sum(sizes):
            targets.append("_")
            sizes.append(gap)
        targets.append(names[field.path])
        sizes.append(prod(field.shape))
    if targets and (rest := row_bytes // dtype.itemsize - sum(sizes)):
        targets.append("_")
        sizes.append(rest)
    if targets:
        split = f"unsafe_split_with_sizes({tuple(sizes)}, -1)"
        lines.append(f"{', '.join(targets)}{',' * (len(targets) == 1)} = {view}.{split}")
    return lines


def _literal(names: dict[tuple[str, ...], str]) -> str:
    """The expression of a TensorDict, `names` being the expressions of its leaves by path."""
    groups: dict[str, dict[tuple[str, ...], str]] = {}
    for path, name in names.items():
        groups.setdefault(path[0], {})[path[1:]] = name
    entries = [
        f"{first!r}: {below[()] if () in below else _literal(below)}"
        for first, below in groups.items()
    ]
    return f"finished({{{', '.join(entries)}}}, batch)"
