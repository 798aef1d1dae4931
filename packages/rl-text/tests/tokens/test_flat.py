"""Lists of tokens laid end to end."""

import pickle
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_layout import Segments, check_layout
from rl_text import flat_tokens, from_padded, padded, shift, token_lists

LISTS = st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=6), min_size=1, max_size=6)
PAIRS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 9), min_size=1, max_size=4), st.lists(st.integers(0, 9), max_size=4)
    ),
    min_size=1,
    max_size=6,
)


def bytes_of(batch):
    return sum(leaf.numel() * leaf.element_size() for leaf in batch.values(True, leaves_only=True))


@given(PAIRS)
def test_prompts_and_completions_are_laid_end_to_end_with_markers(pairs):
    prompts, completions = map(list, zip(*pairs, strict=True))
    batch = flat_tokens(prompts, completions, groups=range(len(pairs)))
    assert check_layout(batch).ok
    assert batch["input_ids"].tolist() == [t for p, c in pairs for t in (*p, *c)]
    assert batch["loss_mask"].tolist() == [
        f for p, c in pairs for f in [False] * len(p) + [True] * len(c)
    ]
    lengths = [len(p) + len(c) for p, c in pairs]
    assert Segments.of(batch).lengths.tolist() == lengths
    assert batch["group_ids"].tolist() == [g for g, n in enumerate(lengths) for _ in range(n)]
    assert batch["collector", "traj_step"].tolist() == [s for n in lengths for s in range(n)]


@given(LISTS, st.sampled_from(["left", "right"]), st.integers(0, 3))
def test_padded_tokens_come_back(lists, side, more):
    batch = flat_tokens(lists)
    length = max(map(len, lists)) + more
    wide = padded(batch, 77, side=side, length=length)
    for row, tokens in zip(wide["input_ids"].tolist(), lists, strict=True):
        fill = [77] * (length - len(tokens))
        assert row == (fill + tokens if side == "left" else tokens + fill)
    assert wide["attention_mask"].sum(1).tolist() == [len(tokens) for tokens in lists]
    assert check_layout(wide).ok
    again = from_padded(wide["input_ids"], wide["attention_mask"], loss_mask=wide["loss_mask"])
    assert token_lists(again) == token_lists(batch) == token_lists(wide) == lists
    assert again["loss_mask"].equal(batch["loss_mask"])


@given(LISTS)
def test_segments_give_the_offsets_of_packed_kernels(lists):
    offsets = [0]
    for tokens in lists:
        offsets.append(offsets[-1] + len(tokens))
    assert Segments.of(flat_tokens(lists)).cu_seqlens.tolist() == offsets


@pytest.mark.parametrize("lengths", [[3], [1, 200], [7, 7, 7], [1] * 50, [512, 3, 90]])
def test_batch_takes_the_memory_of_its_real_tokens(lengths):
    each = bytes_of(flat_tokens([[1]], groups=[0]))  # of one token
    batch = flat_tokens([[1] * n for n in lengths], groups=range(len(lengths)))
    assert bytes_of(batch) <= 1.05 * each * sum(lengths)


def test_an_empty_completion_is_a_conversation_without_tokens_to_learn_from():
    batch = flat_tokens([[5, 6], [7]], [[8], []], groups=[0, 0])
    assert batch["input_ids"].tolist() == [5, 6, 8, 7]
    assert batch["loss_mask"].tolist() == [False, False, True, False]
    assert batch["group_ids"].tolist() == [0] * 4
    assert Segments.of(batch).lengths.tolist() == [3, 1]
    assert shift(batch)["loss_mask"].sum() == 1


def test_tensors_are_taken_as_lists_are():
    lists = [[5, 6], [7]]
    tensors = [torch.tensor(tokens, dtype=torch.int32) for tokens in lists]
    assert token_lists(flat_tokens(tensors)) == lists
    assert token_lists(flat_tokens(tensors, [torch.tensor([]), [8]])) == [[5, 6], [7, 8]]


def test_ids_are_never_used_twice():
    ids = torch.cat([flat_tokens([[1], [2]])["collector", "traj_ids"] for _ in range(3)])
    assert len(ids.unique()) == 6
    assert int(ids.min()) >= 0


def test_ids_of_a_fork_are_not_those_of_its_parent():
    program = (
        "import os, rl_text\n"
        "first = rl_text.flat_tokens([[1]])['collector', 'traj_ids'].item()\n"
        "r, w = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    theirs = rl_text.flat_tokens([[1]])['collector', 'traj_ids'].item()\n"
        "    os.write(w, str(theirs).encode()); os._exit(0)\n"
        "theirs = int(os.read(r, 99))\n"
        "assert theirs >> 32 != first >> 32\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=120)


def test_given_ids_are_kept_and_batches_travel_between_processes():
    batch = flat_tokens([[1, 2], [3]], ids=torch.tensor([4, 9]))
    assert batch["collector", "traj_ids"].tolist() == [4, 4, 9]
    assert pickle.loads(pickle.dumps(batch))["input_ids"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("tokens", "more", "error", "message"),
    [
        ([], {}, ValueError, "at least one token, got nothing"),
        ([[1], []], {}, ValueError, "at least one token: number 1 has none"),
        (["ab"], {}, TypeError, "expected a list of numbers of tokens, got 'ab'"),
        ("ab", {}, TypeError, "expected lists of tokens"),
        ([[1.5]], {}, TypeError, "expected whole numbers of 64 bits"),
        ([[2**70]], {}, TypeError, "expected whole numbers of 64 bits"),
        ([torch.tensor([0.5])], {}, TypeError, "expected whole numbers, got torch.float32"),
        ([torch.ones(1, 2).long()], {}, ValueError, r"one number each, got the shape \[1, 2\]"),
        ([[1], [2]], {"completions": [[3]]}, ValueError, "completions: expected one for each of 2"),
        ([[1], [2]], {"groups": [0]}, ValueError, "groups: expected one for each of 2"),
        ([[1]], {"ids": torch.tensor([0, 1])}, ValueError, "ids: expected one for each of 1"),
    ],
)
def test_tokens_that_make_no_batch_are_refused(tokens, more, error, message):
    with pytest.raises(error, match=message):
        flat_tokens(tokens, **more)


def test_too_short_a_rectangle_is_refused():
    with pytest.raises(ValueError, match="length: 2 is too short for conversation 1 of 3 tokens"):
        padded(flat_tokens([[1], [2, 3, 4]]), length=2)


def test_side_of_another_name_is_refused():
    with pytest.raises(ValueError, match="side: expected 'left' or 'right'"):
        padded(flat_tokens([[1]]), side="top")


def test_rows_of_padding_alone_are_refused():
    with pytest.raises(ValueError, match="row 1 has no real token"):
        from_padded(torch.ones(2, 2).long(), torch.tensor([[1, 0], [0, 0]]))


def test_leaves_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"loss_mask: expected \[2, 2\]"):
        from_padded(torch.ones(2, 2).long(), loss_mask=torch.ones(2, 3))
    with pytest.raises(TypeError, match=r"input_ids: expected integers \[S, L\]"):
        from_padded(torch.ones(2, 2))


def test_leaves_that_are_no_tensors_are_refused():
    tokens, lists = torch.ones(2, 2, dtype=torch.int64), [[1, 0], [1, 1]]
    with pytest.raises(TypeError, match=r"attention_mask: expected a tensor \[2, 2\]"):
        from_padded(tokens, lists)
    with pytest.raises(TypeError, match=r"loss_mask: expected a tensor .* got \[\[1, 0\]"):
        from_padded(tokens, loss_mask=lists)


@pytest.mark.parametrize("tokens", [torch.tensor(3), [torch.tensor(3)], [3]])
def test_single_tokens_are_no_conversation(tokens):
    with pytest.raises(TypeError, match="tokens: expected"):
        flat_tokens(tokens)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: flat_tokens({"input_ids": [[1]]}),
            TypeError,
            r"got columns \['input_ids'\]\. Pass those of 'input_ids'",
        ),
        (lambda: flat_tokens([[1], [2, -100]]), ValueError, "numbers of 0 or more, got -100"),
        (lambda: flat_tokens([torch.tensor([-1])]), ValueError, "numbers of 0 or more, got -1"),
        (lambda: flat_tokens([[1]], groups=["a"]), TypeError, "groups: expected whole numbers"),
        (lambda: flat_tokens([[1]], groups=[None]), TypeError, "groups: expected whole num"),
        (lambda: padded(flat_tokens([[1]]), "x"), TypeError, "pad_token_id: expected a whole"),
        (lambda: padded(flat_tokens([[1]]), length=1.5), TypeError, "length: expected a whole"),
    ],
)
def test_wrong_numbers_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "mask",
    [
        [[0.0, float("-inf")], [0.0, 0.0]],  # what is added to scores of attention
        [[1.0, float("nan")], [1.0, 1.0]],
        [[1, 2], [1, 1]],
    ],
)
def test_masks_of_other_numbers_than_0_and_1_are_refused(mask):
    with pytest.raises(ValueError, match="attention_mask: expected 1 for real tokens and 0 for o"):
        from_padded(torch.tensor([[5, 6], [7, 8]]), torch.tensor(mask))
