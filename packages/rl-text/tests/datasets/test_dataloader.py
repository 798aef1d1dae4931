"""Batches of a data set: each example once an epoch."""

import threading
from itertools import islice

import numpy as np
import pytest
import torch

from rl_text import (
    ByteTokenizer,
    PairwiseDataset,
    PromptData,
    TokenBatches,
    TokenizedDataset,
    create_infinite_iterator,
    get_dataloader,
)

LETTERS = "abcdefg"


def batches(tmp_path, kind=PromptData, infinite=False, **more):
    source = [{"prompt": a, "label": a, "chosen": "x" + a, "rejected": a} for a in LETTERS]
    names = ("prompt", "label") if kind is PromptData else ("chosen", "rejected")
    source = [{name: one[name] for name in names} for one in source]
    return get_dataloader(
        **{"batch_size": 2, "block_size": 4, "device": "cpu", **more},
        tensorclass_type=kind,
        dataset_name=source,
        infinite=infinite,
        root_dir=tmp_path,
        tokenizer=ByteTokenizer(),
    )


def letters(found):
    return [ByteTokenizer().decode(one.input_ids[:, 0]) for one in found]


@pytest.mark.parametrize("prefetch", [0, 1, 9])
def test_each_example_comes_once_an_epoch_in_a_new_order(tmp_path, prefetch):
    made = batches(tmp_path, prefetch=prefetch)
    epochs = ["".join(letters(made)) for _ in range(9)]
    assert all(len(set(epoch)) == 6 for epoch in epochs)
    assert len(set(epochs)) > 1
    assert (len(made), made.left_out) == (3, 1)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_same_generator_gives_the_same_order(tmp_path, prefetch):
    orders = [
        letters(batches(tmp_path, prefetch=prefetch, generator=torch.Generator().manual_seed(5)))
        for _ in range(2)
    ]
    assert orders[0] == orders[1]


def test_pairs_stay_together(tmp_path):
    for batch in batches(tmp_path, PairwiseDataset, batch_size=3):
        assert batch.batch_size == (3,)
        assert batch.chosen_data.input_ids[:, 1].equal(batch.rejected_data.input_ids[:, 0])


def test_endless_batches_go_on_after_an_epoch(tmp_path):
    found = letters(islice(batches(tmp_path, infinite=True), 7))
    assert len(set("".join(found[:3]))) == 6
    assert len(found) == 7


def test_reader_stops_when_nobody_iterates_any_more(tmp_path):
    before = threading.active_count()
    iterator = iter(batches(tmp_path, prefetch=2))
    next(iterator)
    assert threading.active_count() == before + 1
    iterator.close()
    assert threading.active_count() == before


def test_iterator_that_has_ended_is_refused():
    used = create_infinite_iterator(iter([1, 2]))
    assert [next(used), next(used)] == [1, 2]
    with pytest.raises(ValueError, match="gives no more items"):
        next(used)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"batch_size": 8}, ValueError, "8 is more than the 7 examples"),
        ({"batch_size": 0}, ValueError, "batch_size: expected at least 1"),
        ({"prefetch": -1}, ValueError, "prefetch: expected at least 0"),
        ({"kind": dict}, TypeError, "expected PromptData or PairwiseDataset"),
        ({"infinite": 1}, TypeError, "infinite: expected True or False"),
    ],
)
def test_settings_are_checked(tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        batches(tmp_path, **change)


def test_what_is_no_data_set_and_no_class_is_named():
    with pytest.raises(TypeError, match="data: expected a tokenised data set"):
        TokenBatches([1], 1, 8, PromptData)
    for given in (dict, 3, torch.zeros(2)):
        with pytest.raises(TypeError, match="tensorclass_type: expected PromptData or"):
            get_dataloader(1, 8, given, "cpu", [{"prompt": "a"}])
    with pytest.raises(TypeError, match="iterator: expected what can be iterated over"):
        next(create_infinite_iterator(3))


def test_a_tokenised_data_set_names_the_columns_that_it_lacks():
    with pytest.raises(KeyError, match=r"arrays: .* are missing"):
        TokenizedDataset({}, {})
    with pytest.raises(TypeError, match="arrays: expected columns of token numbers"):
        TokenizedDataset(torch.zeros(2), {})
    arrays = {"input_ids": np.arange(3), "lengths": np.array([3])}
    with pytest.raises(KeyError, match=r"about: .*'stats', 'pad_token_id'.* are missing"):
        TokenizedDataset(arrays, {})
