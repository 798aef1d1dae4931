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


@pytest.mark.parametrize("rows", [[False, True], torch.tensor([False, True]), slice(1, 2), [1], 1])
def test_pairs_are_taken_by_numbers_slices_or_flags(tmp_path, rows):
    data = PairwiseDataset.load(
        "train", dataset_name=PAIRS, root_dir=tmp_path, tokenizer=ByteTokenizer()
    )
    taken = PairwiseDataset.take(data, rows)
    assert texts(taken.chosen_data) == ["qd"]
    assert texts(taken.rejected_data) == ["qefg"]


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([2], IndexError, r"from 0 to 1, got \[2\]"),
        ([0.5], ValueError, "expected numbers of examples, a slice or flags"),
        ([True], ValueError, "expected numbers of examples, a slice or flags"),
    ],
)
def test_pairs_that_are_not_there_are_refused(tmp_path, rows, error, message):
    given = {"dataset_name": PAIRS, "root_dir": tmp_path, "tokenizer": ByteTokenizer()}
    pairs = PairwiseDataset.load("train", **given)
    with pytest.raises(error, match=message):
        PairwiseDataset.take(pairs, rows)
    with pytest.raises(TypeError, match=r"data: expected pairs as PairwiseDataset\.load gives"):
        PairwiseDataset.take(PAIRS, rows)
    with pytest.raises(KeyError, match="there is no column 'prompt_rindex'"):
        PromptData.take(pairs)


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


def pairs_of(*texts):
    return [{"prompt": one, "chosen": two, "rejected": three} for one, two, three in texts]


def test_pairs_that_are_cut_to_equal_texts_are_said(tmp_path):
    pairs = pairs_of(("a", "b", "c"), ("long", "b", "c"), ("x", "same", "same"), ("lon", "b", "bb"))
    message = "3 of 4 pairs have equal texts of at most 4 tokens, the first is pair 1"
    for _ in range(2):  # of the copy too
        with pytest.warns(UserWarning, match=message):
            data = PairwiseDataset.load(
                "train",
                dataset_name=pairs,
                max_length=4,
                root_dir=tmp_path,
                tokenizer=ByteTokenizer(),
            )
    assert data.stats["samples"] == 8


def ones(*shape):
    return torch.ones(shape, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: RewardData(ones(2, 3), ones(2, 2), batch_size=[2]),
            ValueError,
            r"attention_mask: expected the shape of input_ids, \[2, 3\], got \[2, 2\]",
        ),
        (
            lambda: RewardData(ones(2, 3).float(), ones(2, 3), batch_size=[2]),
            TypeError,
            "input_ids: expected whole numbers, got a tensor",
        ),
        (
            lambda: RewardData(ones(2, 3), None, batch_size=[2]),
            TypeError,
            "attention_mask: expected a tensor of 1 and 0, got None",
        ),
        (
            lambda: PromptData(ones(2, 3), ones(2, 3), ones(2, 1), batch_size=[2]),
            ValueError,
            r"prompt_rindex: expected \[2\], a place for each prompt, got \[2, 1\]",
        ),
        (
            lambda: PromptData(ones(2, 3), ones(2, 3), ones(2).float(), batch_size=[2]),
            TypeError,
            r"prompt_rindex: expected whole numbers \[2\], got a tensor \[2\] of torch.float32",
        ),
        (
            lambda: PromptData(ones(2, 3), ones(2, 3), None, batch_size=[2]),
            TypeError,
            r"prompt_rindex: expected whole numbers \[2\], got None",
        ),
        (
            lambda: PromptData(ones(2, 3), ones(2, 2), ones(2), batch_size=[2]),
            ValueError,
            "attention_mask: expected the shape of input_ids",
        ),
        (
            lambda: PairwiseDataset(ones(2, 3), ones(2, 3), batch_size=[2]),
            TypeError,
            "chosen_data: expected RewardData, got a tensor",
        ),
        (
            lambda: PairwiseDataset(
                RewardData(ones(2, 3), ones(2, 3), batch_size=[2]), None, batch_size=[2]
            ),
            TypeError,
            "rejected_data: expected RewardData, got None",
        ),
    ],
)
def test_entries_that_do_not_fit_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_pairs_without_a_batch_size_are_named():
    data = RewardData(ones(2, 3), ones(2, 3), batch_size=[])
    with pytest.raises(ValueError, match=r"batch_size: expected \[2\], one for each text, got"):
        PairwiseDataset(data, data, batch_size=[])


@pytest.mark.parametrize("kind", [PromptData, RewardData, PairwiseDataset])
def test_classes_are_documented_where_they_are_used(kind):
    assert "Attributes:" in kind.__doc__
    assert kind.__doc__.startswith(("Prompts with", "Texts and", "Pairs of"))
