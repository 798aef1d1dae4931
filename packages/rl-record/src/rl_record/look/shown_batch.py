"""The rows of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import Tensor

from rl_record.look.shown_rows import LeafType, SampledRows
from rl_tensordict import as_tuple


class ShownBatch:
    """The rows of a tensordict.

    Leaves whose rows differ in shape, and what is no dense tensor, are named and not read.
    """

    def __init__(self, batch: TensorDictBase, title: str = "batch") -> None:
        if not isinstance(batch, TensorDictBase):  # a tensorclass
            batch = batch.to_tensordict()
        shape = batch.batch_size
        if not shape or not shape.numel():
            msg = f"expected a batch [N] or [*B, T] with rows, got batch size {list(shape)}."
            raise ValueError(msg)
        found = list(_leaves(batch))
        self._tensors = {leaf.key: value for leaf, value in found if value is not None}
        self.leaves = [leaf for leaf, _ in found]
        self.title = f"{title} {list(shape)}"
        self.sample: SampledRows | None = None
        small = {leaf.key: self._tensors[leaf.key].cpu() for leaf in self.leaves if leaf.is_small}
        self.batch: TensorDictBase = TensorDict({}, shape)
        for key, value in small.items():
            self.batch.set(key, value)
        # names may be refused where the batch is of no kind that has them
        self.batch.names = batch.names

    def read(self, key: tuple[str, ...], rows: Tensor | None = None) -> Tensor:
        """A leaf of some flat rows, or of all."""
        dims = len(self.batch.batch_size)
        leaf = self._tensors[key].detach()
        # several dimensions are indexed before they are flattened, which may copy all rows
        if rows is None:
            return leaf.flatten(0, dims - 1).cpu()
        places = torch.unravel_index(rows.to(leaf.device), self.batch.batch_size)
        return leaf[places].cpu()


def _leaves(batch: TensorDictBase) -> Iterator[tuple[LeafType, Tensor | None]]:
    """Every leaf of a batch, with its tensor if it is a dense one."""
    dims = len(batch.batch_size)
    for key in sorted(map(as_tuple, batch.keys(True, True, is_leaf=_is_leaf))):
        try:
            value: Any = batch.get(key)
        except (KeyError, RuntimeError, ValueError):
            # rows of a lazy stack that differ in shape, or of which some lack the leaf
            yield LeafType(key, None, (), _difference(batch, key)), None
            continue
        if not isinstance(value, Tensor):
            yield LeafType(key, None, (), f"{type(value).__name__}: no numbers"), None
        elif value.is_nested or value.layout is not torch.strided or value.is_quantized:
            yield LeafType(key, None, (), "nested, sparse or quantized: not shown"), None
        else:
            yield LeafType(key, value.dtype, tuple(value.shape[dims:])), value


def _difference(batch: TensorDictBase, key: tuple[str, ...]) -> str:
    """How the rows of a leaf differ."""
    shapes = set()
    members = batch.tensordicts if isinstance(batch, LazyStackedTensorDict) else []
    for member in members:
        value = member.get(key, None)
        shapes.add("missing" if value is None else str(list(getattr(value, "shape", ()))))
    some = ", ".join(sorted(shapes)[:4])
    return f"rows differ in shape: {some}" if some else "rows differ in shape"


def _is_leaf(kind: type) -> bool:
    return not issubclass(kind, TensorDictBase)
