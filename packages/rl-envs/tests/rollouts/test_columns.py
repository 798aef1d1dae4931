import torch

from rl_envs.rollouts.columns import Columns
from rl_specs import Unbounded


def columns():
    made = Columns(torch.Size([2]), 3)
    made.add_leaves([(("a", "b"), Unbounded((2, 5)))])
    return made


def test_tensors_and_arrays_share_memory():
    made = columns()
    made.write(1, ("a", "b"), torch.ones(2, 5))
    assert made.tensors["a", "b"][:, 1].sum() == 10
    assert made.at(1, [("a", "b")])["a", "b"].shape == (2, 5)


def test_growing_keeps_what_is_written():
    made = columns()
    made.write(2, ("a", "b"), torch.ones(2, 5))
    made.grow(7)
    assert made.arrays["a", "b"].shape == (2, 7, 5)
    assert made.arrays["a", "b"].sum() == 10
    made.write(6, ("a", "b"), torch.ones(2, 5))
    assert made.batch(7, copy=False)["a", "b"].sum() == 20


def test_a_batch_of_fewer_steps_holds_no_more_memory():
    batch = columns().batch(2, copy=True)
    assert batch.shape == (2, 2)
    assert batch.names == [None, "time"]
    assert batch["a", "b"].untyped_storage().nbytes() == 2 * 2 * 5 * 4


def test_only_what_has_the_form_of_a_column_fits():
    made = columns()
    assert made.fits(("a", "b"), torch.zeros(2, 5))
    assert not made.fits(("a", "b"), torch.zeros(2, 3))
    assert not made.fits(("a", "b"), torch.zeros(2, 5).double())
