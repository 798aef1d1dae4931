import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_text import ByteTokenizer


@given(st.lists(st.text(max_size=9), max_size=4))
def test_texts_come_back(texts):
    tokenizer = ByteTokenizer()
    found = tokenizer(texts, padding=True)
    assert tokenizer.batch_decode(found["input_ids"]) == texts
    assert [sum(row) for row in found["attention_mask"]] == [len(t.encode()) for t in texts]


def test_rectangles_are_padded_and_cut():
    found = ByteTokenizer()(
        ["abc", "d"], padding="max_length", truncation=True, max_length=2, return_tensors="pt"
    )
    assert found["input_ids"].tolist() == [[97, 98], [100, 256]]
    assert found["attention_mask"].tolist() == [[1, 1], [1, 0]]


def test_something_else_than_text_is_refused():
    with pytest.raises(TypeError, match=r"text: expected strings, got 3 \(int\)"):
        ByteTokenizer()(["a", 3])
    with pytest.raises(ValueError, match="texts differ in length"):
        ByteTokenizer()(["a", "bc"], return_tensors="pt")


@pytest.mark.parametrize("tokens", [3, "ab", [1.5], [[1]], torch.tensor(1), torch.eye(2), None])
def test_what_is_no_list_of_tokens_is_named(tokens):
    with pytest.raises(TypeError, match="token_ids: expected a list of numbers of tokens"):
        ByteTokenizer().decode(tokens)


@pytest.mark.parametrize("tokens", [3, "ab", torch.tensor(1), None])
def test_what_are_no_lists_of_tokens_is_named(tokens):
    with pytest.raises(TypeError, match="sequences: expected lists of numbers of tokens"):
        ByteTokenizer().batch_decode(tokens)


def test_tokens_may_be_numbers_of_any_kind():
    for tokens in ([97, 98], torch.tensor([97, 98]), np.array([97, 98]), (97, torch.tensor(98))):
        assert ByteTokenizer().decode(tokens) == "ab"
    with pytest.raises(ValueError, match="numbers of tokens from 0 on, got -1"):
        ByteTokenizer().decode([97, -1])


@pytest.mark.parametrize(
    "options", [{"padding": "left"}, {"truncation": 1}, {"max_length": -1}, {"max_length": "a"}]
)
def test_options_that_do_not_fit_are_named(options):
    (name,) = options
    with pytest.raises((TypeError, ValueError), match=f"{name}: expected"):
        ByteTokenizer()(["ab"], **options)
