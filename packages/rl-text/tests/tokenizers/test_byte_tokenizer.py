import pytest
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
