"""Numbers for rows of a tensordict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_calls, check_flags, check_type, key_list
from rl_tensordict.types import Flags, Words
from rl_trees.hashing.sip_hash import SipHash
from rl_trees.map.key_layout import KeyLayout, columns_of
from rl_trees.table.key_table import KeyTable

HashFunction = Callable[[torch.Tensor], torch.Tensor]


class EncodedKeys(NamedTuple):
    """Keys of a batch as a table takes them."""

    words: Words  # uint64 [N, width]
    hashes: Words  # uint64 [N]


class QueryModule(TensorDictModuleBase):  # type: ignore[misc]
    """Numbers the rows of a tensordict by some of their entries: equal rows have equal numbers.

    The number is found from a hash. All bytes of the key are kept and compared: a poor hash costs
    time, never a wrong number.

    Args:
        in_keys: The entries that make the key.
        index_key: Where numbers are written.
        hash_key: Where hashes are written.
        hash_module: Hashes an entry `[N, ...]` to int64 `[N]`; one for all entries, copied for
            each, or a list of one for each. Several hashes are hashed once more. Unless given,
            all bytes of the key are hashed at once by multiplications and shifts, which takes a
            third of the time of `SipHash`.
        hash_to_int: Numbers hashes in place of the keys, such as `HashToInt`; then keys of one
            hash are one.
        aggregator: Hashes the hashes `[N, K]` of several entries. The `hash_module` if a single
            one is given, else `SipHash`.
        clone: Write to a shallow copy of the input.
        canonical: Take -0.0 as 0.0, and every NaN as the same one. Without it bytes decide.

    Raises:
        ValueError: No entries, or a list of another length.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> rows = TensorDict(
        ...     {"row": torch.tensor([1, 1, 1, 2]), "column": torch.tensor([3, 3, 2, 3])}, [4]
        ... )
        >>> QueryModule(["row", "column"], index_key="index")(rows)["index"]
        tensor([0, 0, 1, 2])
    """

    def __init__(  # noqa: PLR0913 - the arguments that the seed names
        self,
        in_keys: Sequence[NestedKey],
        index_key: NestedKey = "_index",
        hash_key: NestedKey = "_hash",
        *,
        hash_module: HashFunction | Sequence[HashFunction] | None = None,
        hash_to_int: Callable[..., torch.Tensor] | None = None,
        aggregator: HashFunction | None = None,
        clone: bool = False,
        canonical: bool = False,
    ) -> None:
        super().__init__()
        names = key_list("in_keys", [in_keys] if isinstance(in_keys, str) else in_keys)
        check_calls(hash_to_int=hash_to_int, aggregator=aggregator)
        check_flags(clone=clone, canonical=canonical)
        if not names:
            raise ValueError("in_keys is empty: name the entries that make a key.")
        self.in_keys = names
        self.out_keys = [index_key, hash_key]
        self.index_key, self.hash_key = index_key, hash_key
        if hash_module is None and aggregator is not None:
            hash_module = [SipHash() for _ in names]
        self.hash_modules = _one_each(hash_module, names)
        for place, module in enumerate(self.hash_modules):
            if isinstance(module, torch.nn.Module):  # so that its state is saved
                self.add_module(f"hash_{place}", module)
        self.aggregator = aggregator or _single(hash_module)
        self.hash_to_int = hash_to_int
        self.clone = clone
        self.canonical = canonical
        self.layout: KeyLayout | None = None
        self.table = KeyTable(0)

    @property
    def compares_keys(self) -> bool:
        """Whether whole keys are compared, and not hashes alone."""
        return self.hash_to_int is None

    def forward(
        self,
        tensordict: TensorDictBase,
        *,
        extend: bool = True,
        write_hash: bool = True,
        clone: bool | None = None,
    ) -> TensorDictBase:
        """Writes numbers and hashes.

        Args:
            tensordict: Rows `[*B]` with the entries of the key.
            extend: Give unknown keys numbers.
            write_hash: Write hashes as well.
            clone: In place of the constructor's.

        Returns:
            The tensordict, or a shallow copy, with int64 `[*B]` numbers.

        Raises:
            KeyError: An entry is missing, or, without `extend`, a key is unknown.
            ValueError: An entry of another dtype or shape than the first ones.
        """
        keys = self.encode(tensordict)
        hashes = torch.from_numpy(keys.hashes.view(np.int64))
        if self.hash_to_int is not None:
            numbers = self.hash_to_int(hashes, extend=extend)
        elif extend:
            numbers = torch.from_numpy(self.table.insert(*keys)[0])
        else:
            numbers = torch.from_numpy(self.table.find(*keys))
            require_known(numbers >= 0, tensordict.batch_size)
        clone = self.clone if clone is None else clone
        out = tensordict.copy() if clone else tensordict
        out.set(self.index_key, numbers.reshape(tensordict.batch_size))
        if write_hash:
            out.set(self.hash_key, hashes.reshape(tensordict.batch_size))
        return out

    def encode(self, tensordict: TensorDictBase) -> EncodedKeys:
        """The keys of rows; the first call fixes dtypes and shapes."""
        columns = columns_of(tensordict, self.in_keys, canonical=self.canonical)
        if self.layout is None:
            self.arrange(KeyLayout.of(self.in_keys, columns))
        assert self.layout is not None  # arranged
        words = self.layout.encode(columns)
        if not self.hash_modules:
            return EncodedKeys(words, self.table.hash(words))
        hashes = [h(x) for h, x in zip(self.hash_modules, columns, strict=True)]
        whole = hashes[0] if len(hashes) == 1 else self.aggregator(torch.stack(hashes, -1))
        bits = whole.detach().cpu().to(torch.int64).contiguous().numpy().view(np.uint64)
        if bits.shape != (len(words),):
            raise ValueError(
                f"hashes must be int64 [{len(words)}], one for each row, got {list(bits.shape)}."
            )
        return EncodedKeys(words, bits)

    def arrange(self, layout: KeyLayout) -> None:
        """Fixes dtypes and shapes of the key, and forgets all keys."""
        self.table = KeyTable(layout.width, self.table.max_size)
        self.layout = layout

    def get_extra_state(self) -> dict[str, Any]:
        """The layout as plain lists, and keys and hashes in the order of their numbers."""
        return {
            "layout": None if self.layout is None else self.layout.to_json(),
            "words": torch.from_numpy(self.table.words.view(np.int64).copy()),
            "hashes": torch.from_numpy(self.table.hashes.view(np.int64).copy()),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Numbers the keys of a state instead of those there are."""
        check_type("state", state, dict, "what get_extra_state returned")
        if missing := {"layout", "words", "hashes"} - set(state):
            raise KeyError(f"state: {sorted(missing)} are missing. Pass what get_extra_state gave.")
        if state["layout"] is None:
            self.layout, self.table = None, KeyTable(0, self.table.max_size)
            return
        self.arrange(KeyLayout.from_json(state["layout"]))
        words, hashes = (state[name].numpy().view(np.uint64) for name in ("words", "hashes"))
        if not self.hash_modules:  # another version may have hashed in another way
            hashes = self.table.hash(words)
        self.table.insert(words, hashes)


def _one_each(
    hash_module: HashFunction | Sequence[HashFunction] | None, names: list[NestedKey]
) -> list[HashFunction]:
    """A hash function for each entry; none if the key is hashed at once."""
    if hash_module is None:
        return []
    if not isinstance(hash_module, Sequence):
        check_calls(hash_module=hash_module)
        return [hash_module] if len(names) == 1 else [deepcopy(hash_module) for _ in names]
    if len(hash_module) != len(names):
        raise ValueError(
            f"{len(hash_module)} hash modules were given for {len(names)} entries of in_keys: "
            "give one for each, or a single one for all."
        )
    return list(hash_module)


def _single(hash_module: HashFunction | Sequence[HashFunction] | None) -> HashFunction:
    """What hashes hashes, unless given."""
    given = hash_module is not None and not isinstance(hash_module, Sequence)
    return hash_module if given else SipHash()  # type: ignore[return-value]


def first_of(flags: Flags, batch: torch.Size) -> tuple[int, ...]:
    """The index in a batch of the first flag that is set."""
    return tuple(int(i) for i in np.unravel_index(int(flags.argmax()), batch)) if batch else ()


def require_known(known: torch.Tensor, batch: torch.Size) -> None:
    """Raises if a key is unknown."""
    # known: bool `[N]`.
    if bool(known.all()):
        return
    raise KeyError(
        f"{int((~known).sum())} of {len(known)} keys are unknown, the first at index "
        f"{first_of(~known.numpy(), batch)}: ask contains() first, pass a default, or store them."
    )
