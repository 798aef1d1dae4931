"""Batches of a tokenised data set, in another order each epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from rl_tensordict import CPU, UnfitValue
from rl_tensordict.arguments import as_device, check_flags, check_type, check_whole, shown
from rl_text.datasets.preferences import PairwiseDataset, PromptData
from rl_text.datasets.tokenized import TokenizedDataset
from rl_text.tokenizers.protocol import TextTokenizer


class TokenBatches:
    """One epoch of batches each time it is iterated over, in a new order.

    Args:
        data: a tokenised data set.
        batch_size: examples, or pairs, of a batch.
        block_size: L, tokens of an example.
        tensorclass_type: `PromptData` or `PairwiseDataset`.
        device: where batches are moved.
        prefetch: batches that a thread reads ahead.
        generator: source of the order; torch's own if None.

    Attributes:
        left_out: examples that an epoch leaves out, because they fill no batch.

    Raises:
        ValueError: there is no whole batch, or a number is out of range.

    Example:
        >>> import tempfile
        >>> from rl_text import ByteTokenizer
        >>> examples = [{"prompt": letter, "label": "x"} for letter in "abcde"]
        >>> data = PromptData.load(
        ...     "train", dataset_name=examples, root_dir=tempfile.mkdtemp(),
        ...     tokenizer=ByteTokenizer(),
        ... )
        >>> batches = TokenBatches(data, 2, 8, PromptData)
        >>> len(batches), batches.left_out, next(iter(batches)).input_ids.shape
        (2, 1, torch.Size([2, 8]))
    """

    def __init__(  # noqa: PLR0913 - the arguments are those of get_dataloader
        self,
        data: TokenizedDataset,
        batch_size: int,
        block_size: int,
        tensorclass_type: type[Any],
        device: torch.device | str = "cpu",
        *,
        prefetch: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        check_whole("batch_size", batch_size, 1)
        check_whole("block_size", block_size, 1)
        check_whole("prefetch", prefetch, 0)
        check_type("data", data, TokenizedDataset, "a tokenised data set, as PromptData.load gives")
        _check_class(tensorclass_type)
        self.data, self.batch_size, self.block_size = data, batch_size, block_size
        self.tensorclass_type = tensorclass_type
        self.device = as_device("device", device)
        self.prefetch = prefetch
        self.generator = generator
        self._count = len(data) // (2 if issubclass(tensorclass_type, PairwiseDataset) else 1)
        self.left_out = self._count % batch_size
        if self._count < batch_size:
            msg = (
                f"batch_size: {batch_size} is more than the {self._count} examples that there are."
            )
            raise UnfitValue(msg)

    def __len__(self) -> int:
        return self._count // self.batch_size

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(self._count, generator=self.generator, device=CPU)
        whole = order[: len(self) * self.batch_size].split(self.batch_size)
        if not self.prefetch:
            yield from map(self._batch, whole)
            return
        with ThreadPoolExecutor(1) as reader:
            ahead: deque[Future[Any]] = deque()
            try:
                for rows in whole:
                    ahead.append(reader.submit(self._batch, rows))
                    if len(ahead) > self.prefetch:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for batch in ahead:
                    batch.cancel()

    def _batch(self, rows: torch.Tensor) -> Any:
        return self.tensorclass_type.take(self.data, rows, self.block_size).to(self.device)


def get_dataloader(  # noqa: PLR0913 - the arguments are the seed's
    batch_size: int,
    block_size: int,
    tensorclass_type: type[Any],
    device: torch.device | str,
    dataset_name: Any = None,
    infinite: bool = True,
    prefetch: int = 0,
    split: str = "train",
    root_dir: str | Path | None = None,
    from_disk: bool = False,
    num_workers: int | None = None,
    *,
    tokenizer: TextTokenizer | None = None,
    generator: torch.Generator | None = None,
) -> Any:
    """Read batches of prompts or pairs from a data set that is tokenised once.

    Args:
        batch_size: examples of a batch; a last one that is not whole is left out.
        block_size: L, tokens of an example.
        tensorclass_type: `PromptData` or `PairwiseDataset`.
        device: where batches are moved.
        dataset_name: a data set, see `read_examples`.
        infinite: begin again after each epoch.
        prefetch: batches that a thread reads ahead.
        split: which part.
        root_dir: where the tokenised copy is kept.
        from_disk: the name is that of a folder.
        num_workers: has no effect.
        tokenizer: GPT-2's by default.
        generator: source of the order.

    Returns:
        An iterator without an end, or `TokenBatches`.

    Raises:
        TypeError: batches cannot be of that class.
        ValueError: there is no whole batch, or a number is out of range.

    Example:
        >>> import tempfile
        >>> from rl_text import ByteTokenizer, PromptData
        >>> loader = get_dataloader(
        ...     2, 8, PromptData, "cpu", [{"prompt": "a"}, {"prompt": "b"}],
        ...     root_dir=tempfile.mkdtemp(), tokenizer=ByteTokenizer(),
        ... )
        >>> [len(next(loader)) for _ in range(3)]
        [2, 2, 2]
    """
    check_flags(infinite=infinite, from_disk=from_disk)
    _check_class(tensorclass_type)
    data = tensorclass_type.load(
        split,
        dataset_name=dataset_name,
        max_length=block_size,
        root_dir=root_dir,
        from_disk=from_disk,
        num_workers=num_workers,
        tokenizer=tokenizer,
    )
    batches = TokenBatches(
        data,
        batch_size,
        block_size,
        tensorclass_type,
        device,
        prefetch=prefetch,
        generator=generator,
    )
    return create_infinite_iterator(batches) if infinite else batches


def _check_class(tensorclass_type: Any) -> None:
    if not any(tensorclass_type is one for one in (PromptData, PairwiseDataset)):
        given = shown(tensorclass_type)
        msg = f"tensorclass_type: expected PromptData or PairwiseDataset, got {given}."
        raise TypeError(msg)


def create_infinite_iterator(iterator: Iterable[Any]) -> Iterator[Any]:
    """Iterate over something again and again.

    Args:
        iterator: what can be iterated over several times, as a list or `TokenBatches`.

    Yields:
        Its items, endlessly.

    Raises:
        ValueError: it has no item, or none the second time.

    Example:
        >>> from itertools import islice
        >>> list(islice(create_infinite_iterator([1, 2]), 5))
        [1, 2, 1, 2, 1]
    """
    check_type("iterator", iterator, Iterable, "what can be iterated over, as a list")
    while True:
        is_empty = True
        for item in iterator:
            is_empty = False
            yield item
        if is_empty:
            msg = (
                f"iterator: a {type(iterator).__name__} gives no more items. Pass what can be "
                "iterated over again."
            )
            raise UnfitValue(msg)
