"""Texts in tensordicts as tokens, and back."""

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rl_specs import NonTensor
from rl_text import ByteTokenizer, Tokenizer

PAD = 256


def batch(*texts):
    return TensorDict({"text": NonTensorStack(*texts)}, [len(texts)])


def test_texts_are_padded_to_the_longest_or_to_a_length():
    rows = batch("ab", "c")
    assert Tokenizer(["text"], ["tokens"])(rows)["tokens"].tolist() == [[97, 98], [99, PAD]]
    found = Tokenizer(["text"], ["tokens"], max_length=1)(rows)
    assert found["tokens"].tolist() == [[97], [99]]
    assert found["text"] == ["ab", "c"]
    assert "tokens" not in rows


def test_one_text_and_grids_of_texts():
    tokens = Tokenizer(["text"], ["tokens"], max_length=2)
    one = tokens(TensorDict({"text": NonTensorData("ab")}, []))["tokens"]
    assert one.tolist() == [97, 98]
    grid = torch.stack([batch("a", "b", "c"), batch("d", "e", "f")])
    assert tokens(grid)["tokens"][..., 0].tolist() == [[97, 98, 99], [100, 101, 102]]


def test_tokens_are_written_as_texts_on_their_way_in():
    both = Tokenizer(["text"], ["tokens"], ["text"], ["tokens"])
    for texts in (["ab", "c"], ["x"]):
        inside = both.inv(both(batch(*texts)).exclude("text"))
        assert inside.get("text").tolist() == texts
    grid = torch.stack([batch("a", "b", "c"), batch("d", "e", "f")])
    assert both.inv(both(grid).exclude("text")).get("text").tolist() == [
        ["a", "b", "c"],
        ["d", "e", "f"],
    ]


def test_next_texts_are_tokenised_too():
    rows = batch("ab", "c").set("next", batch("d", "e"))
    assert Tokenizer(["text"], ["tokens"])(rows)["next", "tokens"].tolist() == [[100], [101]]


def test_tokenizers_of_transformers(tokenizer):
    found = Tokenizer(["text"], ["tokens"], tokenizer=tokenizer)(batch("the cat", "a"))
    assert found["tokens"].tolist() == tokenizer(["the cat", "a"], padding=True)["input_ids"]


def test_spec_has_the_length():
    spec = Tokenizer(["text"], max_length=5).leaf_spec(NonTensor((3,)))
    assert (spec.shape, spec.dtype) == ((3, 5), torch.int64)
    with pytest.raises(ValueError, match="an environment needs the number of tokens"):
        Tokenizer(["text"]).leaf_spec(NonTensor((3,)))


def test_what_is_no_text_is_refused(trained):
    with pytest.raises(ValueError, match=r"Tokenizer, 'text': expected texts, got a tensor \[2\]"):
        Tokenizer(["text"])(TensorDict({"text": torch.zeros(2)}, [2]))
    with pytest.raises(ValueError, match=r"expected texts, got 3 \(int\)"):
        Tokenizer(["text"])(TensorDict({"text": NonTensorStack(3, 4)}, [2]))
    with pytest.raises(TypeError, match="tokenizer: expected a function"):
        Tokenizer(["text"], tokenizer="gpt2")
    with pytest.raises(ValueError, match="needs a pad token"):
        Tokenizer(["text"], tokenizer=trained(pad_token=None))
    with pytest.raises(ValueError, match="max_length: expected at least 1"):
        Tokenizer(["text"], tokenizer=ByteTokenizer(), max_length=0)


@pytest.mark.parametrize("tokens", [torch.tensor(97), torch.zeros(2, 3)])
def test_tokens_that_are_no_whole_numbers_are_named(tokens):
    with pytest.raises(TypeError, match="tokens: expected whole numbers"):
        Tokenizer(["text"], ["tokens"]).invert_leaf(tokens)
