"""Conformance checks for samplers, storages and writers, to call from the tests of an author."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rl_layout.testing import trajectories
from rl_replay.buffer.tensordict_buffer import TensorDictReplayBuffer
from rl_replay.samplers import Sampler
from rl_replay.storages import LazyTensorStorage, Storage
from rl_replay.testing.list_model import ListModel
from rl_replay.writers import Writer

CAPACITY = 40


def check_sampler(make: Callable[[], Sampler], *, batch_size: int = 12) -> None:
    """Check that a sampler keeps the promises of samplers.

    It chooses only rows that can be read, also after the ring has wrapped; equal generators give
    equal choices; a loaded state continues as the saved one does; sampling changes no stored row.

    Args:
        make: Makes the sampler, as often as it is called.
        batch_size: How many rows to ask for; a multiple of the slice length of a slice sampler.

    Raises:
        AssertionError: A promise is broken; the message says which.

    Example:
        >>> from rl_replay import RandomSampler
        >>> check_sampler(RandomSampler)
    """
    buffer = _wrapped_buffer(make())
    before, kind = buffer[:].clone(), type(make()).__name__
    for _ in range(3):
        _check_choice(buffer, make, batch_size)
        sample = buffer.sample(batch_size)
        stored = buffer[sample["index"]]["observation"]
        _require(torch.equal(sample["observation"], stored), kind, "a sample holds stored rows")
    _require(bool((buffer[:] == before).all()), kind, "sampling changes no stored row")
    _check_saved_choices(buffer.storage, make, batch_size)


def check_storage(make: Callable[[int], Storage]) -> None:
    """Check that a storage holds rows as a ring does, against a list.

    Args:
        make: Makes a storage for a number of rows. Rows are tensordicts with the keys of
            `rl_layout.testing.trajectories`.

    Raises:
        AssertionError: A promise is broken; the message says which.

    Example:
        >>> from rl_replay import ListStorage
        >>> check_storage(ListStorage)
    """
    storage, model = make(7), ListModel(7)
    kind = type(storage).__name__
    for count in (3, 2, 4, 7, 1):
        first = model.written
        rows = trajectories([count], first_id=first + 1)
        numbers = torch.arange(first, first + count, device="cpu")
        rows["observation"] = numbers.float()[:, None].expand(count, 2)
        span = storage.extend(rows)
        _require(list(span.numbers) == numbers.tolist(), kind, "rows are numbered consecutively")
        model.extend(numbers.float().tolist())
        _require(len(storage) == len(model), kind, "it holds the newest rows, max_size at most")
        _require(_holds(storage, model), kind, "it reads back what was written")
    _check_replace(storage, model, kind)
    _check_refusal(storage, model, kind)
    storage.empty()
    _require(len(storage) == 0, kind, "empty() drops every row")


def check_writer(make: Callable[[], Writer]) -> None:
    """Check that a writer keeps the promises of writers.

    A write that it refuses leaves the buffer as it was; what it lets pass is stored, over the
    oldest rows where the buffer is full; its state can be saved and loaded.

    Args:
        make: Makes the writer, as often as it is called.

    Raises:
        AssertionError: A promise is broken; the message says which.

    Example:
        >>> from rl_replay import RoundRobinWriter
        >>> check_writer(RoundRobinWriter)
    """
    writer, kind = make(), type(make()).__name__
    other = make()
    other.load_state_dict(writer.state_dict())
    _require(other.state_dict() == writer.state_dict(), kind, "a loaded state is the saved one")
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), writer=writer)
    written = 0
    for count in (1, 7, CAPACITY, 5):
        size = len(buffer)
        try:
            writer.check(count)
        except Exception:
            _check_refused(buffer, count, size, kind)
            continue
        buffer.extend(trajectories([count], first_id=written + 1))
        written += count
        _require(len(buffer) == min(written, CAPACITY), kind, "what passes check() is stored")


def _wrapped_buffer(sampler: Sampler) -> TensorDictReplayBuffer:
    """A full buffer whose ring has wrapped: its oldest row is in the middle."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), sampler=sampler)
    for number, lengths in enumerate(([20, 15], [25], [13, 12])):
        buffer.extend(trajectories(lengths, first_id=10 * number + 1))
    return buffer


def _check_choice(
    buffer: TensorDictReplayBuffer, make: Callable[[], Sampler], batch_size: int
) -> None:
    storage, window = buffer.storage, buffer.storage.ring.window()
    kind, choices = type(make()).__name__, []
    for _ in range(2):
        sampler = make()
        sampler.generator = torch.Generator().manual_seed(3)
        numbers, info = sampler.sample(storage, batch_size)
        _require(numbers.dtype == torch.int64, kind, "row numbers are int64")
        _require(0 < numbers.numel() <= batch_size, kind, "a batch has 1 to batch_size rows")
        low, high = int(numbers.min()), int(numbers.max())
        live = window.first[0] <= low and high < window.first[0] + window.counts[0]
        _require(live, kind, "only rows that can be read are chosen")
        _require(isinstance(info, dict), kind, "what is known besides is a dict")
        choices.append(numbers)
    _require(torch.equal(*choices), kind, "equal generators give equal choices")


def _check_saved_choices(storage: Storage, make: Callable[[], Sampler], batch_size: int) -> None:
    first, second = make(), make()
    first.generator = torch.Generator().manual_seed(5)
    first.sample(storage, batch_size)
    second.load_state_dict(first.state_dict())
    second.generator = torch.Generator()
    second.generator.set_state(first.generator.get_state())
    ahead = [one.sample(storage, batch_size)[0] for one in (first, second)]
    _require(torch.equal(*ahead), type(first).__name__, "a loaded state continues as the saved one")


def _check_replace(storage: Storage, model: ListModel, kind: str) -> None:
    rows = trajectories([2], first_id=900)
    rows["observation"] = torch.tensor([[70.0, 70.0], [71.0, 71.0]], device="cpu")
    storage.replace(torch.tensor([5, 2], device="cpu"), rows)
    model.replace(5, 70.0)
    model.replace(2, 71.0)
    _require(_holds(storage, model), kind, "replace() writes those rows alone")


def _check_refusal(storage: Storage, model: ListModel, kind: str) -> None:
    try:
        storage.extend(trajectories([8], first_id=950))
    except ValueError:
        _require(_holds(storage, model), kind, "a refused write changes nothing")
    else:
        _require(False, kind, "more rows than max_size are refused with a ValueError")


def _check_refused(buffer: TensorDictReplayBuffer, count: int, size: int, kind: str) -> None:
    try:
        buffer.extend(trajectories([count], first_id=990))
    except Exception:
        _require(len(buffer) == size, kind, "a refused write stores nothing")
    else:
        _require(False, kind, "what check() refuses is refused by extend()")


def _holds(storage: Storage, model: ListModel) -> bool:
    """Whether the rows of a storage have the observations that a model says."""
    rows: Any = storage.read(torch.tensor(sorted(model.rows), device="cpu"))
    return [float(rows[n]["observation"][0]) for n in range(len(model))] == model.contents()


def _require(true: bool, kind: str, promise: str) -> None:
    if not true:
        raise AssertionError(f"{kind} breaks a promise: {promise}.")
