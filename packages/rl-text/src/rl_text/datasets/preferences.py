"""Prompts, rewarded texts, and pairs of which one is preferred, as tensorclasses."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Self

import torch
from tensordict import TensorClass
from torch import Tensor

from rl_tensordict import CPU, UnfitValue
from rl_tensordict.arguments import check_type, shown
from rl_text.datasets.examples import ListColumns, pair_texts, prompt_columns, read_examples
from rl_text.datasets.loader import TokenizedDatasetLoader
from rl_text.datasets.tokenized import PROMPT_RINDEX, TokenizedDataset, chosen_rows
from rl_text.tokenizers.prompt_tokenizer import PromptTensorDictTokenizer
from rl_text.tokenizers.protocol import TextTokenizer
from rl_text.tokenizers.tensordict_tokenizer import TensorDictTokenizer
from rl_text.tokens.names import ATTENTION_MASK, INPUT_IDS

PROMPTS = "CarperAI/openai_summarize_tldr"
COMPARISONS = "CarperAI/openai_summarize_comparisons"


class PromptData(TensorClass):  # type: ignore[misc]
    """Prompts with what follows them, in a rectangle.

    Attributes:
        input_ids: int64 ``[B, L]``.
        attention_mask: int64 ``[B, L]``, 1 for real tokens.
        prompt_rindex: int64 ``[B]``, the place of the last token of the prompt.
        labels: int64 ``[B, L]``, what is to be written.
        logits: float ``[B, L, V]``, of a model.
        loss: float, of a model.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[5, 6, 7]])
        >>> data = PromptData(ids, torch.ones_like(ids), torch.tensor([1]), batch_size=[1])
        >>> data.mask_label(pad_token_id=0).input_ids
        tensor([[5, 6, 0]])
    """

    summary = __doc__

    input_ids: Tensor
    attention_mask: Tensor
    prompt_rindex: Tensor
    labels: Tensor | None = None
    logits: Tensor | None = None
    loss: Tensor | None = None

    def __post_init__(self) -> None:
        check_texts(self)
        check_ends(self)

    def mask_label(self, pad_token_id: int = 50256) -> Self:
        """Hide what follows the prompt.

        Args:
            pad_token_id: what is in its place.

        Returns:
            The prompts alone.

        Raises:
            ValueError: there is not one end for each prompt.
            TypeError: the ends of prompts are no whole numbers.
        """
        check_ends(self)
        cells = torch.arange(self.input_ids.shape[-1], device=self.input_ids.device)
        is_prompt = cells <= self.prompt_rindex.unsqueeze(-1)
        return type(self)(
            input_ids=self.input_ids.masked_fill(~is_prompt, pad_token_id),
            attention_mask=self.attention_mask * is_prompt,
            prompt_rindex=self.prompt_rindex,
            batch_size=self.batch_size,
        )

    @classmethod
    def load(cls, split: str, **given: Any) -> TokenizedDataset:
        """Tokenise prompts and labels once; arguments are those of `from_dataset`."""
        return _load(split, PromptTensorDictTokenizer, PROMPTS, prompt_columns, **given)

    @classmethod
    def take(cls, data: TokenizedDataset, rows: Any = None, length: int | None = None) -> Self:
        """Read some examples of a tokenised data set.

        Args:
            data: what `load` returned.
            rows: which; all by default.
            length: L.
        """
        check_type("data", data, TokenizedDataset, "prompts as PromptData.load gives them")
        found = data.padded(rows, length)
        return cls(
            input_ids=found[INPUT_IDS],
            attention_mask=found[ATTENTION_MASK],
            prompt_rindex=data.column(PROMPT_RINDEX, rows),
            labels=found[INPUT_IDS],
            batch_size=found.batch_size,
        )

    @classmethod
    def from_dataset(  # noqa: PLR0913 - the arguments are the seed's
        cls,
        split: str,
        dataset_name: Any = None,
        max_length: int = 550,
        root_dir: str | Path | None = None,
        from_disk: bool = False,
        num_workers: int | None = None,
        *,
        tokenizer: TextTokenizer | None = None,
    ) -> Self:
        """Read a data set of prompts, each with a label or completion.

        Args:
            split: which part.
            dataset_name: a data set, see `read_examples`.
            max_length: L; longer examples are left out.
            root_dir: where the tokenised copy is kept.
            from_disk: the name is that of a folder.
            num_workers: has no effect.
            tokenizer: GPT-2's by default.

        Returns:
            All of its prompts.
        """
        given = {"dataset_name": dataset_name, "root_dir": root_dir, "from_disk": from_disk}
        given |= {"max_length": max_length, "num_workers": num_workers, "tokenizer": tokenizer}
        return cls.take(cls.load(split, **given), None, max_length)


class RewardData(TensorClass):  # type: ignore[misc]
    """Texts and how much they are worth.

    Attributes:
        input_ids: int64 ``[B, L]``.
        attention_mask: int64 ``[B, L]``.
        rewards: float ``[B, L]``, of each token.
        end_scores: float ``[B]``, of the last one.

    Example:
        >>> import torch
        >>> ids = torch.tensor([[5, 6, 7]])
        >>> RewardData(ids, torch.ones_like(ids), batch_size=[1]).rewards is None
        True
    """

    summary = __doc__

    input_ids: Tensor
    attention_mask: Tensor
    rewards: Tensor | None = None
    end_scores: Tensor | None = None

    def __post_init__(self) -> None:
        check_texts(self)


class PairwiseDataset(TensorClass):  # type: ignore[misc]
    """Pairs of texts of one prompt, of which the first was preferred.

    Attributes:
        chosen_data: `RewardData` ``[B]``.
        rejected_data: `RewardData` ``[B]``.

    Example:
        >>> import tempfile
        >>> from rl_text import ByteTokenizer
        >>> pairs = [{"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}]
        >>> data = PairwiseDataset.from_dataset(
        ...     "train", pairs, 12, tempfile.mkdtemp(), tokenizer=ByteTokenizer()
        ... )
        >>> ByteTokenizer().decode(data.chosen_data.input_ids[0])
        '2 + 2 = 4'
    """

    summary = __doc__

    chosen_data: RewardData
    rejected_data: RewardData

    def __post_init__(self) -> None:
        for name in ("chosen_data", "rejected_data"):
            check_type(name, getattr(self, name), RewardData, "RewardData")
        counts = [len(one.input_ids) for one in (self.chosen_data, self.rejected_data)]
        if counts[0] != counts[1]:
            msg = (
                f"expected a rejected text for each chosen one: got {counts[0]} chosen and "
                f"{counts[1]} rejected."
            )
            raise UnfitValue(msg)
        if self.batch_size != (counts[0],):
            msg = f"batch_size: expected {counts[:1]}, one for each text, got "
            raise UnfitValue(msg + f"{[*self.batch_size]}.")

    @classmethod
    def load(cls, split: str, **given: Any) -> TokenizedDataset:
        """Tokenise pairs once; arguments are those of `from_dataset`.

        Returns:
            2S texts: of pair i the chosen one is number i, and the rejected one number S + i.

        Warns:
            UserWarning: texts of a pair are equal, as they are cut or were: of such a pair nothing
                is learned.
        """
        data = _load(split, TensorDictTokenizer, COMPARISONS, pair_texts, **given)
        _warn_of_equal(data)
        return data

    @classmethod
    def take(cls, data: TokenizedDataset, rows: Any = None, length: int | None = None) -> Self:
        """Read some pairs of a tokenised data set.

        Args:
            data: what `load` returned.
            rows: numbers of pairs, a slice, or flags; all by default.
            length: L.

        Raises:
            IndexError: there is no such pair.
        """
        check_type("data", data, TokenizedDataset, "pairs as PairwiseDataset.load gives them")
        half = len(data) // 2
        pairs = chosen_rows(rows, half)
        width = length if length is not None else int(data.lengths.max())
        found = [data.padded(pairs + begin, width) for begin in (0, half)]
        chosen, rejected = (
            RewardData(one[INPUT_IDS], one[ATTENTION_MASK], batch_size=one.batch_size)
            for one in found
        )
        return cls(chosen, rejected, batch_size=[len(pairs)])

    @staticmethod
    def pre_tokenization_hook(dataset: Any, min_length: int = 5) -> ListColumns:
        """Write the texts of pairs, the chosen ones first; see `pair_texts`."""
        return pair_texts(read_examples(dataset), min_length)

    @classmethod
    def from_dataset(  # noqa: PLR0913 - the arguments are the seed's
        cls,
        split: str,
        dataset_name: Any = None,
        max_length: int = 550,
        root_dir: str | Path | None = None,
        from_disk: bool = False,
        num_workers: int | None = None,
        *,
        tokenizer: TextTokenizer | None = None,
    ) -> Self:
        """Read a data set of prompts, each with a chosen and a rejected text.

        Args:
            split: which part.
            dataset_name: a data set, see `read_examples`.
            max_length: L; longer texts are cut, and pairs that are equal then are warned of.
            root_dir: where the tokenised copy is kept.
            from_disk: the name is that of a folder.
            num_workers: has no effect.
            tokenizer: GPT-2's by default.

        Returns:
            All of its pairs.
        """
        given = {"dataset_name": dataset_name, "root_dir": root_dir, "from_disk": from_disk}
        given |= {"max_length": max_length, "num_workers": num_workers, "tokenizer": tokenizer}
        return cls.take(cls.load(split, **given), None, max_length)


# tensordict replaces the docstrings of its classes by their signatures
for _class in (PromptData, RewardData, PairwiseDataset):
    _class.__doc__ = _class.summary


def check_texts(data: Any) -> None:
    """Raise unless there is a number and a mark for each cell."""
    ids, mask = data.input_ids, data.attention_mask
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex():
        msg = f"input_ids: expected whole numbers, got {shown(ids)}."
        raise TypeError(msg)
    check_type("attention_mask", mask, Tensor, "a tensor of 1 and 0")
    if mask.shape != ids.shape:
        msg = f"attention_mask: expected the shape of input_ids, {[*ids.shape]}, got "
        raise UnfitValue(msg + f"{[*mask.shape]}.")


def check_ends(data: PromptData) -> None:
    """Raise unless there is one place for each prompt."""
    ends, shape = data.prompt_rindex, data.input_ids.shape[:-1]
    if not isinstance(ends, Tensor) or ends.is_floating_point() or ends.is_complex():
        msg = f"prompt_rindex: expected whole numbers {[*shape]}, got {shown(ends)}."
        raise TypeError(msg)
    if ends.shape != shape:
        msg = f"prompt_rindex: expected {[*shape]}, a place for each prompt, got {[*ends.shape]}."
        raise UnfitValue(msg)


def _warn_of_equal(data: TokenizedDataset) -> None:
    """Warn of pairs whose texts are equal."""
    half = len(data) // 2
    lengths = data.lengths[:half]
    alike = (lengths == data.lengths[half:]).nonzero().squeeze(1)
    if not len(alike):
        return
    chosen, rejected = (data.flat(alike + begin)[INPUT_IDS] for begin in (0, half))
    pairs = torch.arange(len(alike), device=CPU).repeat_interleave(lengths[alike])
    other = pairs[chosen != rejected]
    is_equal = torch.ones(len(alike), dtype=torch.bool, device=CPU).index_fill_(0, other, False)
    equal = alike[is_equal]
    if len(equal):
        longest = int(lengths[equal].max())
        msg = (
            f"{len(equal)} of {half} pairs have equal texts of at most {longest} tokens, the first "
            f"is pair {int(equal[0])}: nothing is learned from them. Texts are cut at max_length, "
            "from the end: raise it, shorten the prompts, or leave such pairs out."
        )
        warnings.warn(msg, UserWarning, stacklevel=3)


def _load(  # noqa: PLR0913 - the arguments are the seed's
    split: str,
    tokenizer_fn: Any,
    default: str,
    hook: Any,
    *,
    dataset_name: Any = None,
    max_length: int = 550,
    root_dir: str | Path | None = None,
    from_disk: bool = False,
    num_workers: int | None = None,
    tokenizer: TextTokenizer | None = None,
) -> TokenizedDataset:
    return TokenizedDatasetLoader(
        split,
        max_length,
        default if dataset_name is None else dataset_name,
        tokenizer_fn,
        hook,
        root_dir,
        from_disk,
        num_workers=num_workers,
        tokenizer=tokenizer,
    ).load()
