"""Several buffers as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from tensordict import TensorDictBase

from rl_layout import keys
from rl_replay.buffer.parts import checked_size
from rl_replay.buffer.replay_buffer import ReplayBuffer
from rl_replay.buffer.tensordict_buffer import TensorDictReplayBuffer
from rl_replay.data.collate import Collate
from rl_replay.edges import edge, folder_name
from rl_replay.ensembles.batch import BlockGather, Parts, put_together
from rl_replay.ensembles.checkpoint import dump_ensemble, load_ensemble, load_state, state_of
from rl_replay.ensembles.members import Members, places_of
from rl_replay.ensembles.sampler import SamplerEnsemble
from rl_replay.ensembles.storage import StorageEnsemble
from rl_replay.ensembles.writer import WriterEnsemble
from rl_slabs.internals import positive
from rl_tensordict import find
from rl_transforms import Compose, Transform, as_transform


class ReplayBufferEnsemble(Members[ReplayBuffer]):
    """Several buffers as one: a batch has a part of each that is chosen for it.

    A sample is `[parts, B / parts]`, or with `flat=True` one batch `[B]`; it carries
    `("collector", "buffer_ids")`, the number of the buffer of each row. Each buffer has its own
    storage, sampler, transforms and row ids; those of the ensemble follow.
    Members with different kinds of data want transforms that make their samples alike.

    Args:
        *rbs: The buffers, numbered from 0; or else the three ensembles of their parts.
        storages: Their storages.
        samplers: Their samplers, and how buffers are chosen.
        writers: Their writers.
        transform: A transform of the whole batch, or a function of it.
        batch_size: Rows of a batch, of all its parts together.
        collate_fn: Makes a batch of a list of samples, instead of stacking them.
        collate_fns: For the three ensembles: the `collate_fn` of each buffer.
        p: How likely each buffer is; see `SamplerEnsemble`.
        sample_from_all: Draw from every buffer.
        num_buffer_sampled: How many parts a batch has; as many as there are buffers unless given.
        generator: The source of randomness of the ensemble and of its buffers.
        flat: Lay the parts of a batch end to end, rather than stack them.

    Attributes:
        first_rows_timeout: Seconds that `sample` waits for the first row of each buffer.

    Raises:
        ValueError: No buffer, arguments that exclude each other, or ensembles of other sizes.
        TypeError: A member that is no buffer.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> from rl_replay import LazyTensorStorage, TensorDictReplayBuffer
        >>> ensemble = ReplayBufferEnsemble(
        ...     *(TensorDictReplayBuffer(storage=LazyTensorStorage(9)) for _ in range(2)),
        ...     sample_from_all=True,
        ...     batch_size=6,
        ... )
        >>> for number in range(2):
        ...     _ = ensemble.extend(trajectories([3, 2]), buffer=number)
        >>> ensemble.sample().batch_size, ensemble.sample()["collector", "buffer_ids"][:, 0]
        (torch.Size([2, 3]), tensor([0, 1]))
    """

    first_rows_timeout: float = 0.0

    def __init__(  # noqa: PLR0913 - the arguments that the seeds name
        self,
        *rbs: ReplayBuffer,
        storages: StorageEnsemble | None = None,
        samplers: SamplerEnsemble | None = None,
        writers: WriterEnsemble | None = None,
        transform: Transform | Callable[[Any], Any] | None = None,
        batch_size: int | None = None,
        collate_fn: Collate | None = None,
        collate_fns: Sequence[Collate | None] | None = None,
        p: Sequence[float] | torch.Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        generator: torch.Generator | None = None,
        flat: bool = False,
    ) -> None:
        given = {"storages": storages, "samplers": samplers, "writers": writers}
        if storages is not None and samplers is not None and writers is not None:
            _require_alone(rbs, p, sample_from_all, num_buffer_sampled)
            rbs = _buffers_of(storages, samplers, writers, collate_fns)
        elif any(part is not None for part in given.values()) or collate_fns is not None:
            raise ValueError(
                "storages, samplers and writers belong together, and collate_fns to them: give "
                "all three, or buffers."
            )
        super().__init__(*rbs)
        for number, buffer in enumerate(rbs):
            if not isinstance(buffer, ReplayBuffer):
                raise TypeError(f"member {number} is a {type(buffer).__name__}, not a buffer.")
            if any(buffer is other for other in rbs[:number]):
                raise ValueError(f"member {number} is in the ensemble already: give each once.")
        # the samplers of the buffers, whichever they are when a batch is drawn
        self._chooser = samplers or SamplerEnsemble(
            *(buffer.sampler for buffer in rbs),
            p=p,
            sample_from_all=sample_from_all,
            num_buffer_sampled=num_buffer_sampled,
        )
        self.flat = flat
        self._block = BlockGather()
        self._collate = collate_fn
        self.batch_size = checked_size(batch_size)
        self._transform = Compose()
        self.generator: torch.Generator | None = None
        if generator is not None:
            self.set_rng(generator)
        if transform is not None:
            self.append_transform(transform)

    @property
    def storage(self) -> StorageEnsemble:
        """The storages of the buffers."""
        return StorageEnsemble(*(buffer.storage for buffer in self))

    @property
    def sampler(self) -> SamplerEnsemble:
        """How buffers are chosen; its `p` may be set at any time."""
        return self._chooser

    @property
    def writer(self) -> WriterEnsemble:
        """The writers of the buffers."""
        return WriterEnsemble(*(buffer.writer for buffer in self))

    @property
    def transform(self) -> Compose:
        """The transforms of whole batches."""
        return self._transform

    @property
    def is_shared(self) -> bool:
        """Whether all buffers are shared with the processes that the ensemble is passed to."""
        return all(buffer.is_shared for buffer in self)

    @property
    def write_count(self) -> int:
        """Rows ever written to all buffers."""
        return sum(buffer.write_count for buffer in self)

    def chosen(self, places: list[int]) -> Self:
        """An ensemble of some buffers, with their share of `p`, without the other options."""
        sampler = self._chooser.chosen(places) if places else self._chooser
        return type(self)(
            *(list(self)[place] for place in places),
            p=sampler.p,
            sample_from_all=sampler.sample_from_all,
            batch_size=self.batch_size,
            flat=self.flat,
        )

    @edge
    def extend(self, data: Any, *, buffer: int | None = None) -> torch.Tensor:
        """Store several elements in one of the buffers.

        Args:
            data: What the buffer's `extend` takes.
            buffer: The number of the buffer.

        Returns:
            Their indices in that buffer.

        Raises:
            TypeError: No buffer is named.
            IndexError: There is no such buffer.
        """
        return self._named(buffer).extend(data)

    @edge
    def add(self, data: Any, *, buffer: int | None = None) -> Any:
        """Store one element in one of the buffers.

        Args:
            data: What the buffer's `add` takes.
            buffer: The number of the buffer.

        Raises:
            TypeError: No buffer is named.
            IndexError: There is no such buffer.
        """
        return self._named(buffer).add(data)

    def for_worker(self, worker: int, workers: int) -> ReplayBuffer:
        """The buffer that one of several workers writes to: each has its own.

        Args:
            worker: The number of the worker.
            workers: How many there are.

        Raises:
            ValueError: There are more workers than buffers, or fewer.
        """
        if workers != len(self):
            raise ValueError(
                f"{workers} workers write to {len(self)} buffers, each to its own: make the "
                "ensemble of as many buffers as there are workers."
            )
        buffer: ReplayBuffer = self[worker]
        return buffer

    @edge
    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Draw a batch.

        Args:
            batch_size: Rows of all parts together; those of the constructor unless given.
            return_info: Return a dict with information about the rows as well.
            timeout: Seconds to wait for the first row of each buffer that can be chosen;
                `first_rows_timeout` unless given.

        Returns:
            The batch, `[parts, B / parts]` or with `flat=True` `[B]`; or the batch and a dict with
            "index", "row" and "buffer_ids".

        Raises:
            ValueError: No batch size, one that does not divide, no rows, samples with other keys,
                or parts of different lengths without `flat=True`.
            TimeoutError: No row came in time.
        """
        size = self.batch_size if batch_size is None else positive(batch_size, "batch_size")
        if size is None:
            raise ValueError("how many rows? Give batch_size to the ensemble or to sample().")
        buffers = list(self)
        limit = self.first_rows_timeout if timeout is None else timeout
        if limit:
            self._wait_for_rows(limit)
        chosen = self._chooser.choose(size, [len(buffer.storage) for buffer in buffers])
        parts = Parts(*chosen, self.flat)
        made = None if self._collate is not None else self._block.batch(buffers, parts)
        batch, info = put_together(buffers, parts, self._collate) if made is None else made
        if len(self._transform):
            batch = self._transform(batch)
        return (batch, info) if return_info else batch

    @edge
    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Sets the priorities of sampled rows, each in its buffer.

        Args:
            data: A sample of this ensemble with a leaf under the `priority_key` of its buffers.

        Raises:
            KeyError: No buffer ids, or what `TensorDictReplayBuffer` says.
            ValueError: Buffer ids of another ensemble, or rows of another buffer; then no priority
                is set.
            TypeError: A buffer that takes no tensordicts.
        """
        flat = data.reshape(-1)
        numbers = keys.require(flat, keys.BUFFER_IDS)
        found = numbers.unique().tolist()
        if found and not 0 <= found[0] <= found[-1] < len(self):
            raise ValueError(
                f"the sample has rows of buffers {found}, and there are {len(self)}: give it to "
                "the ensemble that it was drawn from."
            )
        parts = []
        for number in found:  # all are checked before the first one is changed
            buffer, part = self[number], flat[numbers == number]
            if not isinstance(buffer, TensorDictReplayBuffer):
                raise TypeError(
                    f"buffer {number} is a {type(buffer).__name__}: only a TensorDictReplayBuffer "
                    "takes priorities by tensordict."
                )
            if (drawn_from := find(part, keys.STORAGE_ID)) is not None:
                buffer.storage.identity.require(drawn_from)
            parts.append((buffer, part))
        for buffer, part in parts:
            buffer.update_tensordict_priority(part)

    def append_transform(self, transform: Transform | Callable[[Any], Any]) -> Self:
        """Adds a transform of whole batches after the others.

        Args:
            transform: A transform, or a function of a batch.

        Returns:
            The ensemble.
        """
        made = as_transform(transform)
        made.check_place("buffer")
        if made.needs_rows:
            raise ValueError(
                f"{type(made).__name__} reads rows that were not sampled, of one buffer: give it "
                "to the buffers."
            )
        self._transform.insert(len(self._transform), made)
        return self

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Exchange the generator of the ensemble and of its buffers.

        Args:
            generator: The new one; None for torch's own.
        """
        for buffer in self:
            buffer.set_rng(generator)
        self.generator = self._chooser.generator = generator

    def empty(self) -> None:
        """Drop every row of every buffer."""
        for buffer in self:
            buffer.empty()

    def stats(self) -> dict[str, float]:
        """Figures of all buffers: rows, capacity, rows ever written."""
        found = [buffer.stats() for buffer in self]
        return {key: sum(one[key] for one in found) for key in ("size", "capacity", "written")}

    def explain(self) -> str:
        """Describes every buffer.

        Example:
            >>> print(ReplayBufferEnsemble(ReplayBuffer()).explain())
            0: ReplayBuffer
              ListStorage: 0 of 1000 rows
              RandomSampler(), RoundRobinWriter(), no transforms
        """
        return "\n".join(f"{number}: {buffer.explain()}" for number, buffer in enumerate(self))

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next samples depend on, the rows of all buffers included."""
        return state_of(self)

    @edge
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state of another ensemble.

        Args:
            state: What its `state_dict` returned.

        Raises:
            ValueError: No such state, or that of an ensemble of other buffers.
        """
        load_state(self, state)

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Writes all buffers to a folder, each to a folder of its own.

        A dump that is there already is replaced when the other one is whole.

        Args:
            path: The folder; created if missing.
        """
        dump_ensemble(self, folder_name(path))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Restores what `dumps` wrote: the next samples are the same.

        Args:
            path: The folder.

        Raises:
            FileNotFoundError: There is no dump.
            ValueError: A damaged dump, or one of an ensemble of other buffers.
        """
        load_ensemble(self, folder_name(path))

    dump = save = dumps
    load = loads

    def _named(self, number: int | None) -> ReplayBuffer:
        if number is None:
            raise TypeError(
                f"which of the {len(self)} buffers? Give buffer=number, or write to "
                "ensemble[number]."
            )
        place = places_of(number, len(self))
        if not isinstance(place, int):
            raise TypeError(f"buffer is the number of one buffer, got {number!r}.")
        named: ReplayBuffer = self[place]
        return named

    def _wait_for_rows(self, limit: float) -> None:
        p = self._chooser.p
        for number, buffer in enumerate(self):
            if p is None or p[number]:
                try:
                    buffer.wait_until(1, limit)
                except TimeoutError as error:
                    raise TimeoutError(f"buffer {number}: {error}") from None


def _require_alone(rbs: Sequence[Any], *others: Any) -> None:
    if rbs:
        raise ValueError("give buffers, or their storages, samplers and writers, not both.")
    if any(other not in (None, False) for other in others):
        raise ValueError(
            "p, sample_from_all and num_buffer_sampled belong to the SamplerEnsemble that is given."
        )


def _buffers_of(
    storages: StorageEnsemble,
    samplers: SamplerEnsemble,
    writers: WriterEnsemble,
    collate_fns: Sequence[Collate | None] | None,
) -> tuple[ReplayBuffer, ...]:
    counts = [len(storages), len(samplers), len(writers)]
    collates = [None] * len(storages) if collate_fns is None else list(collate_fns)
    if len({*counts, len(collates)}) > 1:
        raise ValueError(
            f"{counts[0]} storages, {counts[1]} samplers, {counts[2]} writers and {len(collates)} "
            "collate functions: give as many of each."
        )
    parts = zip(storages, samplers, writers, storages.transforms, collates, strict=True)
    return tuple(
        TensorDictReplayBuffer(
            storage=storage, sampler=sampler, writer=writer, transform=transform, collate_fn=collate
        )
        for storage, sampler, writer, transform, collate in parts
    )
