"""Compiled losses of policies give what the others give."""

import pytest
import torch

from rl_layout import keys
from rl_layout.testing import EndKind
from rl_value import (
    A2CLoss,
    ClipPPOLoss,
    KLPENPPOLoss,
    PPOLoss,
    ReinforceLoss,
)

KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


def test_compiled_losses_give_the_same(linear_critic, discrete_actor, flat_batch, masked):
    batch, loss = (
        flat_batch(),
        ClipPPOLoss(discrete_actor(), linear_critic(), normalize_advantage=True),
    )
    masked(batch)
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    for name, value in compiled(batch).items():
        torch.testing.assert_close(value, loss(batch)[name])
    batch = batch.exclude("advantage", "value_target")
    again = torch.compile(loss, backend="eager")(batch.copy())
    expected = loss(batch.copy())
    torch.testing.assert_close(again["loss_objective"], expected["loss_objective"])


@pytest.mark.parametrize("loss_class", [PPOLoss, ClipPPOLoss, KLPENPPOLoss, A2CLoss, ReinforceLoss])
def test_every_loss_is_one_graph_also_of_other_parameters(
    loss_class, linear_critic, discrete_actor, flat_batch, masked
):
    batch, loss = flat_batch(), loss_class(discrete_actor(), linear_critic())
    batch["logits"] = torch.randn(9, 3, dtype=torch.float64)
    masked(batch)
    torch.compiler.reset()
    doubled = {name: value.detach() * 2 for name, value in loss.named_parameters()}
    doubled |= {name: value.clone() for name, value in loss.named_buffers()}  # β moves

    def call(batch, given):
        return dict(torch.func.functional_call(loss, given, (batch,)).items())

    expected = call(batch, {name: value.clone() for name, value in doubled.items()})
    found = torch.compile(call, backend="eager", fullgraph=True)(batch, doubled)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("flag", [keys.MASK, keys.SHIFTED_VALID, keys.NEXT_MISSING])
def test_compiled_code_takes_note_of_a_flag_that_was_missing_before(
    flag, linear_critic, discrete_actor, flat_batch
):
    batch, loss = flat_batch(), PPOLoss(discrete_actor(), linear_critic())
    compiled = torch.compile(lambda batch: loss(batch)["loss_critic"], backend="eager")
    before = compiled(batch)
    batch[flag] = torch.arange(9) % 2 == 0
    torch.testing.assert_close(compiled(batch), loss(batch)["loss_critic"])
    assert compiled(batch) != before


def test_compiled_code_breaks_once_where_advantages_are_estimated(
    linear_critic, discrete_actor, flat_batch
):
    batch, loss = flat_batch(), ClipPPOLoss(discrete_actor(), linear_critic())
    torch.compiler.reset()
    # private: torch.compiler counts no graph breaks
    found = torch._dynamo.explain(loss)(batch.exclude("advantage"))
    assert (found.graph_count, found.graph_break_count) == (2, 1)
