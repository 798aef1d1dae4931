"""Logits on flat tokens, against a loop over conversations."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_text import LanguageModel, flat_tokens, padded, shift
from rl_text.testing import Output, TinyModel
from rl_value import GRPOLoss, reference

PAIRS = st.lists(
    st.tuples(
        st.lists(st.integers(2, 19), min_size=1, max_size=4),
        st.lists(st.integers(2, 19), max_size=4),
    ),
    min_size=1,
    max_size=5,
).filter(lambda pairs: any(c for _, c in pairs))
LIST = [[5, 6, 7], [8], [9, 10, 11, 12]]


def alone(model, lists):
    """Logits of each conversation by itself."""
    return torch.cat([model(input_ids=torch.tensor([tokens])).logits[0] for tokens in lists])


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_logits_are_those_of_each_conversation_alone(gpt2, layout):
    batch = flat_tokens(LIST)
    found = LanguageModel(gpt2, layout)(batch)["logits"]
    torch.testing.assert_close(found, alone(gpt2, LIST), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_rectangles_have_the_logits_of_flat_tokens(gpt2, side):
    batch = padded(flat_tokens(LIST), side=side)
    found = LanguageModel(gpt2)(batch)["logits"][batch["collector", "mask"]]
    torch.testing.assert_close(found, alone(gpt2, LIST), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("over", ["token", "sequence", "sequence_sum", "group"])
@pytest.mark.parametrize("layout", ["padded", "packed", "left", "right"])
@settings(max_examples=10)
@given(pairs=PAIRS, order=st.randoms(use_true_random=False), same=st.booleans())
def test_loss_is_that_of_a_loop_over_samples_for_every_packing(
    gpt2, layout, over, pairs, order, same
):
    if same:  # uniform lengths
        pairs = [([5, 6], [int(p[0]), 7]) for p, _ in pairs]
    order.shuffle(pairs)
    prompts, completions = map(list, zip(*pairs, strict=True))
    groups = [place // 2 for place in range(len(pairs))]
    rows = shift(flat_tokens(prompts, completions, groups=groups))
    each = torch.linspace(-1, 2, len(pairs))
    lengths = torch.tensor([len(p) + len(c) for p, c in pairs])
    rows["advantage"] = torch.repeat_interleave(each, lengths).unsqueeze(-1)
    rows["sample_log_prob"] = torch.full((len(rows),), -3.0)
    if layout in ("left", "right"):
        rows = padded(rows, side=layout)
    gpt2 = copy.deepcopy(gpt2).double()
    actor = LanguageModel(gpt2, "packed" if layout == "packed" else "padded")
    with torch.no_grad():
        found = GRPOLoss(actor, over=over)(rows)["loss_objective"]
        now, before = [], []
        for prompt, completion in pairs:
            logits = gpt2(input_ids=torch.tensor([[*prompt, *completion]])).logits[0]
            chances = logits.log_softmax(-1)[len(prompt) - 1 : -1]
            chosen = torch.tensor(completion, dtype=torch.int64).unsqueeze(-1)
            now.append(chances.gather(-1, chosen).squeeze(-1))
            before.append(torch.full((len(completion),), -3.0, dtype=torch.float64))
        wanted = reference.grpo(now, before, each.tolist(), (0.2, 0.2), groups, over)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_temperature_divides_logits():
    model, batch = TinyModel(9), flat_tokens([[1, 2]])
    cool, plain = LanguageModel(model, temperature=0.5), LanguageModel(model)
    torch.testing.assert_close(cool(batch.copy())["logits"], 2 * plain(batch.copy())["logits"])


def test_model_that_mixes_packed_conversations_is_refused():
    with pytest.raises(ValueError, match="layout='packed': logits differ from those of each"):
        LanguageModel(TinyModel(20), "packed")(flat_tokens(LIST))


def test_check_of_packed_rows_leaves_dropout_as_it_is(gpt2):
    gpt2.train()
    LanguageModel(gpt2, "packed")(flat_tokens(LIST))
    assert all(module.training for module in gpt2.modules())
    gpt2.eval()


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (lambda: LanguageModel("gpt2"), TypeError, "model: expected a function or a module"),
        (lambda: LanguageModel(TinyModel(9), "flat"), ValueError, "layout: expected 'padded'"),
        (lambda: LanguageModel(TinyModel(9), temperature=0), ValueError, "more than 0, got 0"),
    ],
)
def test_settings_are_checked(made, error, message):
    with pytest.raises(error, match=message):
        made()


def test_model_without_logits_is_refused():
    with pytest.raises(TypeError, match="expected a result with logits, got a Tensor"):
        LanguageModel(lambda input_ids: input_ids)(flat_tokens([[1]]))


def test_logits_of_another_shape_are_refused():
    def short(input_ids):
        return Output(torch.zeros(len(input_ids), 1, 5))

    for layout, shape in (("padded", r"\[2, 2, V\]"), ("packed", r"\[1, 3, V\]")):
        with pytest.raises(ValueError, match=f"model: expected logits {shape}, got"):
            LanguageModel(short, layout)(flat_tokens([[1, 2], [3]]))
