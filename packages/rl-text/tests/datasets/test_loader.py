"""A data set is tokenised once, and again when anything changes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_layout import Segments, check_layout
from rl_replay.checkpoint import Chunks, dump
from rl_text import (
    ByteTokenizer,
    PairwiseDataset,
    PromptTensorDictTokenizer,
    TensorDictTokenizer,
    TokenizedDatasetLoader,
    token_lists,
)

TEXTS = ["ab", "c", "def"]


class Counting(ByteTokenizer):
    """A tokenizer that counts its calls."""

    calls = 0

    def __call__(self, text, **options):
        type(self).calls += 1
        return super().__call__(text, **options)


def loader(root, texts=TEXTS, max_length=8, tokenizer=None, process=TensorDictTokenizer, **more):
    tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
    data = {"text": texts} if process is TensorDictTokenizer else texts
    return TokenizedDatasetLoader(
        "train", max_length, data, process, root_dir=root, tokenizer=tokenizer, **more
    )


def copies(root):
    return len(list(root.iterdir()))


def test_second_load_tokenises_nothing(tmp_path):
    Counting.calls = 0
    first = loader(tmp_path, tokenizer=Counting()).load()
    second = loader(tmp_path, tokenizer=Counting()).load()
    assert Counting.calls == 1
    assert first.flat()["input_ids"].equal(second.flat()["input_ids"])
    assert copies(tmp_path) == 1


def test_functions_that_hold_another_value_never_read_the_old_copy(tmp_path):
    """The source of these functions does not tell the values."""

    def process_of(first, last, end):
        def process(columns):
            tokens = [[*first, *text.encode(), last, end] for text in columns["text"]]
            return {"input_ids": tokens, "attention_mask": [[1] * len(one) for one in tokens]}

        return process

    for place, (first, last, end) in enumerate(
        [([1], 2, 3), ([4], 2, 3), ([4], 5, 3), ([4], 5, 6)]
    ):
        made = lambda tokenizer, max_length, end=end: process_of(first, last, end)  # noqa: B023, E731
        data = loader(tmp_path, {"text": ["a"]}, process=made).load()
        assert token_lists(data.flat()) == [[*first, 97, last, end]]
        assert copies(tmp_path) == place + 1


@pytest.mark.parametrize(
    "change",
    [
        {"texts": ["ab", "c", "deg"]},
        {"texts": ["abc", "def"]},
        {"max_length": 2},
        {"tokenizer": Counting()},
    ],
)
def test_change_of_texts_length_or_tokenizer_never_reads_the_old_copy(tmp_path, change):
    loader(tmp_path).load()
    found = loader(tmp_path, **change).load()
    assert copies(tmp_path) == 2
    limit = change.get("max_length", 8)
    wanted = [[*text.encode()][:limit] for text in change.get("texts", TEXTS)]
    assert token_lists(found.flat()) == wanted


def test_change_of_a_trained_tokenizer_never_reads_the_old_copy(tmp_path, trained):
    for made in (trained(), trained(262), trained(eos_token="a")):
        found = loader(tmp_path, ["the cat sat"], tokenizer=made).load()
        assert token_lists(found.flat()) == [made("the cat sat")["input_ids"]]
    assert copies(tmp_path) == 3
    again = trained()
    again(["a b c"], padding="max_length", truncation=True, max_length=5)
    loader(tmp_path, ["the cat sat"], tokenizer=again).load()
    assert copies(tmp_path) == 3


def test_other_settings_of_the_process_never_read_the_old_copy(tmp_path):
    examples = {"text": ["ab"], "body": ["cde"]}

    def of_body(tokenizer, max_length, **options):
        return TensorDictTokenizer(tokenizer, max_length, "body", **options)

    loader(tmp_path, ["ab"]).load()
    found = loader(tmp_path, examples, process=of_body).load()
    assert token_lists(found.flat()) == [[*b"cde"]]


@settings(max_examples=20)
@given(st.lists(st.text("abc", min_size=1, max_size=9), min_size=1, max_size=9))
def test_flat_and_padded_reads_are_those_of_the_tokenizer(tmp_path_factory, texts):
    data = loader(tmp_path_factory.mktemp("root"), texts, 5).load()
    process = TensorDictTokenizer(ByteTokenizer(), 5)
    padded, flat = data.padded(length=5), data.flat()
    wanted = process({"text": texts})
    for name in ("input_ids", "attention_mask"):
        assert padded[name].equal(wanted[name])
    assert check_layout(flat).ok
    assert token_lists(flat) == token_lists(process.flat({"text": texts}))
    rows = [len(texts) - 1, 0, 0]
    assert token_lists(data.flat(rows)[: data.lengths[rows[0]]]) == [token_lists(flat)[rows[0]]]
    assert data[rows]["input_ids"].equal(padded["input_ids"][rows][:, : max(data.lengths[rows])])


def test_mapped_copy_takes_the_memory_of_its_real_tokens(tmp_path):
    texts = ["a" * (1 + place % 50) for place in range(300)]
    loader(tmp_path, texts, 512).load()
    (folder,) = tmp_path.iterdir()
    real = sum(map(len, texts))
    taken = sum(path.stat().st_size for path in folder.iterdir())
    assert 4 * real + 8 * 300 < taken < 4 * real + 8 * 300 + 1_500


def test_data_are_read_from_memory_while_another_process_writes_them(tmp_path):
    loader(tmp_path / "first").load()
    (folder,) = (tmp_path / "first").iterdir()
    found = []

    def pieces():
        found.append(loader(tmp_path).load())
        yield torch.zeros(0)

    dump(tmp_path / folder.name, {"empty": Chunks(torch.float32, (0,), pieces)})
    assert token_lists(found[0].flat()) == [[*text.encode()] for text in TEXTS]


def test_prompts_are_not_learnt_from_and_long_examples_are_left_out(tmp_path):
    examples = {"prompt": ["ab", "cdefgh", "i"], "label": ["x", "y", "zz"]}
    data = loader(tmp_path, examples, 5, process=PromptTensorDictTokenizer).load()
    assert data.stats == {"samples": 2, "tokens": 8, "left_out": 1}
    flat = data.flat()
    assert token_lists(flat) == [[*b"abx", 257], [*b"izz", 257]]
    assert flat["loss_mask"].int().tolist() == [0, 0, 1, 1, 0, 1, 1, 1]
    assert data.column("prompt_rindex").tolist() == [1, 0]


def test_hooks_change_the_examples_first(tmp_path):
    def longer(columns):
        return {"text": [text * 2 for text in columns["text"]]}

    found = loader(tmp_path, pre_tokenization_hook=longer).load()
    assert token_lists(found.flat())[0] == [*b"abab"]


@pytest.mark.parametrize("made", [np.array, torch.tensor, list])
def test_columns_of_numbers_may_be_arrays(tmp_path, made):
    data = loader(tmp_path, pre_tokenization_hook=lambda c: {"text": c["text"], "n": c["n"]})
    data.dataset_name = {"text": TEXTS, "n": made([1, 2, 3])}
    assert len(data.load()) == 3


def test_validation_splits_are_the_first_examples(tmp_path):
    made = TokenizedDatasetLoader(
        "valid", 8, {"text": TEXTS}, TensorDictTokenizer, root_dir=tmp_path, valid_size=2,
        tokenizer=ByteTokenizer(),
    )  # fmt: skip
    assert len(made.load()) == 2


def test_tokenizers_are_loaded_by_their_names(tmp_path, trained):
    trained(pad_token=None).save_pretrained(tmp_path / "mine")
    made = TokenizedDatasetLoader(
        "train", 8, {"text": ["the cat"]}, TensorDictTokenizer, root_dir=tmp_path / "copies",
        tokenizer_model_name=str(tmp_path / "mine"),
    )  # fmt: skip
    assert token_lists(made.load().flat()) == [trained()("the cat")["input_ids"]]


def test_rows_are_numbers_slices_or_flags(tmp_path):
    data = loader(tmp_path).load()
    for rows in ([1, 2], slice(1, 3), torch.tensor([False, True, True]), np.array([1, 2])):
        assert token_lists(data.flat(rows)) == [[*b"c"], [*b"def"]]
    assert Segments.of(data.flat([2])).lengths.tolist() == [3]
    with pytest.raises(IndexError, match=r"expected numbers from 0 to 2, got \[3\]"):
        data.flat([3])
    with pytest.raises(ValueError, match="expected numbers of examples, a slice or flags"):
        data.flat([0.5])
    with pytest.raises(KeyError, match="no column 'score'"):
        data.column("score")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"max_length": 0}, ValueError, "max_length: expected at least 1"),
        ({"valid_size": 0}, ValueError, "valid_size: expected at least 1"),
        ({"texts": []}, ValueError, "no data: there is no example"),
        ({"texts": ["a", ""]}, ValueError, r"example 1 has no token\. Leave empty ones out"),
    ],
)
def test_settings_and_data_that_leave_nothing_are_refused(tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        loader(tmp_path, **change).load()


def test_examples_in_place_of_the_name_of_a_part_are_named():
    with pytest.raises(TypeError, match="split: expected the name of a part, as 'train'; examples"):
        PairwiseDataset.from_dataset([{"prompt": "a", "chosen": "b", "rejected": "c"}])


def test_number_of_workers_has_no_effect_and_says_so(tmp_path):
    with pytest.warns(DeprecationWarning, match="num_workers has no effect"):
        loader(tmp_path, num_workers=4)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tokenizer_fn": None}, "tokenizer_fn: expected a class as TensorDictTokenizer, got None"),
        (
            {"pre_tokenization_hook": lambda columns: None},
            "pre_tokenization_hook: expected it to return columns, got None",
        ),
    ],
)
def test_functions_that_give_nothing_are_named(tmp_path, more, message):
    given = {"tokenizer_fn": TensorDictTokenizer, "tokenizer": ByteTokenizer(), **more}
    with pytest.raises(TypeError, match=message):
        TokenizedDatasetLoader("train", 8, [{"text": "ab"}], root_dir=tmp_path, **given).load()


@pytest.mark.parametrize("length", [0, -1, 2.5])
def test_rectangles_have_a_cell(tmp_path, length):
    data = TokenizedDatasetLoader(
        "train",
        8,
        [{"text": "ab"}],
        TensorDictTokenizer,
        root_dir=tmp_path,
        tokenizer=ByteTokenizer(),
    ).load()
    with pytest.raises((TypeError, ValueError), match="length: expected"):
        data.padded(length=length)


def test_rectangles_need_a_pad_token_where_a_cell_is_without_a_token(tmp_path):
    class Unpadded(ByteTokenizer):
        pad_token_id = None

    texts = [{"text": "ab"}, {"text": "cd"}, {"text": "efg"}]
    data = TokenizedDatasetLoader(
        "train", 8, texts, TensorDictTokenizer, root_dir=tmp_path, tokenizer=Unpadded()
    ).load()
    assert data.flat([0, 2])["input_ids"].tolist() == [97, 98, 101, 102, 103]
    assert data.padded([0, 1])["input_ids"].tolist() == [[97, 98], [99, 100]]
    with pytest.raises(ValueError, match=r"had no pad token\. Set tokenizer\.pad_token, as"):
        data.padded([0, 2])
    Unpadded.pad_token_id = 0
    data = TokenizedDatasetLoader(
        "train", 8, texts, TensorDictTokenizer, root_dir=tmp_path, tokenizer=Unpadded()
    ).load()
    assert data.padded([0, 2])["input_ids"].tolist() == [[97, 98, 0], [101, 102, 103]]
