"""Networks read over a sequence of slots, whole or in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import Segments, keys, set_recurrent_mode
from rl_layout.internals import flatten
from rl_layout.keys import next_key
from rl_tensordict import NestedKey, as_key, as_tuple, build, find, nest, require
from rl_value.direct_call import Key, noted, output_from
from rl_value.estimators.bootstrapping.sequence_layout import UnrollLayout


@dataclass(frozen=True)
class _Roles:
    """Roles of the entries of a network."""

    states: set[Key]
    observed: tuple[NestedKey, ...]
    observed_next: tuple[Key, ...]
    is_row_wise: bool


def _roles_of(network: TensorDictModuleBase) -> _Roles:
    return _roles(tuple(network.in_keys), tuple(network.out_keys))


@lru_cache(maxsize=128)
def _roles(in_keys: tuple[NestedKey, ...], out_keys: tuple[NestedKey, ...]) -> _Roles:
    written, read = set(map(as_tuple, out_keys)), list(map(as_tuple, in_keys))
    states = {key for key in read if next_key(key) in written}
    observed = tuple(
        key
        for key, parts in zip(in_keys, read, strict=True)
        if parts not in states and parts[-1] != keys.IS_INIT
    )
    marked = any(keys.IS_INIT in key or key[0] == keys.COLLECTOR for key in read)
    after = tuple(map(next_key, observed))
    return _Roles(states, observed, after, not (marked or states))


def state_keys(network: TensorDictModuleBase) -> set[tuple[str, ...]]:
    """Find the recurrent states of a network: what it reads, and writes for the next step."""
    return _roles_of(network).states


def observation_keys(network: TensorDictModuleBase) -> list[NestedKey]:
    """List what a network observes: all that it reads but markers and its own states."""
    return list(_roles_of(network).observed)


def is_row_wise(network: TensorDictModuleBase) -> bool:
    """Tell whether a network looks at single rows: it reads no marker, and keeps no state."""
    return _roles_of(network).is_row_wise


def lacks_next(network: TensorDictModuleBase, batch: TensorDictBase) -> bool:
    """Tell whether a batch came without next observations, as compact collection makes it."""
    return all_absent(_roles_of(network).observed_next, batch)


def all_absent(following: Sequence[Key], batch: TensorDictBase) -> bool:
    """Tell whether a batch has none of these next observations."""
    absent = [key for key in following if find(batch, key) is None]
    if absent and len(absent) < len(following):
        msg = (
            f"{absent[0]!r} is missing, while other next observations are there. "
            "Store all that the network reads under 'next', or none."
        )
        raise KeyError(msg)
    return bool(absent)


class SlotReader:
    """Reads the inputs of a network from a batch, slot by slot."""

    # stand_in: bool [M], rows whose next observation is replaced by their own; None where every
    # one is real
    def __init__(
        self,
        network: TensorDictModuleBase,
        batch: TensorDictBase,
        segments: Segments,
        slots: UnrollLayout,
        stand_in: Tensor | None,
    ) -> None:
        self.network = network
        self.slots = slots
        self.rows = segments.rows if segments.has_gaps else None
        # bool [K], slots that hold a next observation that is there to be read
        self.real_next = (
            slots.is_next if stand_in is None else (slots.is_next & ~stand_in[slots.source])
        )
        self.batch_shape = segments.batch_shape
        # key, leaf [*B, T, ...] at the root, and the same under "next"
        self.leaves: list[tuple[NestedKey, Tensor, Tensor | None]] = []
        for key in network.in_keys:
            if as_tuple(key)[-1] != keys.IS_INIT:
                root, after = batch.get(key, None), batch.get(next_key(key), None)
                if root is None:
                    root = _require_input(network, batch, key)
                _check_alike(key, root, after)
                self.leaves.append((key, root, after))

    def read(self, start: int, stop: int) -> TensorDict:
        """Read a run of slots, as a flat batch whose segments start where `is_init` is set."""
        source = self.slots.source[start:stop]
        rows = source if self.rows is None else self.rows[source]
        places = self.real_next[start:stop].nonzero()[:, 0]
        following = rows[places]
        first = self.slots.is_start[start:stop, None]
        made: dict[tuple[str, ...], Tensor] = {(keys.IS_INIT,): first}
        for key in self.network.in_keys:
            if as_tuple(key)[-1] == keys.IS_INIT:
                made[as_tuple(key)] = first
        for key, root, ahead in self.leaves:
            leaf = _taken(root, self.batch_shape, rows)
            if ahead is not None:
                real = _taken(ahead, self.batch_shape, following)
                leaf.index_copy_(0, places, real.to(leaf.dtype))
            made[as_tuple(key)] = leaf
        return build(nest(made), torch.Size([stop - start]))

    def blank_row(self) -> TensorDict:
        """One row of zeros, for networks that cannot read none."""
        none: TensorDict = self.read(0, 0)
        return none.new_zeros(1)


def _require_input(network: TensorDictModuleBase, batch: TensorDictBase, key: NestedKey) -> Any:
    """An input that must be there; where a state is missing, say who would have written it."""
    try:
        return require(batch, key)
    except KeyError as error:
        if as_tuple(key) not in state_keys(network):
            raise
        msg = (
            f"{error.args[0]} It is a recurrent state of this network, which must play along when "
            "steps are collected: give TensorDictSequential(actor, critic) as the policy, whose "
            f"states the environment then shows from each reset on; or put {key!r} into the batch."
        )
        raise KeyError(msg) from None


def _check_alike(key: NestedKey, root: Tensor, after: Tensor | None) -> None:
    given: object = root
    if not isinstance(given, Tensor):
        name = as_key(as_tuple(key))
        got = type(given).__name__
        msg = f"{name!r}: expected a tensor, got {got}. Name its leaves in in_keys."
        raise TypeError(msg)
    if after is not None and after.shape != root.shape:
        msg = (
            f"{next_key(key)!r}: expected the shape at the root, {list(root.shape)}, "
            f"got {list(after.shape)}. Store both as the network reads them."
        )
        raise ValueError(msg)


def _taken(leaf: Tensor, batch_shape: torch.Size, rows: Tensor) -> Tensor:
    """Rows of a leaf ``[*B, T, ...]`` by their numbers; of the others nothing is copied."""
    if leaf.is_contiguous():
        return flatten(leaf, batch_shape).index_select(0, rows)
    return leaf[torch.unravel_index(rows, batch_shape)]


def unroll(
    reader: SlotReader,
    wanted: Sequence[NestedKey],
    *,
    params: TensorDictBase | None = None,
    chunk_size: int | None = None,
) -> list[Tensor]:
    """Evaluate a network over all slots, in recurrent mode."""
    size = len(reader.slots)
    spans = [(0, size)] if chunk_size is None else reader.slots.chunks(chunk_size)
    swapped: Any = (
        nullcontext()
        if params is None
        else params.to_module(reader.network, preserve_module_state=False)
    )
    found = []
    with swapped, set_recurrent_mode(True):
        for start, stop in spans:
            out = noted(reader.network, reader.read(start, stop) if size else reader.blank_row())
            found.append([require(out, key) for key in wanted])
    if not size:  # the row that shows what the network writes is none of the batch
        return [values[:0] for values in found[0]]
    if len(found) == 1:
        return found[0]
    return [torch.cat(pieces) for pieces in zip(*found, strict=True)]


def read_side_by_side(
    network: TensorDictModuleBase,
    batch: TensorDictBase,
    segments: Segments,
    stand_in: Tensor | None,  # bool [S], segments whose last row is read again instead
) -> tuple[dict[Key, Tensor], dict[Key, Tensor]]:
    """Read the real rows as they are, and the last next observation of each segment."""
    rows: dict[Key, Tensor] = {}
    after_ends: dict[Key, Tensor] = {}
    for key in map(as_tuple, network.in_keys):
        root, after = find(batch, key), find(batch, (keys.NEXT, *key))
        if root is None:
            require(batch, as_key(key))
        _check_alike(key, root, after)
        ends = segments.last(root if after is None else after)
        if stand_in is not None and after is not None:
            wide = stand_in.view(-1, *(1,) * (ends.ndim - 1))
            ends = torch.where(wide, segments.last(root), ends)
        rows[key] = segments.gather(root)
        after_ends[key] = ends.to(root.dtype)
    return rows, after_ends


def evaluate(
    network: TensorDictModuleBase,
    given: Sequence[tuple[Mapping[Key, Tensor], int]],  # inputs [K, ...] by key, and K
    wanted: NestedKey,
    params: TensorDictBase | None,
) -> list[Tensor]:
    """Evaluate a network in recurrent mode, once for each of some inputs."""
    swapped: Any = (
        nullcontext() if params is None else params.to_module(network, preserve_module_state=False)
    )
    with swapped, set_recurrent_mode(True):
        return [output_from(network, inputs, size, wanted) for inputs, size in given]


def _swapped(network: TensorDictModuleBase, params: TensorDictBase | None) -> Any:
    """A context in which a network has other parameters, as they are."""
    if params is None:
        return nullcontext()
    return params.to_module(network, preserve_module_state=False)
