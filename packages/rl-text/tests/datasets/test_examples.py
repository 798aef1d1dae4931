"""Examples from lists, columns, data sets of datasets and folders."""

import sys

import pytest
import torch

from rl_text import ByteTokenizer, read_examples
from rl_text.datasets.examples import content_hash, pair_texts, plain_text, prompt_columns

ROWS = [{"prompt": "a", "label": "b"}, {"prompt": "c", "label": "d"}]
COLUMNS = {"prompt": ["a", "c"], "label": ["b", "d"]}


def test_lists_and_columns_are_the_same_examples():
    assert read_examples(ROWS) == read_examples(COLUMNS) == COLUMNS
    assert read_examples([]) == {}


def test_data_sets_of_datasets_and_their_folders_are_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_list(ROWS)
    both = datasets.DatasetDict({"train": data, "test": data.select([1])})
    assert read_examples(data) == COLUMNS
    assert read_examples(both, "test") == {"prompt": ["c"], "label": ["d"]}
    data.save_to_disk(str(tmp_path / "one"))
    assert read_examples(str(tmp_path / "one"), from_disk=True) == COLUMNS


def test_name_without_datasets_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install rl-text\[datasets\]"):
        read_examples("somebody/something")


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (3, TypeError, "expected a data set, a list of examples, columns or a name, got 3"),
        ([{"a": 1}, {"b": 1}], ValueError, r"example 1 has \['b'\], and the first has \['a'\]"),
        ({"a": [1, 2], "b": [3]}, ValueError, "columns differ in length: 2 of 'a', 1 of 'b'"),
    ],
)
def test_sources_that_are_no_data_set_are_refused(source, error, message):
    with pytest.raises(error, match=message):
        read_examples(source)


@pytest.mark.parametrize(
    "other",
    [
        {"text": ["ab", "d"]},
        {"text": ["a", "bc"]},
        {"text": ["ab", "c", ""]},
        {"body": ["ab", "c"]},
        {"text": ["ab", ["c"]]},
    ],
)
def test_hash_changes_with_any_value_name_or_count(other):
    assert content_hash(other) != content_hash({"text": ["ab", "c"]})


def test_messages_are_written_by_the_chat_template(trained):
    chatty = trained()
    chatty.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert plain_text(messages, chatty) == "user: hi\nassistant: ho\n"
    with pytest.raises(TypeError, match=r"Set tokenizer\.chat_template, or pass texts"):
        plain_text(messages, ByteTokenizer())
    with pytest.raises(TypeError, match="expected a text, or messages"):
        plain_text(3, chatty)


def test_completions_are_labels():
    assert prompt_columns({"prompt": ["a"], "completion": ["b"]})["label"] == ["b"]
    assert prompt_columns({"prompt": ["a"]}) == {"prompt": ["a"]}
    with pytest.raises(KeyError, match="no column 'prompt'"):
        prompt_columns({"label": ["b"]})


def test_pairs_are_written_after_their_prompts_the_chosen_ones_first():
    pairs = {"prompt": ["p ", "q "], "chosen": ["a b", "c"], "rejected": ["d e", "f g"]}
    assert pair_texts(pairs)["text"] == ["p a b", "q c", "p d e", "q f g"]
    assert pair_texts(pairs, 2)["text"] == ["p a b", "p d e"]
    assert pair_texts({"chosen": ["a b"], "rejected": ["a b"]}, 1)["text"] == []


def test_chosen_and_rejected_of_different_counts_are_refused():
    with pytest.raises(ValueError, match="got 2 chosen and 1 rejected"):
        pair_texts({"chosen": ["a", "b"], "rejected": ["c"]})
    with pytest.raises(KeyError, match="no column 'rejected'"):
        pair_texts({"chosen": ["a", "b"]})


@pytest.mark.parametrize("values", ["ab", 3, torch.tensor(3)])
def test_columns_that_are_no_lists_are_named(values):
    with pytest.raises(TypeError, match="expected a list of values under 'text'"):
        read_examples({"text": values})


def test_part_that_a_data_set_does_not_have_is_named():
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    parts = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"prompt": ["a"]})})
    with pytest.raises(KeyError, match=r"split: there is no part 'test': there are \['train'\]"):
        read_examples(parts, "test")
