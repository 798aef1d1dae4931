"""Numbers that stand for texts and tensors."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_specs import TensorSpec, Unbounded
from rl_tensordict import NestedKey, UnfitValue
from rl_tensordict.arguments import check_calls, check_integer, check_whole
from rl_text.transforms.texts import texts_of
from rl_transforms import Transform


class Hash(Transform):
    """Writes a 64-bit hash of each text, or of each row of a tensor.

    It is the same on every machine and in every process. Two entries of one hash are equal but
    for a chance of about n² / 2⁶⁵ among n of them.

    Args:
        in_keys: texts ``[*B]``, or tensors ``[*B, *F]``.
        out_keys: int64 ``[*B]``.
        hash_fn: from bytes to an int of 64 bits, instead of BLAKE2.
        seed: another seed, other hashes.
        feature_dims: how many dimensions F of tensors are hashed together.

    Raises:
        TypeError: the function cannot be called, or the seed is no number.
        ValueError: `feature_dims` is below 0, or more than the dimensions of a row.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"state": torch.tensor([[1, 2], [3, 4], [1, 2]])}, [3])
        >>> found = Hash(["state"], ["state_hash"])(batch)["state_hash"]
        >>> bool(found[0] == found[2]), bool(found[0] == found[1])
        (True, False)
    """

    def __init__(
        self,
        in_keys: list[NestedKey],
        out_keys: list[NestedKey] | None = None,
        *,
        hash_fn: Callable[[bytes], int] | None = None,
        seed: int = 0,
        feature_dims: int = 1,
    ) -> None:
        super().__init__(in_keys, out_keys)
        check_calls(hash_fn=hash_fn)
        check_whole("feature_dims", feature_dims, 0)
        self.seed = check_integer("seed", seed)
        self.feature_dims = feature_dims
        self._salt = (self.seed % 2**128).to_bytes(16, "little")
        self._hash = self._blake if hash_fn is None else hash_fn

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Hash the entries of rows ``[*B]``."""
        self._require_features(batch)
        return super().forward(batch)

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Hash the entries of a root ``[*B]``."""
        self._require_features(root)
        return super().reset(root, mask)

    def apply_leaf(self, entry: Any) -> Tensor:
        """Hash texts ``[*B]`` or rows ``[*B, *F]``: int64 ``[*B]``."""
        if isinstance(entry, Tensor):
            shape = entry.shape[: max(0, entry.ndim - self.feature_dims)]
            dense = entry.detach().cpu().contiguous()
            width = entry.shape[len(shape) :].numel()  # of no rows -1 could be any
            flat = dense.view(shape.numel(), width).view(torch.uint8).numpy()
            pieces = [row.tobytes() for row in flat]
            device = entry.device
        else:
            texts, shape = texts_of(entry)
            pieces = [text.encode(errors="surrogatepass") for text in texts]
            device = torch.device("cpu")
        numbers = [_signed(self._hash(piece)) for piece in pieces]
        return torch.tensor(numbers, dtype=torch.int64, device=device).view(shape)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """The spec of hashes, given that of texts or tensors."""
        is_text = spec.dtype is None or not isinstance(spec.dtype, torch.dtype)
        kept = spec.shape if is_text else spec.shape[: max(0, spec.ndim - self.feature_dims)]
        return Unbounded(kept, dtype=torch.int64, device=spec.device)

    def _require_features(self, batch: TensorDictBase) -> None:
        """Raise where several rows would be hashed together."""
        for key in self.in_keys:
            entry = batch.get(key, None)
            has = entry.ndim - batch.ndim if isinstance(entry, Tensor) else self.feature_dims
            if batch.ndim and has < self.feature_dims:
                msg = f"{key!r}: expected {self.feature_dims} dimensions of a row, got {has} in "
                raise UnfitValue(msg + f"{[*entry.shape]}. Pass feature_dims={has}.")

    def _blake(self, data: bytes) -> int:
        return int.from_bytes(blake2b(data, digest_size=8, salt=self._salt).digest(), "little")


def _signed(number: int) -> int:
    """The number of 64 bits with a sign that has the same bits."""
    low = number & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low
