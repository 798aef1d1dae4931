"""Hashes of texts and rows."""

import subprocess
import sys
from hashlib import blake2b

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict

from rl_specs import NonTensor, Unbounded
from rl_text import Hash


def hashed(value, size, **options):
    return Hash(["x"], ["h"], **options)(TensorDict({"x": value}, [size]))["h"]


@given(st.lists(st.text(max_size=4), min_size=1, max_size=6))
def test_equal_texts_and_no_others_have_equal_hashes(texts):
    found = hashed(NonTensorStack(*texts), len(texts)).tolist()
    assert [found.index(one) for one in found] == [texts.index(text) for text in texts]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64, torch.bfloat16])
def test_rows_of_a_tensor_are_hashed_by_their_bytes(dtype):
    rows = torch.tensor([[1, 2], [3, 4], [1, 2]], dtype=dtype)
    found = hashed(rows, 3)
    assert found.shape == (3,)
    assert found[0] == found[2] != found[1]
    again = hashed(rows.T.contiguous().T, 3)  # another layout in memory
    assert again.equal(found)


def test_hash_is_that_of_the_standard_library_in_every_process():
    wanted = int.from_bytes(
        blake2b(b"ab", digest_size=8, salt=bytes(16)).digest(), "little", signed=True
    )
    assert hashed(NonTensorStack("ab"), 1).item() == wanted
    program = (
        "from tensordict import NonTensorStack, TensorDict\n"
        "from rl_text import Hash\n"
        "print(Hash(['x'])(TensorDict({'x': NonTensorStack('ab')}, [1]))['x'].item())"
    )
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        check=True,
        timeout=120,
    )
    assert int(said.stdout) == wanted


def test_dimensions_that_are_hashed_together():
    grid = torch.arange(24).view(2, 3, 4)
    assert hashed(grid, 2).shape == (2, 3)
    assert hashed(grid, 2, feature_dims=2).shape == (2,)
    assert hashed(grid, 2, feature_dims=0).shape == (2, 3, 4)


def test_rows_are_not_hashed_together():
    """One hash of a whole batch would be no hash of any row."""
    numbers = torch.tensor([1, 2, 1])
    with pytest.raises(ValueError, match=r"'x': expected 1 dimensions .* got 0 .* feature_dims=0"):
        hashed(numbers, 3)
    with pytest.raises(ValueError, match="feature_dims=0"):
        Hash(["x"], ["h"]).reset(TensorDict({"x": numbers}, [3]))
    found = hashed(numbers, 3, feature_dims=0).tolist()
    assert found[0] == found[2] != found[1]
    assert Hash(["x"], ["h"])(TensorDict({"x": numbers[0]}, []))["h"] == found[0]


@pytest.mark.parametrize("features", [(3,), (0,), (2, 0)])
def test_batch_without_rows_has_no_hashes(features):
    assert hashed(torch.zeros(0, *features), 0, feature_dims=len(features)).shape == (0,)


def test_seeds_of_any_size():
    assert hashed(NonTensorStack("a"), 1, seed=2**200 - 1).equal(
        hashed(NonTensorStack("a"), 1, seed=-1)
    )


def test_seeds_and_functions_of_ones_own():
    texts = NonTensorStack("a", "b")
    assert not hashed(texts, 2).equal(hashed(texts, 2, seed=1))
    assert hashed(texts, 2, hash_fn=lambda data: 2**64 - data[0]).tolist() == [-97, -98]


def test_specs_have_the_shape_of_hashes():
    module = Hash(["x"])
    assert module.leaf_spec(NonTensor((3,))).shape == (3,)
    assert module.leaf_spec(Unbounded((3, 4))).shape == (3,)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"hash_fn": 3}, TypeError, "hash_fn: expected a function"),
        ({"seed": 0.5}, TypeError, "seed: expected a whole number"),
        ({"feature_dims": -1}, ValueError, "feature_dims: expected at least 0"),
    ],
)
def test_settings_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        Hash(["x"], **options)
