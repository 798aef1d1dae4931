import torch

from rl_specs.leaves.choices import hot, pick


def test_hot_and_pick_are_inverse():
    index = torch.tensor([[2, 0, 1], [1, 1, 0]])
    vectors = hot(index, 4, torch.float32)
    assert torch.equal(vectors.argmax(-1), index)
    assert torch.equal(pick(vectors, index), torch.ones(2, 3))
