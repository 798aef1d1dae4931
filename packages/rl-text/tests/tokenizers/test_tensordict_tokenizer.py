"""Texts as tensordicts, against the tokenizer itself."""

import pytest
import torch

from rl_text import (
    ByteTokenizer,
    PromptTensorDictTokenizer,
    TensorDictTokenizer,
    token_lists,
)

TEXTS = ["the cat", "a dog saw the mat", "b"]


def test_columns_are_those_of_the_tokenizer(tokenizer):
    found = TensorDictTokenizer(tokenizer, 6)({"text": TEXTS})
    wanted = tokenizer(
        TEXTS, padding="max_length", max_length=6, truncation=True, return_tensors="pt"
    )
    assert found.batch_size == (3,)
    for name in ("input_ids", "attention_mask"):
        assert found[name].equal(wanted[name])


def test_one_text_has_no_dimension_of_examples(tokenizer):
    one = TensorDictTokenizer(tokenizer, 6)({"text": TEXTS[0]})
    many = TensorDictTokenizer(tokenizer, 6)({"text": TEXTS})
    assert one.batch_size == ()
    assert one["input_ids"].equal(many["input_ids"][0])


def test_flat_tokens_are_those_without_padding(tokenizer):
    found = TensorDictTokenizer(tokenizer, 6).flat({"text": TEXTS})
    assert token_lists(found) == tokenizer(TEXTS, max_length=6, truncation=True)["input_ids"]


def test_lists_are_left_to_the_tokenizer():
    process = TensorDictTokenizer(ByteTokenizer(), 9, padding=False, return_tensordict=False)
    assert process({"text": ["ab", "c"]})["input_ids"] == [[97, 98], [99]]


def test_other_columns_and_devices():
    process = TensorDictTokenizer(ByteTokenizer(), 3, key="body", padding=True, device="cpu")
    found = process({"body": ["ab"], "text": ["c"]})
    assert found["input_ids"].tolist() == [[97, 98]]
    assert found.device == torch.device("cpu")


def test_padding_without_a_pad_token_says_which_attribute_to_set(trained):
    with pytest.raises(ValueError, match="needs a pad token, and TokenizersBackend has none"):
        TensorDictTokenizer(trained(pad_token=None), 6)
    with pytest.raises(ValueError, match=r"tokenizer\.pad_token = tokenizer\.eos_token"):
        TensorDictTokenizer(trained(pad_token=None), 6)


def test_text_that_is_too_long_is_named_by_its_place():
    process = TensorDictTokenizer(ByteTokenizer(), 3, truncation=False, padding=False)
    with pytest.raises(ValueError, match="text 1 has 4 tokens, and max_length is 3"):
        process({"text": ["ab", "abcd"]})


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        ({"body": ["a"]}, KeyError, "no column 'text': there are .'body'."),
        ({"text": [1]}, TypeError, "'text': expected a text or a list of texts"),
        ({"text": ["a", "bc"]}, ValueError, "texts differ in length, which makes no tensor"),
    ],
)
def test_samples_without_texts_are_refused(sample, error, message):
    with pytest.raises(error, match=message):
        TensorDictTokenizer(ByteTokenizer(), 3, padding=False)(sample)


def test_length_below_1_is_refused():
    with pytest.raises(ValueError, match="max_length: expected at least 1"):
        TensorDictTokenizer(ByteTokenizer(), 0)


@pytest.mark.parametrize("process", [TensorDictTokenizer, PromptTensorDictTokenizer])
def test_what_is_no_tokenizer_and_no_example_is_named(process):
    with pytest.raises(TypeError, match=r"tokenizer: expected one of transformers, .* got 3"):
        process(3, 8)
    for call in (process(ByteTokenizer(), 8), process(ByteTokenizer(), 8).flat):
        with pytest.raises(TypeError, match="sample: expected columns of texts by their names"):
            call(3)


def test_single_texts_are_laid_flat_too():
    process = TensorDictTokenizer(ByteTokenizer(), 4)
    assert process.flat({"text": "ab"})["input_ids"].tolist() == [97, 98]


@pytest.mark.parametrize("padding", ["left", "do_not_pad", None, 1])
def test_paddings_that_are_none_are_refused(padding):
    with pytest.raises(ValueError, match="padding: expected 'max_length', 'longest', True or"):
        TensorDictTokenizer(ByteTokenizer(), 4, padding=padding)


def test_flat_tokens_ask_for_no_mask_where_the_tokenizer_knows_how():
    class Strict(ByteTokenizer):
        def __call__(self, text, *, padding, truncation, max_length, return_tensors):
            return {"input_ids": [[*one.encode()] for one in text]}

    class Masking(ByteTokenizer):
        asked = ()

        def __call__(self, text, *, return_attention_mask=True, **options):
            self.asked += (return_attention_mask,)
            return super().__call__(text, **options)

    masking = Masking()
    for tokenizer in (Strict(), masking):
        flat = TensorDictTokenizer(tokenizer, 4).flat({"text": ["ab", "c"]})
        assert flat["input_ids"].tolist() == [97, 98, 99]
    TensorDictTokenizer(masking, 4)({"text": ["ab", "c"]})
    assert masking.asked == (False, True)
