"""Single entries of a tensordict, read and written without what tensordict does besides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import Tensor

from rl_tensordict.arguments import check_collection
from rl_tensordict.construction import Entries, build, build_flat
from rl_tensordict.flatten import leaves
from rl_tensordict.host import CPU
from rl_tensordict.internals import HAS_NAMES_FLAG, HAS_STORE
from rl_tensordict.nested_keys import as_key, as_tuple
from rl_tensordict.types import NestedKey


def find(batch: TensorDictBase, key: tuple[str, ...]) -> Any:
    """Read an entry, or None if missing, as ``batch.get(key, None)`` does.

    A plain tensordict is looked into without what `get` does besides, which takes longer than
    many a network on a small batch. Compiled code that was made where an entry was missing is made
    again if it is there; of `get` it takes no note. The key is not checked.

    Args:
        batch: a tensordict of any kind.
        key: the entry's key.

    Returns:
        The entry, or None.

    Example:
        >>> find(TensorDict({"a": {"b": torch.ones(2)}}, [2]), ("a", "b"))
        tensor([1., 1.])
    """
    here: Any = batch
    for part in key:
        if type(here) is not TensorDict or not HAS_STORE:
            return _get(batch, key)
        here = here._tensordict.get(part)
        if here is None:
            return None
    return here if isinstance(here, Tensor) else _get(batch, key)


def _get(batch: TensorDictBase, key: tuple[str, ...]) -> Any:
    if torch.compiler.is_compiling():
        here: Any = batch
        for part in key:  # level by level: of a missing group `keys(True)` leaves no guard
            if not isinstance(here, TensorDictBase) or part not in here.keys():  # noqa: SIM118
                return None
            here = here.get(part)
        return here
    if type(batch) is not TensorDict:
        check_collection("batch", batch)
    return batch.get(key, None)


def put(batch: TensorDictBase, key: tuple[str, ...], value: Tensor) -> None:
    """Write an entry, as ``batch.set(key, value)`` does, without looking at more than must be.

    The key is not checked. What `set` refuses, this refuses with the same errors.

    Args:
        batch: a tensordict of any kind.
        key: the entry's key.
        value: begins with the shape of the batch.

    Raises:
        RuntimeError: the tensordict is locked, or the shape does not fit.

    Example:
        >>> batch = TensorDict({}, [2])
        >>> put(batch, ("a",), torch.ones(2))
        >>> batch["a"]
        tensor([1., 1.])
    """
    here: Any = batch
    for part in key[:-1]:
        here = here._tensordict.get(part) if type(here) is TensorDict and HAS_STORE else None
    if _is_open(here):  # so are the groups that it is in
        size = here.batch_size
        if value.shape[: len(size)] == size and here.device in (None, value.device):
            here._tensordict[key[-1]] = value
            return
    batch.set(key, value)


def _is_open(group: Any) -> bool:
    """Whether entries of a group may be written where a plain tensordict keeps them."""
    return type(group) is TensorDict and HAS_STORE and not group.is_locked


def listed_entries(tensordict: TensorDict) -> Entries:
    """`entries_of` where a tensordict has no dictionary of its own."""
    return dict(tensordict.items())


entries_of: Callable[[TensorDict], Entries] = (
    attrgetter("_tensordict") if HAS_STORE else listed_entries
)
"""List the named entries of one level of a plain tensordict, which is not checked.

The dictionary is often the tensordict's own, not to be changed. It is looked up by C code, as a
call in Python would cost more than the attribute; `torch.compile` does not follow that.
"""


def names_of(tensordict: TensorDictBase) -> list[str | None] | None:
    """List the names of the batch dimensions, None if no dimension was ever named.

    The argument is not checked.

    Args:
        tensordict: any tensordict.

    Returns:
        One name for each batch dimension, None for one without; or None.

    Example:
        >>> names_of(TensorDict({}, [2], names=["time"])), names_of(TensorDict({}, [2]))
        (['time'], None)
    """
    if HAS_NAMES_FLAG and not tensordict._has_names():
        return None
    names: list[str | None] = tensordict.names
    return names if HAS_NAMES_FLAG or any(names) else None


def copied(tensordict: TensorDictBase) -> TensorDictBase:
    """Copy the structure of a tensordict, as ``tensordict.copy()`` does; leaves are shared.

    Args:
        tensordict: any tensordict.

    Returns:
        A copy that is not locked. A plain tensordict of tensors is copied at a fifth of the cost.

    Example:
        >>> batch = TensorDict({"reward": torch.zeros(5, 1)}, [5])
        >>> copied(batch)["reward"] is batch["reward"]
        True
    """
    if type(tensordict) is TensorDict and HAS_STORE and not torch.compiler.is_compiling():
        entries = dict(tensordict._tensordict)
        for name, entry in entries.items():
            if type(entry) is TensorDict:
                entries[name] = copied(entry)
            elif not isinstance(entry, Tensor):
                return tensordict.copy()
        names, device = names_of(tensordict), tensordict.device
        if device is None:
            return build_flat(entries, tensordict.batch_size, names and [*names])
        return build(entries, tensordict.batch_size, names and [*names], device)
    check_collection("tensordict", tensordict)
    made = tensordict.copy()
    names = names_of(tensordict) if torch.compiler.is_compiling() else None
    if names is not None:  # compiled, tensordict drops them
        made.names = names
    return made


def put_group(tensordict: TensorDictBase, name: str, group: TensorDictBase) -> None:
    """Write a group that is known to fit, as ``tensordict.set(name, group)`` does.

    Arguments are not checked.

    Args:
        tensordict: a tensordict of any kind, not locked.
        name: of the group.
        group: a tensordict that begins with the batch size, of the same device and names.

    Example:
        >>> step = TensorDict({}, [2])
        >>> put_group(step, "next", TensorDict({"reward": torch.ones(2, 1)}, [2]))
        >>> step["next", "reward"].shape
        torch.Size([2, 1])
    """
    fits = _is_open(tensordict) and tensordict.device is None
    if fits and names_of(tensordict) in (None, names_of(group)):
        tensordict._tensordict[name] = group
    else:
        tensordict.set(name, group)


def put_leaves(tensordict: TensorDictBase, name: str, leaves_by_name: Entries) -> None:
    """Write a group of leaves that are known to fit; if there is such a group, into it.

    Arguments are not checked.

    Args:
        tensordict: a tensordict of any kind, not locked.
        name: of the group.
        leaves_by_name: leaves that begin with the batch size, of its device.

    Example:
        >>> batch = TensorDict({}, [2], names=["time"])
        >>> put_leaves(batch, "collector", {"row": torch.arange(2)})
        >>> batch["collector"].names
        ['time']
    """
    if _is_open(tensordict) and tensordict.device is None and name not in tensordict._tensordict:
        names = names_of(tensordict)
        group = build_flat(leaves_by_name, tensordict.batch_size, names and [*names])
        tensordict._tensordict[name] = group
        return
    for last, leaf in leaves_by_name.items():
        tensordict.set((name, last), leaf)


def device_of_data(data: TensorDictBase) -> torch.device:
    """The device that a tensordict names, or that of its first tensor, or else the CPU.

    A tensor that is made on ``data.device`` is on torch's default device where that is None.

    Args:
        data: a tensordict; the argument is not checked.

    Example:
        >>> data = TensorDict({"a": torch.ones(2)}, [2])
        >>> data.device, device_of_data(data)
        (None, device(type='cpu'))
    """
    named: torch.device | None = data.device
    return named or next(_devices(data), CPU)


def _devices(data: TensorDictBase) -> Iterator[torch.device]:
    """The devices of all tensors."""
    # leaves of a lazy stack may differ in shape, and are not stacked here
    parts = data.tensordicts if isinstance(data, LazyStackedTensorDict) else data.values()
    for part in parts:
        if isinstance(part, Tensor):
            yield part.device
        elif isinstance(part, TensorDictBase):
            yield from _devices(part)


def lies_on(data: Any, device: torch.device) -> bool:
    """Tell whether the leaves of a plain tensordict are on a device that it does not name.

    Args:
        data: a tensordict; the argument is not checked.
        device: with its index, as leaves name it.

    Returns:
        False also where that is not known: for other kinds of tensordicts.

    Example:
        >>> lies_on(TensorDict({"a": torch.ones(2)}, [2]), torch.device("cpu"))
        True
    """
    if type(data) is not TensorDict or data.device is not None:
        return False
    for entry in data._tensordict.values() if HAS_STORE else data.values():
        if isinstance(entry, Tensor):
            if entry.device != device:
                return False
        elif not lies_on(entry, device):
            return False
    return True


def require(tensordict: TensorDictBase, key: NestedKey) -> Any:
    """Read a leaf that must be there.

    Args:
        tensordict: any tensordict.
        key: the leaf's key.

    Returns:
        The leaf.

    Raises:
        KeyError: it is missing; the message lists what is there, and leaves of that name elsewhere.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> require(TensorDict({"a": torch.ones(2)}, [2]), "a")
        tensor([1., 1.])
    """
    try:
        value = find(tensordict, (key,) if isinstance(key, str) else as_tuple(key))
    except ValueError:  # a leaf is at a place that the key uses as a group
        value = None
    if value is None:
        names = [name for name, _ in leaves(tensordict)]
        msg = f"{key!r} is missing: there are {', '.join(str(as_key(name)) for name in names)}."
        alike = [repr(as_key(name)) for name in names if name[-1] == as_tuple(key)[-1]]
        hint = f" Did you mean {' or '.join(alike)}?" if alike else ""
        raise KeyError(msg + hint)
    return value
