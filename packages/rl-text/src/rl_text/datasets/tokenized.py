"""A tokenised data set in mapped files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rl_tensordict import CPU, UnfitValue, as_tensor
from rl_tensordict.arguments import check_type, check_whole, shown
from rl_text.datasets.columns import NumpyColumns
from rl_text.tokens.flat import markers
from rl_text.tokens.names import ATTENTION_MASK, INPUT_IDS, LOSS_MASK

LENGTHS, PROMPT_RINDEX = "lengths", "prompt_rindex"


class TokenizedDataset:
    """Examples as tokens end to end in mapped files, read as flat batches or as rectangles.

    Attributes:
        lengths: int64 ``[S]``, tokens of each example.
        stats: how many samples and tokens there are, and how many were left out as too long.
        pad_token_id: what cells without a token hold; None where the tokenizer has none.

    Example:
        >>> import tempfile
        >>> from rl_text import ByteTokenizer, TensorDictTokenizer, TokenizedDatasetLoader
        >>> loader = TokenizedDatasetLoader(
        ...     "train", 8, [{"text": "ab"}, {"text": "cde"}], TensorDictTokenizer,
        ...     root_dir=tempfile.mkdtemp(), tokenizer=ByteTokenizer(),
        ... )
        >>> data = loader.load()
        >>> data.flat([1, 0])["input_ids"].tolist()
        [99, 100, 101, 97, 98]
        >>> data.padded(length=4)["attention_mask"].sum(-1).tolist()
        [2, 3]
    """

    def __init__(self, arrays: NumpyColumns, about: dict[str, Any]) -> None:
        check_type("arrays", arrays, Mapping, "columns of token numbers, as a loader writes them")
        check_type("about", about, Mapping, "what a loader wrote of them")
        for name, given, keys in (
            ("arrays", arrays, (INPUT_IDS, LENGTHS)),
            ("about", about, ("stats", "pad_token_id")),
        ):
            if missing := [key for key in keys if key not in given]:
                msg = f"{name}: {missing} are missing, there are {sorted(map(str, given))}. "
                raise KeyError(msg + "Use TokenizedDatasetLoader, which makes data sets.")
        for key in (INPUT_IDS, LENGTHS):
            check_type(f"arrays[{key!r}]", arrays[key], np.ndarray, "an array of whole numbers")
        self._tokens = arrays[INPUT_IDS]
        self.lengths = torch.from_numpy(arrays[LENGTHS].astype(np.int64))
        self._ends = self.lengths.cumsum(0)
        self._columns = {
            name: array for name, array in arrays.items() if name not in (INPUT_IDS, LENGTHS)
        }
        self.stats: dict[str, int] = about["stats"]
        self.pad_token_id: int | None = about["pad_token_id"]

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"TokenizedDataset({self.stats})"

    def column(self, name: str, rows: Any = None) -> Tensor:
        """One number of each example.

        Args:
            name: as ``"prompt_rindex"``.
            rows: which examples; all by default.

        Raises:
            KeyError: there is none of that name.
        """
        if name not in self._columns:
            msg = f"there is no column {name!r}: there are {sorted(self._columns)}."
            raise KeyError(msg)
        return torch.from_numpy(self._columns[name][chosen_rows(rows, len(self)).numpy()])

    def flat(self, rows: Any = None) -> TensorDict:
        """Read examples end to end, one row a token.

        Args:
            rows: numbers of examples, a slice, or flags; all by default.

        Returns:
            Tokens ``[N]`` as of `flat_tokens`; prompts are not learnt from where the data set has
            them. The id of an example is its number: the same wherever it is read.

        Raises:
            IndexError: there is no such example.
        """
        chosen = chosen_rows(rows, len(self))
        lengths = self.lengths[chosen]
        marks = markers(lengths, chosen)
        steps = marks["collector"]["traj_step"]
        first = torch.repeat_interleave(self._ends[chosen] - lengths, lengths)
        tokens = torch.from_numpy(self._tokens[(first + steps).numpy()].astype(np.int64))
        learnt = torch.ones(len(steps), dtype=torch.bool, device=CPU)
        if PROMPT_RINDEX in self._columns:
            learnt = steps > torch.repeat_interleave(self.column(PROMPT_RINDEX, chosen), lengths)
        leaves: dict[str, Any] = {INPUT_IDS: tokens, LOSS_MASK: learnt, **marks}
        return TensorDict(leaves, [len(steps)], names=["time"])

    def padded(self, rows: Any = None, length: int | None = None) -> TensorDict:
        """Read examples as a rectangle, as the tokenizer would have padded them.

        Args:
            rows: numbers of examples, a slice, or flags; all by default.
            length: L; that of the longest one by default. Longer examples are cut.

        Returns:
            A tensordict ``[S]`` with int64 ``"input_ids"`` and ``"attention_mask"`` ``[S, L]`` and
            the other columns.

        Raises:
            IndexError: there is no such example.
            ValueError: a length below 1, or a cell without a token and no pad token.
        """
        if length is not None:
            check_whole("length", length, 1)
        chosen = chosen_rows(rows, len(self))
        lengths = self.lengths[chosen]
        width = length if length is not None else int(lengths.max()) if len(lengths) else 0
        cells = torch.arange(width, device=CPU)
        real = cells < lengths.unsqueeze(1)
        pad = self.pad_token_id
        if pad is None and not bool(real.all()):
            msg = (
                "examples differ in length, and the tokenizer had no pad token. Set "
                "tokenizer.pad_token, as tokenizer.pad_token = tokenizer.eos_token, and load "
                "again; or read them flat."
            )
            raise UnfitValue(msg)
        places = ((self._ends[chosen] - lengths).unsqueeze(1) + cells).masked_fill(~real, 0)
        tokens = torch.from_numpy(self._tokens[places.numpy()].astype(np.int64))
        made = {
            INPUT_IDS: tokens if pad is None else tokens.masked_fill(~real, pad),
            ATTENTION_MASK: real.long(),
            **{name: self.column(name, chosen) for name in self._columns},
        }
        return TensorDict(made, [len(chosen)])

    def __getitem__(self, rows: Any) -> TensorDict:
        return self.padded(rows)


def chosen_rows(rows: Any, count: int) -> Tensor:
    """Numbers of some of so many examples, int64 ``[n]``."""
    if rows is None:
        return torch.arange(count, device=CPU)
    if isinstance(rows, slice):
        return torch.arange(count, device=CPU)[rows]
    found = as_tensor(rows)
    if found.dtype == torch.bool and found.shape == (count,):
        return found.nonzero().squeeze(1)
    if (found.is_floating_point() and found.numel()) or found.dtype == torch.bool:
        msg = f"rows: expected numbers of examples, a slice or flags, got {shown(rows)}."
        raise UnfitValue(msg)
    found = found.long().reshape(-1)
    if len(found) and not (int(found.min()) >= 0 and int(found.max()) < count):
        msg = f"rows: expected numbers from 0 to {count - 1}, got {found.tolist()[:8]}."
        raise IndexError(msg)
    return found
