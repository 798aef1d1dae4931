from __future__ import annotations

import pytest
import torch

from rl_trees import RandomProjectionHash, SipHash


def test_hash_is_that_of_the_rounded_projection():
    rows = torch.randn(5, 30)
    module = RandomProjectionHash(n_components=3)
    module.fit(rows)
    projected = (rows.double() @ module.transform).to(torch.bfloat16)
    assert module(rows).tolist() == SipHash()(projected).tolist()


def test_hash_of_a_row_does_not_depend_on_its_batch():
    rows = torch.randn(97, 33)
    hashes = RandomProjectionHash(dtype_cast=torch.float64)(rows)
    alone = torch.cat([RandomProjectionHash(dtype_cast=torch.float64)(row[None]) for row in rows])
    assert torch.equal(hashes, alone)


def test_directions_depend_on_the_seed_alone():
    first, second, other = (RandomProjectionHash(seed=seed) for seed in (3, 3, 4))
    rows = torch.randn(4, 7)
    assert torch.equal(first(rows), second(rows))
    assert not torch.equal(first(rows), other(rows))
    assert first.transform.abs().max() < 1
    place = int.from_bytes(SipHash(key=bytes([3]) + bytes(15))(torch.tensor([0])).numpy(), "little")
    assert first.transform[0, 0] == (place >> 11) / 2**52 - 1


def test_init_method_fills_the_directions_and_they_are_saved():
    module = RandomProjectionHash(n_components=2, init_method=torch.nn.init.normal_)
    rows = torch.randn(6, 2, 5)
    hashes = module(rows)
    other = RandomProjectionHash(n_components=2)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(rows), hashes)


def test_rows_of_another_width_are_refused():
    module = RandomProjectionHash()
    module(torch.zeros(1, 4))
    with pytest.raises(ValueError, match=r"rows have 5 features, .* drawn for 4"):
        module(torch.zeros(1, 5))
    with pytest.raises(ValueError, match="n_components: expected at least 1, got 0"):
        RandomProjectionHash(n_components=0)


def test_rows_that_have_no_projection_are_named():
    with pytest.raises(TypeError, match="x: expected a dense tensor"):
        RandomProjectionHash().fit(3)
    with pytest.raises(TypeError, match="x: expected real numbers"):
        RandomProjectionHash()(torch.zeros(2, 3, dtype=torch.complex64))
    with pytest.raises(ValueError, match="for a single row"):
        RandomProjectionHash()(torch.tensor(1.0))
