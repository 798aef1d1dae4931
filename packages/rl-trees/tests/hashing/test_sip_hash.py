from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_trees import SipHash

MASK = 2**64 - 1


def siphash(data, key):
    """The algorithm of the paper on one string, word by word."""
    k = [int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")]
    v = [
        0x736F6D6570736575 ^ k[0],
        0x646F72616E646F6D ^ k[1],
        0x6C7967656E657261 ^ k[0],
        0x7465646279746573 ^ k[1],
    ]

    def left(x, bits):
        return ((x << bits) | (x >> (64 - bits))) & MASK

    def rounds(times):
        for _ in range(times):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = left(v[1], 13) ^ v[0]
            v[0] = left(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = left(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = left(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = left(v[1], 17) ^ v[2]
            v[2] = left(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for begin in range(0, len(padded), 8):
        word = int.from_bytes(padded[begin : begin + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def hashed(rows, key=bytes(16)):
    return [h % 2**64 for h in SipHash(key=key)(rows).tolist()]


def test_hash_is_that_of_the_authors_vectors(loops):
    key = bytes(range(16))
    published = {0: 0x726FDB47DD0E0E31, 1: 0x74F839C593DC67FD, 15: 0xA129CA6149BE45E5}
    for length, value in published.items():
        rows = torch.arange(length, dtype=torch.uint8).expand(2, length)
        assert hashed(rows, key) == [value, value]
        assert siphash(bytes(range(length)), key) == value


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 41), st.integers(1, 70), st.binary(min_size=16, max_size=16))
def test_hash_is_that_of_each_row_alone(loops, width, count, key):
    rows = torch.from_numpy(np.random.default_rng(width).integers(0, 256, (count, width), np.uint8))
    assert hashed(rows, key) == [siphash(bytes(row.tolist()), key) for row in rows]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.int64])
def test_hash_is_of_the_bytes_of_any_dtype(dtype):
    rows = torch.tensor([[0, 1, 1], [1, 0, 1], [0, 1, 1]]).to(dtype)
    expected = [siphash(bytes(row.view(torch.uint8).tolist()), bytes(16)) for row in rows]
    assert hashed(rows) == expected
    assert SipHash(as_tensor=False)(rows) == [bytes(r.view(torch.uint8).tolist()) for r in rows]


def test_hash_of_strided_rows_is_that_of_their_copy():
    rows = torch.arange(24.0).reshape(4, 6)[:, ::2]
    assert hashed(rows) == hashed(rows.clone())
    assert hashed(torch.arange(3)) == hashed(torch.arange(3)[:, None])  # a number is a row


def test_hash_is_the_same_in_every_process():
    code = (
        "import torch; from rl_trees import SipHash; print(SipHash()(torch.arange(6.).view(2, 3)))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert printed == {str(SipHash()(torch.arange(6.0).view(2, 3)))}


def test_a_tensor_without_rows_and_a_short_key_are_refused():
    with pytest.raises(ValueError, match=r"no dimension of rows: pass x.unsqueeze\(0\)"):
        SipHash()(torch.tensor(1.0))
    with pytest.raises(ValueError, match="key must have 16 bytes, got 3"):
        SipHash(key=b"abc")


@pytest.mark.parametrize(
    "rows",
    [
        [1.0],
        torch.eye(2).to_sparse(),
        torch.zeros(2, 3, device="meta"),
        torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
    ],
)
def test_what_has_no_bytes_is_named(rows):
    with pytest.raises(TypeError, match=r"x: expected a (dense )?tensor"):
        SipHash()(rows)
