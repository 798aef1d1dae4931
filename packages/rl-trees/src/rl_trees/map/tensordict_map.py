"""A map from rows of tensordicts to rows of tensordicts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_replay import LazyTensorStorage, Storage
from rl_tensordict import NestedKey, as_tuple
from rl_tensordict.arguments import check_calls, check_collection, check_flags, check_type, key_list
from rl_tensordict.types import Words
from rl_trees.map.dump import load_rows, read_dump, write_dump
from rl_trees.map.key_layout import KeyLayout, columns_of
from rl_trees.map.query_module import EncodedKeys, HashFunction, QueryModule, require_known
from rl_trees.map.row_writes import at, write_rows
from rl_trees.map.tensor_map import TensorMap

KIND = "rl_trees.TensorDictMap"
WriteFunction = Callable[..., TensorDictBase]


class TensorDictMap(TensorMap[TensorDictBase, TensorDictBase]):
    """Stores a row of values for each different key, and finds it again.

    Keys are rows of some entries, compared in full, byte by byte. Values are rows of a storage of
    `rl_replay`, in memory or mapped files. Tensordicts that are passed in are not changed.

    Args:
        query_module: Numbers keys. It belongs to the map from then on.
        storage: Holds the values; empty.
        collate_fn: Changes what was read of the storage.
        out_keys: The entries of values that are stored; all unless given.
        write_fn: Makes what is stored: `write_fn(new, old)` for keys that are there,
            `write_fn(new)` for others. Unless given the new values are stored.
        write_index: Write numbers and hashes into the keys that are passed to `map[keys] = ...`.

    Attributes:
        in_keys: The entries of a key.
        out_keys: The entries that are stored; None for all.

    Raises:
        ValueError: A query module that compares hashes alone, a storage that holds rows or has
            several dimensions.

    Example:
        >>> import torch
        >>> from rl_replay import LazyTensorStorage
        >>> from tensordict import TensorDict
        >>> map = TensorDictMap(query_module=QueryModule(["s"]), storage=LazyTensorStorage(100))
        >>> keys = TensorDict({"s": torch.tensor([[1, 2], [3, 4]])}, [2])
        >>> map[keys] = TensorDict({"value": torch.tensor([0.5, 2.0])}, [2])
        >>> map[keys[1]]["value"], len(map), keys in map
        (tensor(2.), 2, True)
    """

    def __init__(
        self,
        *,
        query_module: QueryModule,
        storage: Storage,
        collate_fn: Callable[[Any], Any] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        write_fn: WriteFunction | None = None,
        write_index: bool = False,
    ) -> None:
        check_type("query_module", query_module, QueryModule, "a QueryModule")
        check_type("storage", storage, Storage, "a storage of rl_replay")
        check_calls(collate_fn=collate_fn, write_fn=write_fn)
        check_flags(write_index=write_index)
        if not query_module.compares_keys:
            raise ValueError(
                "the query module numbers hashes by hash_to_int, so two keys of one hash would be "
                "one key: make it without hash_to_int."
            )
        if len(storage) or len(query_module.table):
            raise ValueError(
                f"storage holds {len(storage)} rows and the query module {len(query_module.table)} "
                "keys: give new ones, and fill them through the map."
            )
        if storage.ndim != 1:
            raise ValueError(f"storage has {storage.ndim} dimensions, and a map needs one.")
        self.query_module = query_module
        query_module.table.max_size = storage.max_size
        self.storage = storage
        self.collate_fn = collate_fn
        self.out_keys = None if out_keys is None else key_list("out_keys", out_keys)
        self.write_fn = write_fn
        self.write_index = write_index

    @classmethod
    def from_tensordict_pair(  # noqa: PLR0913 - the arguments that the seed names
        cls,
        source: TensorDictBase,
        dest: TensorDictBase,
        in_keys: Sequence[NestedKey],
        out_keys: Sequence[NestedKey] | None = None,
        max_size: int = 1000,
        storage_constructor: Callable[[], Storage] | None = None,
        hash_module: HashFunction | Sequence[HashFunction] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        write_fn: WriteFunction | None = None,
        consolidated: bool | None = None,
    ) -> TensorDictMap:
        """Makes an empty map for keys and values like those of two tensordicts.

        Args:
            source: Rows with the entries of a key, whose dtypes and shapes all keys must have.
            dest: Rows of values, with `out_keys`.
            in_keys: The entries of a key.
            out_keys: The entries of values that are stored; all unless given.
            max_size: The most keys, unless `storage_constructor` is given.
            storage_constructor: Makes the storage; a `LazyTensorStorage` unless given.
            hash_module: As in `QueryModule`.
            collate_fn: As in the constructor.
            write_fn: As in the constructor.
            consolidated: No effect: small leaves are stored in one row anyway.

        Raises:
            KeyError: An entry of a key that `source` lacks, or of values that `dest` lacks.

        Example:
            >>> from rl_layout.synthetic import trajectories
            >>> steps = trajectories([3, 2])
            >>> source, dest = steps.exclude("next"), steps["next"]
            >>> map = TensorDictMap.from_tensordict_pair(source, dest, ["observation", "action"])
            >>> map[source] = dest
            >>> bool((map[source]["observation"] == dest["observation"]).all())
            True
        """
        query_module = QueryModule(in_keys, hash_module=hash_module)
        check_collection("source", source)
        check_collection("dest", dest)
        columns = columns_of(source, query_module.in_keys)
        query_module.arrange(KeyLayout.of(query_module.in_keys, columns))
        _require_named(key_list("out_keys", out_keys), dest, "dest")
        make = storage_constructor or (lambda: LazyTensorStorage(max_size))
        return cls(
            query_module=query_module,
            storage=make(),
            collate_fn=collate_fn,
            out_keys=out_keys,
            write_fn=write_fn,
        )

    @property
    def in_keys(self) -> list[NestedKey]:
        """The entries of a key."""
        names: list[NestedKey] = self.query_module.in_keys
        return names

    @property
    def max_size(self) -> int:
        """The most keys."""
        return self.storage.max_size

    def __len__(self) -> int:
        return len(self.query_module.table)

    def clear(self) -> None:
        """Forgets all keys and values; dtypes and shapes of keys stay."""
        self.query_module.table.clear()
        self.storage.empty()

    def contains(self, item: TensorDictBase) -> torch.Tensor:
        """Which keys are there.

        Args:
            item: Keys `[*B]`.

        Returns:
            bool `[*B]`.
        """
        return (self.index(item) >= 0).reshape(item.batch_size)

    def index(self, item: TensorDictBase) -> torch.Tensor:
        """The rows of keys in the storage.

        Args:
            item: Keys `[*B]`.

        Returns:
            int64 `[*B]`; -1 for keys that are not there.
        """
        keys = self.query_module.encode(item)  # the first ones replace the table
        rows = self.query_module.table.find(*keys)
        return torch.from_numpy(rows).reshape(item.batch_size)

    def keys(self) -> TensorDict:
        """All keys `[n]` in the order of their rows, bit for bit."""
        layout = self.query_module.layout
        return TensorDict({}, [0]) if layout is None else layout.decode(self._words)

    def __getitem__(self, item: TensorDictBase) -> Any:
        """The values of keys.

        Args:
            item: Keys `[*B]`; other entries do not matter.

        Returns:
            Their values `[*B]`.

        Raises:
            KeyError: An unknown key, or an entry of the key is missing.
            ValueError: Keys of another dtype or shape.
        """
        rows = self.index(item)
        if rows.numel() and int(rows.numpy().min()) < 0:  # a mask of all takes longer
            require_known((rows >= 0).reshape(-1), item.batch_size)
        return self._read(rows)

    def get(self, item: TensorDictBase, default: TensorDictBase | None = None) -> Any:
        """The values of keys, and others for keys that are not there.

        Args:
            item: Keys `[*B]`.
            default: Values `[]` or `[*B]` for unknown keys. Without them an unknown key is an
                error.

        Returns:
            Values `[*B]`.

        Raises:
            KeyError: An unknown key without a default, or a default without the entries of values.
            ValueError: A default of another batch size, or whose entries have other dtypes or
                shapes than those of values.
        """
        rows = self.index(item)
        known = rows >= 0
        if default is None or bool(known.all()):
            require_known(known.reshape(-1), item.batch_size)
            return self._read(rows)
        check_collection("default", default)
        try:
            values = default.expand(item.batch_size).clone()
        except RuntimeError as error:
            raise ValueError(
                f"default has the batch size {list(default.batch_size)}: expected [], one for all "
                f"keys, or {list(item.batch_size)}, one for each."
            ) from error
        if bool(known.any()):
            found = self._read(rows[known])
            _require_entries_of(found, values)
            values[known] = found
        return values

    def __setitem__(self, item: TensorDictBase, value: TensorDictBase) -> None:
        """Stores the values of keys; of a key that comes twice the last value counts.

        Args:
            item: Keys `[*B]`.
            value: Values `[*B]`. The first ones fix the entries, their dtypes and shapes.

        Raises:
            RuntimeError: More keys than the map can hold; nothing is written.
            KeyError: An entry of the key is missing, or of the values.
            ValueError: Keys of another dtype or shape, or another number of values.
        """
        check_collection("keys", item)
        check_collection("value", value)
        if item.batch_size != value.batch_size:
            raise ValueError(
                f"keys have the batch size {list(item.batch_size)} and values "
                f"{list(value.batch_size)}: they must be equal."
            )
        values = value if self.out_keys is None else self._selected(value)
        if not item.batch_size.numel():
            return
        keys = self.query_module.encode(item)
        table = self.query_module.table
        before = len(table)
        try:
            rows, added = table.insert(*keys)
            self._write(rows, added, values if values.ndim == 1 else values.reshape(-1))
        except BaseException:
            table.truncate(before)
            raise
        if self.write_index:
            self._note(item, rows, keys)

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Writes keys and values to a folder: JSON and arrays, no pickle.

        Args:
            path: The folder; a dump that is there is replaced when the new one is complete.

        Raises:
            NotImplementedError: A storage of any objects, which only pickles could keep.

        Example:
            >>> import tempfile
            >>> from rl_layout.synthetic import trajectories
            >>> steps = trajectories([3])
            >>> pair = (steps, steps["next"], ["observation"])
            >>> map, other = (TensorDictMap.from_tensordict_pair(*pair) for _ in range(2))
            >>> map[steps] = steps["next"]
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     map.dumps(folder)
            ...     other.loads(folder)
            >>> steps in other
            True
        """
        layout = self.query_module.layout
        document = {"layout": None if layout is None else layout.to_json()}
        arrays = {"words": self._words, "hashes": self.query_module.table.hashes}
        write_dump(path, KIND, document, arrays, self.storage)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Replaces keys and values with those of a dump.

        Args:
            path: A folder that `dumps` wrote, of a map of these `in_keys` and hash modules.

        Raises:
            FileNotFoundError: There is no dump.
            ValueError: Other keys, hashes of other modules, or a dump that was altered.
        """
        dump = read_dump(path, KIND)
        saved = dump.document.get("layout")
        if saved is None:
            self.clear()
            return
        layout = KeyLayout.from_json(saved)
        if layout.names != list(self.in_keys):
            raise ValueError(
                f"{path} holds keys of {layout.names}, and this map is of {self.in_keys}."
            )
        words = dump.arrays["words"]
        hashes = self._hashes_of(path, layout, words, dump.arrays["hashes"])
        query = self.query_module
        former = query.table, query.layout
        query.arrange(layout)  # where rows are exchanged halfway, no key names one
        try:
            load_rows(self.storage, dump.rows)
        except Exception:  # the rows stand
            query.table, query.layout = former
            raise
        if (count := len(self.storage)) < len(words):
            self.clear()
            raise ValueError(f"{path} was altered: {len(words)} keys for {count} values.")
        query.table.insert(words, hashes)

    @property
    def _words(self) -> Words:
        return self.query_module.table.words

    def _hashes_of(
        self, path: str | os.PathLike[str], layout: KeyLayout, words: Words, hashes: Words
    ) -> Words:
        """The hashes of saved keys; raises unless keys differ and these modules hash them alike."""
        shapes = words.shape == (len(hashes), layout.width) and words.dtype == np.uint64
        if not shapes or hashes.dtype != np.uint64:
            raise ValueError(f"{path} was altered: keys and hashes do not fit together.")
        if len(words) > self.max_size:
            raise ValueError(
                f"{path} holds {len(words)} keys, and this map at most {self.max_size}: make it "
                "with a larger max_size."
            )
        probe = QueryModule(
            self.in_keys,
            hash_module=self.query_module.hash_modules or None,
            aggregator=self.query_module.aggregator if self.query_module.hash_modules else None,
        )
        found = probe.encode(layout.decode(words)).hashes
        # without modules another version may have hashed in another way
        if probe.hash_modules and not (found == hashes).all():
            raise ValueError(
                f"{path} was written with other hashes: make the map with the same hash modules."
            )
        if len(np.unique(probe.table.insert(words, found)[0])) != len(words):
            raise ValueError(f"{path} was altered: it holds a key twice.")
        return found

    def _read(self, rows: torch.Tensor) -> Any:
        """Rows of the storage, of any batch shape."""
        if rows.ndim == 1:
            found = self.storage.gather(rows)
        else:
            found = self.storage.read(rows) if rows.ndim else self.storage.read_one(int(rows))
        return found if self.collate_fn is None else self.collate_fn(found)

    def _selected(self, value: TensorDictBase) -> TensorDictBase:
        """The entries that are stored."""
        assert self.out_keys is not None  # the caller looked
        try:
            return value.select(*self.out_keys)
        except (KeyError, AttributeError):  # the latter where a tensor is for a group
            _require_named(self.out_keys, value, "value")
            raise

    def _write(self, rows: Any, added: Any, values: TensorDictBase) -> None:
        """Stores the values `[N]` of rows: first new rows in order, then changes."""
        if self.write_fn is not None:
            self._combine(rows, added, values)
            return
        write_rows(self.storage, self.query_module.table, rows, added, values)

    def _combine(self, rows: Any, added: Any, values: TensorDictBase) -> None:
        """Stores values through `write_fn`: all first values of keys, then all second ones, ..."""
        if added.any():
            new = self._made(at(values, np.flatnonzero(added)))
            write_rows(self.storage, self.query_module.table, rows[added], added[added], new)
        left = np.flatnonzero(~added)
        while len(left):
            firsts = self.query_module.table.latest(rows[left[::-1]])[::-1]
            index = torch.from_numpy(rows[left[firsts]])
            new, old = at(values, left[firsts]), self.storage.read(index)
            self.storage.replace(index, self._made(new, old))
            left = left[~firsts]

    def _made(self, new: TensorDictBase, *old: TensorDictBase) -> TensorDictBase:
        """What `write_fn` makes of values: as many rows."""
        assert self.write_fn is not None  # the caller looked
        try:
            made = self.write_fn(new, *old)
        except Exception as error:
            before = f", old {_names(*old)}" if old else ""
            error.add_note(f"write_fn was given new values {_names(new)}{before}.")
            raise
        check_collection("write_fn's result", made)
        if made.batch_size != new.batch_size:
            raise ValueError(
                f"write_fn: expected values of {len(new)} rows, as it was given, got the batch "
                f"size {list(made.batch_size)}."
            )
        return made

    def _note(self, item: TensorDictBase, rows: Any, keys: EncodedKeys) -> None:
        """Writes numbers and hashes into keys."""
        query = self.query_module
        item.set(query.index_key, torch.from_numpy(rows).reshape(item.batch_size))
        hashes = torch.from_numpy(keys.hashes.view(np.int64))
        item.set(query.hash_key, hashes.reshape(item.batch_size))


def _require_entries_of(values: Any, default: TensorDictBase) -> None:
    """Raises unless rows of a default have the entries of values, and no others."""
    if (stored := _names(values)) != (given := _names(default)):
        raise KeyError(f"default has {given}, and values have {stored}: give it the same entries.")
    for key in values.keys(True, True):
        kept, other = values.get(key), default.get(key)
        shapes = list(kept.shape[1:]), list(other.shape[default.ndim :])
        if shapes[0] != shapes[1] or kept.dtype != other.dtype:
            raise ValueError(
                f"default has {key!r} of {other.dtype} {shapes[1]}, and values of {kept.dtype} "
                f"{shapes[0]}: cast or reshape it."
            )


def _require_named(out_keys: Sequence[NestedKey], values: TensorDictBase, owner: str) -> None:
    """Raises for an entry that is to be stored and is not there."""
    known = {as_tuple(key) for key in values.keys(True)}  # groups among them
    for key in out_keys:
        if as_tuple(key) not in known:
            there = ", ".join(_names(values))
            raise KeyError(f"out_keys names {key!r}, and {owner} has {there}.")


def _names(values: Any) -> list[str]:
    """The entries of a tensordict, sorted."""
    return sorted(map(str, values.keys(True, True)))
