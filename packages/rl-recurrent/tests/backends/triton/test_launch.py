import pytest
import torch

from rl_layout import Segments
from rl_recurrent.backends.triton.launch import NO_END, Frame, LaunchPlan, make_plan, resolve


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


def frame_of(regime, lengths, block_s=2):
    plan = LaunchPlan(regime, torch.float32, "ieee", block_s, 16, 16, 4, 1)
    return Frame.of(Segments.from_lengths(torch.tensor(lengths)), plan)


def test_walk_is_one_launch():
    assert list(frame_of("walk", [3, 1, 2]).launches(40)) == [((2, 1), 0, NO_END)]


def test_steps_are_launches_that_share_the_columns():
    launches = list(frame_of("steps", [3, 1, 2]).launches(40))
    assert launches == [((2, 3), 0, 1), ((2, 3), 1, 2), ((2, 3), 2, 3)]


def test_before_is_the_previous_row_or_the_initial_state():
    states = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    before = frame_of("walk", [2, 1, 1]).before(states, torch.tensor([[-1.0], [-2.0], [-3.0]]))
    assert before[:, 0].tolist() == [-1, 1, -2, -3]


def test_rows_are_counted_among_the_real_ones():
    plan = frame_of("walk", [1]).plan
    segments = Segments.from_ids(torch.tensor([4, 4, -1, 7]))
    assert segments.starts.tolist() == [0, 3]
    assert Frame.of(segments, plan).first.tolist() == [0, 2]


def test_weights_of_tf32_products_are_rounded_to_nearest_not_cut():
    plan = LaunchPlan("walk", torch.float32, "tf32", 2, 16, 16, 4, 1)
    frame = Frame.of(Segments.from_lengths(torch.tensor([1])), plan)
    step = 2.0**-10  # of a number with 10 bits between 1 and 2
    given = torch.tensor([1 + 0.75 * step, 1 + 0.25 * step, -1 - 0.75 * step, torch.inf])
    assert frame.weights(given).tolist() == [1 + step, 1.0, -1 - step, torch.inf]
    odd = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)  # NaN, all bits set
    assert frame.weights(odd).isnan().all()
    assert torch.equal(frame_of("walk", [1]).weights(given), given)
