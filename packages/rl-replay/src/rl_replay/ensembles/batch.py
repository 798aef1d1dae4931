"""The batches of an ensemble: parts of several buffers, gathered as one or concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_layout import keys
from rl_replay.buffer.batches import KnownDraw, insert_info
from rl_replay.buffer.replay_buffer import ReplayBuffer
from rl_replay.samplers.slice_layout import Slices, mark_slices
from rl_slabs import Rows
from rl_tensordict import CPU, as_key, build, insert, nest, tensors

Info = dict[str, Any]


class Parts(NamedTuple):
    """What a batch consists of."""

    numbers: list[int]  # The buffer of each part
    rows: int  # Rows that are asked of each
    flat: bool  # Whether the parts lie end to end: [B], else [parts, B / parts]


class BlockGather:
    """Batches of buffers whose rows can be gathered into one block."""

    def __init__(self) -> None:
        self._alike: tuple[Any, ...] = ()  # rows and samplers that were found to be alike

    def batch(
        self, buffers: Sequence[ReplayBuffer], parts: Parts
    ) -> tuple[TensorDict, Info] | None:
        """A batch; None if rows of some buffer want more than copying, or differ in kind."""
        drawn_from = [buffers[number] for number in parts.numbers]
        with ExitStack() as locks:
            for buffer in buffers:  # in the same order in every thread
                locks.enter_context(buffer.batches.lock)
            rows = self._rows_alike(drawn_from)
            if rows is None:
                return None
            draws = [buffer.batches.draw_known(parts.rows) for buffer in drawn_from]
            counts = [len(draw.numbers) for draw in draws]
            block = rows[0].block(sum(counts))
            start = 0
            for source, draw, count in zip(rows, draws, counts, strict=True):
                source.gather_into(draw.positions, block, start)
                start += count
        info, shape = _joined(draws, parts, counts), _shape(parts, counts)
        slices = info.get("slices")
        shaped = {key: _shaped(value, start, shape) for key, value in info.items()}
        if slices is None:
            batch = block.tensordict(shape)
            _insert_known(batch, shaped, drawn_from[0])
            return batch, shaped
        batch, sampler = block.tensordict(torch.Size([start])), drawn_from[0].sampler
        _insert_known(batch, info, drawn_from[0])
        mark_slices(batch, slices, sampler.truncated_key, sampler.end_keys)
        return (batch if parts.flat else _unflattened(batch, shape)), shaped

    def _rows_alike(self, buffers: Sequence[ReplayBuffer]) -> list[Rows] | None:
        """The rows of buffers that can be one block, marked all at once."""
        sources = [buffer.batches.plain_rows() for buffer in buffers]
        rows = [one for one in sources if one is not None]
        if len(rows) < len(sources):
            return None
        found = (*rows, *(buffer.sampler for buffer in buffers))
        if found != self._alike:
            if not _are_alike(buffers, rows):
                return None
            self._alike = found
        return rows


def put_together(buffers: Sequence[ReplayBuffer], parts: Parts, collate: Any) -> tuple[Any, Info]:
    """A batch of any buffers: a sample of each, stacked or laid end to end."""
    samples, infos = [], []
    for number in parts.numbers:
        sample, info = buffers[number].sample(parts.rows, return_info=True)
        if isinstance(sample, TensorDictBase):
            ids = torch.full(sample.batch_size, number, device=sample.device or CPU)
            insert(sample, keys.BUFFER_IDS, ids)
        samples.append(sample)
        ids = torch.full_like(info["row"], number)
        infos.append(info | {keys.BUFFER_IDS[-1]: ids})
    _number_slices(samples)
    info = {
        key: [info[key] for info in infos] for key in infos[0] if all(key in one for one in infos)
    }
    for key in (keys.INDEX, "row", keys.BUFFER_IDS[-1]):
        if len({len(one) for one in info[key]}) == 1:
            info[key] = torch.cat(info[key]) if parts.flat else torch.stack(info[key])
    return (collate(samples) if collate is not None else _joined_samples(samples, parts)), info


def _are_alike(buffers: Sequence[ReplayBuffer], rows: Sequence[Rows]) -> bool:
    """Whether the batches of buffers can be one block, marked all at once."""
    first = buffers[0]
    sampler, schema = first.sampler, rows[0].schema
    return all(
        (found is rows[0] or found.schema == schema)
        and buffer.storage.ndim == first.storage.ndim
        and type(buffer) is type(first)
        and buffer.sampler.draws_slices == sampler.draws_slices
        and buffer.sampler.truncated_key == sampler.truncated_key
        and list(buffer.sampler.end_keys) == list(sampler.end_keys)
        and buffer.sampler.weighs_rows == sampler.weighs_rows
        for buffer, found in zip(buffers[1:], rows[1:], strict=True)
    )


def _joined(draws: Sequence[KnownDraw], parts: Parts, counts: Sequence[int]) -> Info:
    """What is known about the rows of all parts, end to end."""
    ids = torch.from_numpy(np.array(parts.numbers).repeat(counts))  # torch takes 5 times as long
    info: Info = {
        keys.INDEX: torch.cat([draw.coordinates for draw in draws]),
        "row": torch.cat([draw.numbers for draw in draws]),
        keys.BUFFER_IDS[-1]: ids,
    }
    for key, value in draws[0].info.items():
        found: list[Any] = [draw.info.get(key) for draw in draws]
        if isinstance(value, Slices):
            info[key] = _end_to_end(found)
        elif isinstance(value, torch.Tensor) and all(one is not None for one in found):
            info[key] = torch.cat(found)
    return info


def _end_to_end(found: Sequence[Slices]) -> Slices:
    """The slices of all parts; where only some parts had to be padded, the others are as long."""
    length = next((one.padded_to for one in found if one.padded_to is not None), None)
    return reduce(Slices.and_then, [replace(one, padded_to=length) for one in found])


def _insert_known(batch: TensorDict, info: Info, buffer: ReplayBuffer) -> None:
    """Puts into a batch what samples of such a buffer hold."""
    known = dict(info)
    insert(batch, (keys.INDEX,), known.pop(keys.INDEX))
    insert(batch, keys.ROW, known.pop("row"))
    insert(batch, keys.BUFFER_IDS, known.pop(keys.BUFFER_IDS[-1]))
    if buffer.batches.info_in_sample:
        insert_info(batch, known)


def _shaped(value: Any, rows: int, shape: torch.Size) -> Any:
    if len(shape) == 1 or not isinstance(value, torch.Tensor) or len(value) != rows:
        return value
    return value.view(*shape, *value.shape[1:])


def _shape(parts: Parts, counts: Sequence[int]) -> torch.Size:
    if parts.flat:
        return torch.Size([sum(counts)])
    if len(set(counts)) > 1:
        raise ValueError(
            f"the parts of a batch have {list(counts)} rows, which cannot be stacked: make the "
            "ensemble with flat=True, or samplers whose batches have the same number of rows."
        )
    return torch.Size([len(counts), counts[0]])


def _unflattened(batch: TensorDict, shape: torch.Size) -> TensorDict:
    found = {key: leaf.unflatten(0, shape) for key, leaf in tensors(batch).items()}
    return build(nest(found), shape)


def _number_slices(samples: Sequence[Any]) -> None:
    """Gives the slices of every part numbers of their own."""
    first = 0
    for sample in samples:
        if not isinstance(sample, TensorDictBase):
            return
        ids = sample.get(keys.SLICE_IDS, None)
        if ids is None:
            return
        insert(sample, keys.SLICE_IDS, torch.where(ids < 0, ids, ids + first))
        first += int(ids.max()) + 1


def _joined_samples(samples: list[Any], parts: Parts) -> Any:
    if all(isinstance(sample, torch.Tensor) for sample in samples):
        return torch.cat(samples) if parts.flat else torch.stack(samples)
    for number, sample in zip(parts.numbers, samples, strict=True):
        if not isinstance(sample, TensorDictBase):
            raise TypeError(
                f"buffer {number} returned a {type(sample).__name__}, and parts of a batch are "
                "tensordicts or tensors: give collate_fn, which makes a batch of a list of them."
            )
    found = [tensors(sample) for sample in samples]
    _require_same_leaves(found, parts.numbers)
    _shape(parts, [len(sample) for sample in samples])
    rest, more = samples[0].batch_size[1:], int(not parts.flat)
    join = torch.cat if parts.flat else torch.stack
    joined = {}
    for key in found[0]:
        try:
            joined[key] = join([leaves[key] for leaves in found])
        except RuntimeError as error:
            raise ValueError(
                f"leaf {key} of the samples of the buffers {parts.numbers} does not fit in one "
                f"batch: {error} Give their buffers transforms that make it alike, or exclude it."
            ) from error
    size = next(iter(joined.values())).shape[: 1 + more]
    return build(nest(joined), torch.Size([*size, *rest]), device=samples[0].device)


def _require_same_leaves(found: list[dict[tuple[str, ...], torch.Tensor]], ids: list[int]) -> None:
    first = found[0].keys()
    for number, leaves in zip(ids, found, strict=True):
        if leaves.keys() != first:
            ours, theirs = sorted(first - leaves.keys()), sorted(leaves.keys() - first)
            raise ValueError(
                f"the samples of buffers {ids[0]} and {number} have other keys: only the former "
                f"has {[as_key(key) for key in ours]}, only the latter "
                f"{[as_key(key) for key in theirs]}. Give their buffers transforms that rename or "
                "exclude them."
            )
