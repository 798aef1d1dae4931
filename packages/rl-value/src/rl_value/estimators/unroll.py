"""Networks read over a sequence of slots, whole or in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import Segments, keys, set_recurrent_mode
from rl_layout.keys import NestedKey, as_tuple, next_key, require
from rl_layout.tensordict_fast import build, nest
from rl_layout.views import flatten
from rl_value.direct_call import output_of
from rl_value.estimators.slots import Slots


def state_keys(network: TensorDictModuleBase) -> set[tuple[str, ...]]:
    """Find the recurrent states of a network: what it reads, and writes for the next step.

    Args:
        network: a tensordict module.

    Returns:
        Their keys.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> cell = TensorDictModule(
        ...     lambda x, h: (x, h), in_keys=["x", "h"], out_keys=["y", ("next", "h")]
        ... )
        >>> state_keys(cell)
        {('h',)}
    """
    written = {as_tuple(key) for key in network.out_keys}
    return {as_tuple(key) for key in network.in_keys if next_key(key) in written}


def observation_keys(network: TensorDictModuleBase) -> list[NestedKey]:
    """List what a network observes: all that it reads but markers and its own states.

    Args:
        network: a tensordict module.

    Returns:
        The keys, in its order.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> observation_keys(TensorDictModule(lambda *x: x[0], ["is_init", "x"], ["y"]))
        ['x']
    """
    states = state_keys(network)
    return [
        key
        for key in network.in_keys
        if as_tuple(key) not in states and as_tuple(key)[-1] != keys.IS_INIT
    ]


def is_row_wise(network: TensorDictModuleBase) -> bool:
    """Tell whether a network looks at single rows: it reads no marker, and keeps no state.

    Args:
        network: a tensordict module.

    Returns:
        False where the order of rows may matter to it.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> is_row_wise(TensorDictModule(torch.nn.Linear(2, 1), ["x"], ["y"]))
        True
    """
    marked = any(keys.IS_INIT in as_tuple(key) for key in network.in_keys)
    collected = any(as_tuple(key)[0] == keys.COLLECTOR for key in network.in_keys)
    return not (marked or collected or state_keys(network))


def lacks_next(network: TensorDictModuleBase, batch: TensorDictBase) -> bool:
    """Tell whether a batch came without next observations, as compact collection makes it.

    Args:
        network: whose inputs are looked for.
        batch: a TED tensordict.

    Returns:
        True where none is there, False where all are.

    Raises:
        KeyError: some are and some are not.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])
        >>> lacks_next(net, trajectories([2]))
        False
    """
    observed = observation_keys(network)
    absent = [key for key in observed if batch.get(next_key(key), None) is None]
    if absent and len(absent) < len(observed):
        msg = (
            f"{next_key(absent[0])!r} is missing, while other next observations are there. "
            "Store all that the network reads under 'next', or none."
        )
        raise KeyError(msg)
    return bool(absent)


class Reader:
    """Reads the inputs of a network from a batch, slot by slot.

    Args:
        network: a tensordict module.
        batch: a TED tensordict ``[*B, T]``.
        segments: its segments.
        slots: the sequence that the network reads.
        stand_in: bool ``[M]``, rows whose next observation is replaced by their own; None where
            every one is real.

    Raises:
        KeyError: an input is missing.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from rl_value.estimators.slots import one_step_slots
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(lambda x: x[:, 1:], ["observation"], ["state_value"])
        >>> batch = trajectories([2, 1])
        >>> segments = Segments.of(batch)
        >>> reader = Reader(net, batch, segments, one_step_slots(segments), None)
        >>> reader.read(0, 5)["observation"][:, 1].tolist()
        [0.0, 1.0, 2.0, 0.0, 1.0]
    """

    def __init__(
        self,
        network: TensorDictModuleBase,
        batch: TensorDictBase,
        segments: Segments,
        slots: Slots,
        stand_in: Tensor | None,
    ) -> None:
        self.network = network
        self.slots = slots
        self.rows = segments.rows if segments.has_gaps else None
        self.real_next = (
            slots.is_next if stand_in is None else (slots.is_next & ~stand_in[slots.source])
        )
        self.leaves: list[tuple[NestedKey, Tensor, Tensor | None]] = []
        for key in network.in_keys:
            if as_tuple(key)[-1] != keys.IS_INIT:
                root = flatten(require(batch, key), segments.batch_shape)
                after = batch.get(next_key(key), None)
                ahead = None if after is None else flatten(after, segments.batch_shape)
                self.leaves.append((key, root, ahead))

    def read(self, start: int, stop: int) -> TensorDict:
        """Read a run of slots, as a flat batch whose segments start where `is_init` is set.

        Args:
            start: first slot.
            stop: the one behind the last.

        Returns:
            The inputs of the network ``[stop - start]``.
        """
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
            leaf = root.index_select(0, rows)
            if ahead is not None:
                leaf.index_copy_(0, places, ahead.index_select(0, following).to(leaf.dtype))
            made[as_tuple(key)] = leaf
        return build(nest(made), torch.Size([stop - start]))


def unroll(
    reader: Reader,
    wanted: Sequence[NestedKey],
    *,
    params: TensorDictBase | None = None,
    chunk_size: int | None = None,
) -> list[Tensor]:
    """Evaluate a network over all slots, in recurrent mode.

    Args:
        reader: reads the slots.
        wanted: keys of the outputs to keep.
        params: parameters to use in place of the network's own.
        chunk_size: most slots at a time, whole segments only; None for all at once.

    Returns:
        Each output ``[K, ...]``.

    Raises:
        KeyError: the network does not write such a key.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from rl_value.estimators.slots import one_step_slots
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(lambda x: x[:, 1:], ["observation"], ["state_value"])
        >>> batch = trajectories([2, 1])
        >>> segments = Segments.of(batch)
        >>> reader = Reader(net, batch, segments, one_step_slots(segments), None)
        >>> unroll(reader, ["state_value"])[0].flatten().tolist()
        [0.0, 1.0, 2.0, 0.0, 1.0]
    """
    size = len(reader.slots)
    spans = [(0, size)] if chunk_size is None else reader.slots.chunks(chunk_size)
    swapped: Any = nullcontext() if params is None else params.to_module(reader.network)
    found = []
    with swapped, set_recurrent_mode(True):
        for start, stop in spans:
            out = reader.network(reader.read(start, stop))
            found.append([require(out, key) for key in wanted])
    if len(found) == 1:
        return found[0]
    return [torch.cat(pieces) for pieces in zip(*found, strict=True)]


def read_side_by_side(
    network: TensorDictModuleBase,
    batch: TensorDictBase,
    segments: Segments,
    stand_in: Tensor | None,
) -> tuple[TensorDict, TensorDict]:
    """Read the real rows as they are, and the last next observation of each segment.

    Args:
        network: looks at single rows.
        batch: a TED tensordict ``[*B, T]``.
        segments: its segments.
        stand_in: bool ``[S]``, segments whose last row is read again instead; None for none.

    Returns:
        Its inputs ``[M]`` and ``[S]``.

    Raises:
        KeyError: an input is missing.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])
        >>> batch = trajectories([2, 1])
        >>> rows, ends = read_side_by_side(net, batch, Segments.of(batch), None)
        >>> rows["observation"][:, 1].tolist(), ends["observation"][:, 1].tolist()
        ([0.0, 1.0, 0.0], [2.0, 1.0])
    """
    rows: dict[tuple[str, ...], Tensor] = {}
    behind: dict[tuple[str, ...], Tensor] = {}
    for key in network.in_keys:
        root = require(batch, key)
        after = batch.get(next_key(key), None)
        ends = segments.last(root if after is None else after)
        if stand_in is not None and after is not None:
            wide = stand_in.view(-1, *(1,) * (ends.ndim - 1))
            ends = torch.where(wide, segments.last(root), ends)
        rows[as_tuple(key)] = segments.gather(root)
        behind[as_tuple(key)] = ends.to(root.dtype)
    sizes = torch.Size([segments.num_real]), torch.Size([len(segments)])
    return build(nest(rows), sizes[0]), build(nest(behind), sizes[1])


def evaluate(
    network: TensorDictModuleBase,
    inputs: TensorDict,
    wanted: NestedKey,
    params: TensorDictBase | None,
) -> Tensor:
    """Evaluate a network once, in recurrent mode.

    Args:
        network: a tensordict module.
        inputs: what it reads ``[K]``; it is not changed.
        wanted: key of the output.
        params: parameters to use in place of the network's own.

    Returns:
        The output ``[K, ...]``.

    Raises:
        KeyError: the network does not write it.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(lambda x: x * 2, ["x"], ["y"])
        >>> evaluate(net, TensorDict({"x": torch.ones(2, 1)}, [2]), "y", None).flatten()
        tensor([2., 2.])
    """
    swapped: Any = nullcontext() if params is None else params.to_module(network)
    with swapped, set_recurrent_mode(True):
        return output_of(network, inputs, wanted)
