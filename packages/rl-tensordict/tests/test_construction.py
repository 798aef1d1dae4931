import torch
from tensordict import TensorDict

from rl_tensordict.construction import _direct, _is_same, checked, finished


def entries():
    nested = TensorDict({"reward": torch.ones(5, 1)}, batch_size=[5])
    return {"observation": torch.zeros(5, 3), "next": nested}


def test_the_private_constructor_is_the_one_in_use():
    assert finished is _direct


def test_a_tensordict_of_other_attributes_is_not_the_same():
    made = finished({}, torch.Size([5]))
    assert _is_same(made, TensorDict({}, batch_size=[5]))
    made._one_more = None
    assert not _is_same(made, TensorDict({}, batch_size=[5]))


def test_both_constructors_agree():
    batch = torch.Size([5])
    quick, slow = finished(entries(), batch), checked(entries(), batch)
    assert (quick == slow).all()
    assert quick.batch_size == slow.batch_size == batch
    assert (quick.device, quick.names, quick.is_locked) == (slow.device, slow.names, slow.is_locked)


def test_a_finished_tensordict_can_be_changed_indexed_and_stacked():
    quick = finished(entries(), torch.Size([5]))
    quick["next", "done"] = torch.zeros(5, 1, dtype=torch.bool)
    assert torch.stack([quick[1:4], quick[:3]])["next", "done"].shape == (2, 3, 1)
