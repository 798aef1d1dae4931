import torch

from rl_layout import Segments
from rl_recurrent.backends.triton.frame import NO_END, Frame
from rl_recurrent.backends.triton.plan import LaunchPlan


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
