import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_slabs import RowSchema
from rl_slabs.rows.match import as_cells, bits_of, match_fields

SCHEMA = RowSchema({"a": (torch.float32, (3,)), ("next", "b"): (torch.bool, (1,))})


def source(**changed):
    leaves = {"a": torch.ones(5, 3), "b": torch.ones(5, 1, dtype=torch.bool)} | changed
    return TensorDict({"a": leaves.pop("a"), "next": leaves}, batch_size=[5])


def fit(tensordict, exact=True):
    return match_fields(tensordict, SCHEMA.fields, torch.Size([5]), exact=exact)


def test_leaves_come_in_the_order_of_the_fields():
    assert [tuple(leaf.shape) for leaf in fit(source())] == [(5, 3), (5, 1)]


def test_a_missing_leaf_is_named_with_what_came():
    with pytest.raises(KeyError, match=r"leaf \('next', 'b'\) \(bool \[1\]\) is missing: got"):
        fit(TensorDict({"a": torch.ones(5, 3)}))


def test_an_unknown_leaf_is_named():
    with pytest.raises(KeyError, match=r"no place for \[\('next', 'c'\)\]"):
        fit(source(c=torch.ones(5)))
    assert len(fit(source(c=torch.ones(5)), exact=False)) == 2


def test_a_wrong_dtype_says_both():
    with pytest.raises(TypeError, match=r"'a': expected torch.float32, got torch.float64"):
        fit(source(a=torch.ones(5, 3, dtype=torch.float64)))


@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 1), (5,)])
def test_a_wrong_shape_says_both(shape):
    with pytest.raises(ValueError, match=r"'a': expected shape \[5, 3\].*got \[5"):
        fit(source(a=torch.ones(shape)))


def test_a_wrong_number_of_rows_is_refused():
    with pytest.raises(ValueError, match=r"expected shape \[4, 3\]"):
        match_fields(source(), SCHEMA.fields, torch.Size([4]), exact=True)


def test_a_dict_less_thing_is_refused():
    with pytest.raises(TypeError, match="expected a tensordict to write, got Tensor"):
        fit(torch.ones(5))


def test_lazily_conjugated_negated_and_tracked_leaves_are_resolved():
    number = torch.tensor([1 + 2j])
    assert bits_of(number.conj(), torch.complex64)[0] == 1 - 2j
    assert bits_of(number.conj().imag, torch.float32)[0] == -2
    assert bits_of(torch.ones(1, requires_grad=True), torch.float32)[0] == 1


def test_cells_of_strided_and_of_transposed_rows_hold_the_same_bytes():
    wide = np.arange(40, dtype=np.int32).reshape(5, 8)
    for array in (wide[:, 2:5], np.ascontiguousarray(wide[:, 2:5].T).T):
        assert as_cells(array).tobytes() == wide[:, 2:5].tobytes()
    assert np.shares_memory(as_cells(wide[:, 2:5]), wide)


def test_a_leaf_without_data_has_no_bits():
    with pytest.raises(ValueError, match=r"a leaf \[2, 3\] of torch\.float32 .* holds no data"):
        bits_of(torch.ones(2, 3, device="meta"), torch.float32)
