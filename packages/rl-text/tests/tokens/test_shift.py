"""The next token of each token, inside conversations alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_layout import Segments
from rl_text import flat_tokens, padded, shift

PAIRS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 9), min_size=1, max_size=4), st.lists(st.integers(1, 9), max_size=4)
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("view", ["flat", "left", "right"])
@given(pairs=PAIRS)
def test_actions_are_the_next_tokens_of_each_conversation(view, pairs):
    prompts, completions = map(list, zip(*pairs, strict=True))
    batch = flat_tokens(prompts, completions)
    rows = shift(batch if view == "flat" else padded(batch, side=view))
    segments = Segments.of(rows)
    actions, counts = segments.gather(rows["action"]), segments.gather(rows["loss_mask"])
    lengths = segments.lengths.tolist()
    for (p, c), found, flags in zip(
        pairs, actions.split(lengths), counts.split(lengths), strict=True
    ):
        assert found.tolist() == [*[*p, *c][1:], 0]
        assert flags.tolist() == [False] * (len(p) - 1) + [True] * len(c) + [False]
    assert rows["action"].sum() == sum(sum([*p, *c][1:]) for p, c in pairs)  # 0 on padding
    assert "action" not in batch


def test_all_tokens_but_the_first_are_learnt_without_a_mask():
    rows = shift(flat_tokens([[5, 6], [7]]).exclude("loss_mask"))
    assert rows["loss_mask"].tolist() == [True, False, False]


def test_second_shift_is_refused():
    with pytest.raises(ValueError, match="'action' is there: the batch is shifted already"):
        shift(shift(flat_tokens([[5, 6]])))


def test_batch_without_tokens_is_refused():
    with pytest.raises(KeyError, match="input_ids"):
        shift(flat_tokens([[5]]).exclude("input_ids"))
    with pytest.raises(TypeError, match="expected a tensordict"):
        shift(torch.zeros(3))
