"""Errors of torch and of networks say what our module was given when they came."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_policies import (
    MLP,
    Actor,
    IndependentNormal,
    OneHotCategorical,
    ProbabilisticActor,
    QValueModule,
    SamplingModule,
    ValueOperator,
)

WRONG = torch.zeros(5, 3, dtype=torch.int64)


def actor():
    net = TensorDictModule(nn.Linear(3, 2), ["observation"], ["logits"])
    return ProbabilisticActor(net, ["logits"], distribution_class=OneHotCategorical)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Actor(nn.Linear(3, 2)).step(WRONG), "Actor.step was given 'observation' int64"),
        (lambda: ValueOperator(nn.Linear(3, 1)).step(), "given nothing; it reads .*observation"),
        (lambda: actor().step(WRONG), r"ProbabilisticActor.step was given .* int64 \[5, 3\]"),
        (lambda: MLP(3, 2)(WRONG), r"MLP was given int64 \[5, 3\]"),
        (lambda: QValueModule("one_hot").step("a"), "QValueModule.step was given 'action_value'"),
        (
            lambda: actor()(TensorDict({"observation": WRONG}, [5])),
            r"ProbabilisticActor was given a tensordict \[5\] of \['observation'\]",
        ),
        (lambda: MLP(3, 2, norm_class=nn.Linear), "MLP was given .*'norm_class' a class Linear"),
        (lambda: SamplingModule(3), "SamplingModule was given 'argument 1' 3"),
        (lambda: OneHotCategorical(torch.zeros(2)).expand("a"), "expand was given .* 'a'"),
    ],
    ids=map(str, range(9)),
)
def test_foreign_errors_carry_a_note(call, words):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever others raise
        call()
    (note,) = caught.value.__notes__
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(note)
    with pytest.raises(AssertionError, match=r"\. (Compare|Pass|See) .*\.$"):  # what to do
        raise AssertionError(note)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: actor()(), "ProbabilisticActor was given nothing; it reads 'observation'"),
        (lambda: actor()[torch.zeros(2)], "__getitem__ was given 'argument 1' float32"),
        (lambda: actor().select_subsequence(["a"]), "select_subsequence was given"),
    ],
    ids=["call", "item", "subsequence"],
)
def test_note_is_added_to_those_of_sequences(call, words):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever others raise
        call()
    assert any(words in note for note in caught.value.__notes__)


@pytest.mark.parametrize("value", [None, 1.0, [0.0, 0.0]])
def test_values_that_are_no_tensors_raise_with_their_type(value):
    normal = IndependentNormal(torch.zeros(2), 1.0)
    for dist in (normal, OneHotCategorical(torch.zeros(2))):
        with pytest.raises(TypeError, match="as a tensor: got"):
            dist.log_prob(value)
    with pytest.raises(TypeError, match="scale must be a tensor or a number: got list"):
        IndependentNormal(torch.zeros(2), [1.0])
