"""Prompts and pairs in rectangles."""

import pytest
import torch

from rl_text import ByteTokenizer, PairwiseDataset, PromptData, RewardData

PAIRS = [
    {"prompt": "p", "chosen": "ab", "rejected": "c"},
    {"prompt": "q", "chosen": "d", "rejected": "efg"},
]


def read(kind, source, tmp_path, length=6):
    return kind.from_dataset("train", source, length, tmp_path, tokenizer=ByteTokenizer())


def texts(data):
    return ByteTokenizer().batch_decode(data.input_ids)


def test_prompts_with_labels_and_without(tmp_path):
    source = [{"prompt": "ab", "completion": "cd"}, {"prompt": "e", "completion": "f"}]
    data = read(PromptData, source, tmp_path)
    assert texts(data) == ["abcd", "ef"]
    assert data.batch_size == (2,)
    assert data.labels.equal(data.input_ids)
    alone = data.mask_label(pad_token_id=256)
    assert texts(alone) == ["ab", "e"]
    assert alone.attention_mask.sum(1).tolist() == [2, 1]
    assert texts(data) == ["abcd", "ef"]  # as they were


def test_pairs_are_side_by_side(tmp_path):
    data = read(PairwiseDataset, PAIRS, tmp_path)
    assert texts(data.chosen_data) == ["pab", "qd"]
    assert texts(data.rejected_data) == ["pc", "qefg"]
    assert data.batch_size == (2,)
    assert texts(data[1:].chosen_data) == ["qd"]


def test_hook_leaves_short_and_equal_pairs_out():
    made = PairwiseDataset.pre_tokenization_hook(PAIRS, min_length=1)
    assert made["text"] == ["pab", "qd", "pc", "qefg"]
    assert PairwiseDataset.pre_tokenization_hook(PAIRS)["text"] == []


def test_chosen_and_rejected_of_different_counts_are_refused():
    one, two = (
        RewardData(torch.ones(n, 3).long(), torch.ones(n, 3).long(), batch_size=[n]) for n in (1, 2)
    )
    with pytest.raises(ValueError, match="got 2 chosen and 1 rejected"):
        PairwiseDataset(two, one, batch_size=[])


def test_prompt_longer_than_its_rectangle_is_left_out(tmp_path):
    source = [{"prompt": "abcdefgh", "label": "x"}, {"prompt": "e", "label": "f"}]
    assert texts(read(PromptData, source, tmp_path)) == ["ef"]
