import pytest
import torch

from rl_recurrent.backends.triton.plan import make_plan, resolve


@pytest.mark.parametrize(
    ("size", "precision", "regime"),
    [
        (1, "ieee", "resident"),
        (64, "tf32", "resident"),
        (65, "tf32", "walk"),
        (65, "bf16", "resident"),  # 128 x 512 weights of 2 bytes fit on a multiprocessor
        (129, "bf16", "walk"),
        (256, "ieee", "walk"),
        (257, "ieee", "steps"),
        (1024, "bf16", "steps"),
    ],
)
def test_regime_follows_the_memory_of_a_chip(size, precision, regime):
    assert make_plan(size, 10, precision, torch.float32).regime == regime


@pytest.mark.parametrize("size", [1, 15, 16, 17, 33, 64])
def test_resident_block_is_the_next_power_of_two(size):
    block = make_plan(size, 10, "ieee", torch.float32).block_j
    assert block >= max(size, 16)
    assert block & (block - 1) == 0
    assert block == 16 or block < 2 * size


def test_many_segments_share_a_program():
    assert make_plan(64, 2112, "ieee", torch.float32).block_s == 16
    assert make_plan(64, 2113, "ieee", torch.float32).block_s == 32


def test_auto_precision_follows_the_setting_of_torch():
    before = torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = True
        assert resolve("auto", torch.float32) == (torch.float32, "tf32")
        torch.backends.cudnn.allow_tf32 = False
        assert resolve("auto", torch.float32) == (torch.float32, "ieee")
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert resolve("auto", torch.bfloat16) == (torch.bfloat16, "ieee")
    assert resolve("tf32", torch.bfloat16) == (torch.float32, "tf32")
    assert resolve("tf32x3", torch.bfloat16) == (torch.float32, "tf32x3")
    assert resolve("ieee", torch.bfloat16) == (torch.float32, "ieee")
