"""Steps and next values in arrays whose shapes follow from the batch's, for compiled code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import keys, must_compare_observations, set_recurrent_mode
from rl_layout.internals import FIELDS, batch_shape, flatten
from rl_layout.keys import next_key
from rl_tensordict import NestedKey, as_tuple, build, find, nest, require
from rl_value.counted_steps import under_next
from rl_value.estimators.bootstrapping.next_values import InputRoles, blank, lacks_next
from rl_value.estimators.bootstrapping.sequence_layout import one_step_slots
from rl_value.estimators.transitions import Transitions, UnrolledValues

PURPOSES = ("reward", "done", "terminated", "steps_to_next_obs")


@dataclass(frozen=True)
class StaticRows:
    """All rows of a batch, in the place of its segments."""

    batch_shape: torch.Size  # [*B, T]
    real: Tensor  # bool [N]

    def gather(self, values: Tensor) -> Tensor:
        """Flatten a leaf ``[*B, T, ...]`` to ``[N, ...]``."""
        return flatten(values, self.batch_shape)

    def scatter(self, values: Tensor) -> Tensor:
        """Bring ``[N, ...]`` back into the shape of the batch, with zeros on padding."""
        shown = values.masked_fill(~self.real.view(-1, *(1,) * (values.ndim - 1)), 0)
        return shown.reshape(*self.batch_shape, *values.shape[1:])


@dataclass(frozen=True, kw_only=True)
class StaticTransitions(Transitions):
    """All rows of a batch as steps, padding too: nothing flows into it or out of it."""

    last: Tensor  # bool [N], rows that the next one does not continue
    successor_row: Tensor  # int64 [N], the row that holds each row's next state; N where none does
    # int64 [2 N], the row of each slot, as in the UnrollLayout of plain steps; slots that are not
    # needed are segments of one row
    source: Tensor
    is_next: Tensor  # bool [2 N], slots of next observations
    is_start: Tensor  # bool [2 N], first slots of segments
    next_slot: Tensor  # int64 [N], slot of each row's next observation

    @classmethod
    def of(
        cls,
        batch: TensorDictBase,
        entries: Mapping[str, NestedKey],
        time_dim: int | None = None,
    ) -> StaticTransitions:
        """Read the steps of a batch by one operator, which no compiler looks into."""
        shape = batch_shape(batch)
        names = [under_next(entries[purpose]) for purpose in PURPOSES]
        reward = require(batch, names[0])
        usual = [as_tuple(key) for key, _, _ in FIELDS.values()]
        # rows that were drawn one by one have an index: no warning says that they are no neighbours
        others = [(*names[1][:-1], keys.TRUNCATED), keys.NEXT_MISSING, (keys.INDEX,)]
        wanted = dict.fromkeys([*names, *usual, *others, *_compared(batch)])
        leaves = {key: find(batch, key) for key in wanted}
        known = {key: value for key, value in leaves.items() if value is not None}
        found = read_rows(list(known.values()), _joined([*names, *known]), list(shape))
        real, terminated, missing, last, successor_row, source, is_next, is_start, next_slot = found
        rows, ahead = StaticRows(shape, real), known.get(names[3])
        return cls(
            batch=batch,
            segments=rows,  # type: ignore[arg-type]  # gathers and scatters as segments do
            reward=rows.gather(rows.scatter(rows.gather(reward))),  # padding may hold anything
            terminated=terminated,
            missing=missing if keys.NEXT_MISSING in known else None,
            ahead=None if ahead is None else rows.gather(ahead).reshape(-1),
            time_dim=time_dim,
            last=last,
            successor_row=successor_row,
            source=source,
            is_next=is_next,
            is_start=is_start,
            next_slot=next_slot,
        )

    @property
    def ends(self) -> Tensor:
        """Rows that the next one does not continue, bool ``[N]``."""
        return self.last

    @property
    def successor(self) -> Tensor:
        """The row that holds each row's next state, int64 ``[N]``; N where none does."""
        return self.successor_row

    def factor(self, name: str, value: float | Tensor) -> float | Tensor:
        """A setting of each row: a number, or ``[N, ...]``; no tensor is asked for its number."""
        if isinstance(value, Tensor) and not value.ndim:
            value = value[None]
        return super().factor(name, value)


def unroll_rows(
    network: TensorDictModuleBase,
    roles: InputRoles,
    steps: StaticTransitions,
    wanted: NestedKey,
) -> UnrolledValues:
    """Evaluate a network on the next observation of each row, as `unroll_steps` does."""
    # A network that looks at single rows is given N of them, any other the 2 N slots of plain
    # steps.
    rows = torch.arange(len(steps.successor_row), device=steps.successor_row.device)
    outside = steps.successor_row == len(rows)
    if lacks_next(roles, steps.batch):
        steps = steps.without_next(outside)
    unread = steps.unread
    source, is_next, is_start = steps.source, steps.is_next, steps.is_start
    if roles.is_row_wise:
        source, is_next = torch.where(outside, rows, steps.successor_row), outside
    if unread is not None:  # what may hold anything is not read
        is_next = is_next & ~unread[source]
    given = {}
    for key in map(as_tuple, network.in_keys):
        marks = key[-1] == keys.IS_INIT
        given[key] = is_start[:, None] if marks else _read(steps, key, source, is_next)
    with set_recurrent_mode(True):
        made = require(network(build(nest(given), torch.Size([len(source)]))), wanted)
    following = made if roles.is_row_wise else made[steps.next_slot]
    if unread is not None:
        following = blank(following, unread & outside)
    return UnrolledValues(following, following, steps.missing, None, None)


def _read(
    steps: StaticTransitions, key: tuple[str, ...], source: Tensor, is_next: Tensor
) -> Tensor:
    """An input of a network, slot by slot."""
    root = steps.segments.gather(require(steps.batch, key))[source]
    after = find(steps.batch, next_key(key))
    if after is None:
        return root
    ahead = steps.segments.gather(after)[source].to(root.dtype)
    return torch.where(is_next.view(-1, *(1,) * (root.ndim - 1)), ahead, root)


def _compared(batch: TensorDictBase) -> Iterator[tuple[str, ...]]:
    """Leaves whose bits tell who continues whom, where markers and names leave that open."""
    if not must_compare_observations(batch):
        return
    for key, root in keys.leaves(batch):
        if key[0] not in (keys.NEXT, keys.COLLECTOR) and isinstance(root, Tensor):
            after = (keys.NEXT, *key)
            if isinstance(find(batch, after), Tensor):
                yield from (key, after)


def _joined(names: Sequence[tuple[str, ...]]) -> str:
    """Keys as one string, the only way for them into an operator."""
    return "\n".join("\t".join(name) for name in names)


def _split(
    leaves: Sequence[Tensor], names: str
) -> tuple[list[tuple[str, ...]], dict[tuple[str, ...], Tensor]]:
    """The keys by purpose, and the leaves by key."""
    parts = [tuple(name.split("\t")) for name in names.split("\n")]
    purposes, known = parts[: len(PURPOSES)], parts[len(PURPOSES) :]
    return purposes, dict(zip(known, leaves, strict=True))


@torch.library.custom_op("rl_value::read_rows", mutates_args=())
def read_rows(
    leaves: Sequence[Tensor], names: str, shape: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Find which rows continue each other, by their segments."""
    purposes, known = _split(leaves, names)
    batch = build(nest(known), torch.Size(shape))
    steps = Transitions.of(batch, dict(zip(PURPOSES, purposes, strict=True)))
    rows, size = steps.segments.rows, prod(shape)
    slots = one_step_slots(steps.segments)

    def placed(values: Tensor, fill: float) -> Tensor:
        whole = values.new_full((size, *values.shape[1:]), fill)
        return whole.index_copy_(0, rows, values)

    def filled(values: Tensor, fill: float) -> Tensor:
        rest = values.new_full((2 * size - len(values),), fill)
        return torch.cat([values, rest])

    missing = torch.zeros_like(steps.terminated) if steps.missing is None else steps.missing
    successor_row = torch.cat([rows, rows.new_full((1,), size)])[steps.successor]
    return (
        placed(torch.ones_like(steps.ends), False),
        placed(steps.terminated, False),
        placed(missing, False),
        placed(steps.ends, True),
        placed(successor_row, size),
        filled(rows[slots.source], 0),
        filled(slots.is_next, False),
        filled(slots.is_start, True),
        placed(slots.next_slot, 0),
    )


@read_rows.register_fake
def _(leaves: Sequence[Tensor], names: str, shape: Sequence[int]) -> tuple[Tensor, ...]:
    purposes, known = _split(leaves, names)
    size, like = prod(shape), known[purposes[0]]
    flag = known.get(purposes[2], known.get(purposes[1], like))
    each = like.new_empty((size, *flag.shape[len(shape) :]), dtype=torch.bool)
    row, slot = (like.new_empty((n * size,), dtype=torch.bool) for n in (1, 2))
    made = (row, each, torch.empty_like(each), torch.empty_like(row))
    numbers = (row.to(torch.int64), slot.to(torch.int64))
    return (*made, *numbers, slot, torch.empty_like(slot), torch.empty_like(numbers[0]))
