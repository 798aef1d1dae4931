"""Prompts with labels: where prompts end, and what fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_layout import Segments
from rl_text import ByteTokenizer, PromptTensorDictTokenizer, token_lists

EOS, PAD = 257, 256
WORDS = st.text("abc", min_size=1, max_size=5)


@given(st.lists(st.tuples(WORDS, st.text("xy", max_size=5)), min_size=1, max_size=4))
def test_prompt_label_and_end_are_where_they_say(pairs):
    prompts, labels = map(list, zip(*pairs, strict=True))
    sample = {"prompt": prompts, "label": labels}
    process = PromptTensorDictTokenizer(ByteTokenizer(), 8)
    found, flat = process(sample), process.flat(sample)
    masks = flat["loss_mask"].split(Segments.of(flat).lengths.tolist())
    for place, (prompt, label) in enumerate(pairs):
        whole = [*prompt.encode(), *label.encode(), EOS]
        row = found["input_ids"][place].tolist()
        assert row == (whole + [PAD] * 8)[:8]
        assert found["attention_mask"][place].sum() == min(8, len(whole))
        assert found["prompt_rindex"][place] == len(prompt) - 1
        assert found["valid_sample"][place] == (len(whole) <= 8)
        assert token_lists(flat)[place] == whole[:8]
        assert masks[place].int().tolist() == ([0] * len(prompt) + [1] * 9)[: len(whole[:8])]


def test_prompts_without_labels_have_no_end():
    found = PromptTensorDictTokenizer(ByteTokenizer(), 4)({"prompt": "ab"})
    assert found.batch_size == ()
    assert found["input_ids"].tolist() == [97, 98, PAD, PAD]


def test_end_that_a_tokenizer_appends_to_prompts_is_taken_off(trained):
    from tokenizers.processors import TemplateProcessing

    ending = trained()
    ending.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    sample = {"prompt": ["the cat"], "label": [" sat"]}
    found = PromptTensorDictTokenizer(ending, 9, padding=False, return_tensordict=False)(sample)
    wanted = PromptTensorDictTokenizer(trained(), 9, padding=False, return_tensordict=False)
    assert found == wanted(sample)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (
            {"prompt": ["ab", "abcde"], "label": ["x", "y"]},
            "prompt 1 has 5 tokens, and max_length is 4",
        ),
        ({"prompt": ["ab"], "label": ["xyz"]}, "prompt and label 0 has 6 tokens"),
        (
            {"prompt": ["ab", "c"], "label": ["x"]},
            "'label': expected one for each of 2 prompts, got 1",
        ),
        ({"prompt": ["ab", ""]}, "prompt 1 has no token"),
    ],
)
def test_examples_that_do_not_fit_are_named_by_their_place(sample, message):
    with pytest.raises(ValueError, match=message):
        PromptTensorDictTokenizer(ByteTokenizer(), 4, truncation=False)(sample)


def test_tokenizer_without_an_end_token_says_which_attribute_to_set(trained):
    with pytest.raises(ValueError, match=r"needs an end token.*Set tokenizer\.eos_token"):
        PromptTensorDictTokenizer(trained(eos_token=None), 6)
