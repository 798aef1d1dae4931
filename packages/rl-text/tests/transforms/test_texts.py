"""Texts of entries that are no tensors."""

import torch
from tensordict import NonTensorStack

from rl_text.transforms.texts import texts_of


def test_texts_of_a_stack_are_listed_with_their_shape():
    assert texts_of(NonTensorStack("a", "b")) == (["a", "b"], torch.Size([2]))
