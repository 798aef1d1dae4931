from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rl_value import reference
from rl_value.returns import gae, reward_to_go, td0, td1, td_lambda, vtrace

fractions = st.sampled_from([0.0, 0.3, 0.94, 1.0])


@dataclass
class Steps:
    """Steps [T, 2] of several trajectories end to end."""

    reward: Tensor
    value: Tensor
    next_value: Tensor
    log_ratio: Tensor
    terminated: Tensor
    done: Tensor

    @property
    def flags(self):
        return self.terminated, self.done

    @property
    def plain(self):
        return self.reward, self.value, self.next_value, *self.flags

    @property
    def weighted(self):
        return self.reward, self.value, self.next_value, self.log_ratio, *self.flags


@st.composite
def steps(draw, max_steps=40):
    num_steps = draw(st.integers(1, max_steps))
    ends = st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=num_steps, max_size=num_steps)
    kinds = torch.tensor(draw(ends))[:, None]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    made = torch.randn(4, num_steps, 2, generator=generator, dtype=torch.float64)
    return Steps(*made, kinds == 2, kinds > 0)


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def flags(*values):
    return torch.tensor(values, dtype=torch.bool)[:, None]


# one trajectory truncated after step 1, one terminated after step 3, one cut by the batch
REWARD = column(1, 2, 3, 4, 5)
VALUE = column(10, 20, 30, 40, 50)
NEXT = column(20, 60, 40, 70, 80)
DONE, TERMINATED = flags(0, 1, 0, 1, 0), flags(0, 0, 0, 1, 0)


def test_td0_is_its_equation():
    found = td0(REWARD, NEXT, TERMINATED, gamma=0.5)
    assert found.flatten().tolist() == [11, 32, 23, 4, 45]  # r + V' / 2, without V' at step 3


def test_td1_is_its_equation():
    found = td1(REWARD, NEXT, TERMINATED, DONE, gamma=0.5)
    assert found.flatten().tolist() == [17, 32, 5, 4, 45]  # 1 + 32 / 2; 3 + 4 / 2


def test_td_lambda_is_its_equation():
    found = td_lambda(REWARD, NEXT, TERMINATED, DONE, gamma=0.5, lmbda=0.5)
    # 1 + (20 / 2 + 32 / 2) / 2; 3 + (40 / 2 + 4 / 2) / 2
    assert found.flatten().tolist() == [14, 32, 14, 4, 45]


def test_gae_is_its_equation():
    advantage, target = gae(REWARD, VALUE, NEXT, TERMINATED, DONE, gamma=0.5, lmbda=0.5)
    # deltas 1, 12, -7, -36, -5; 1 + 12 / 4; -7 - 36 / 4
    assert advantage.flatten().tolist() == [4, 12, -16, -36, -5]
    assert target.flatten().tolist() == [14, 32, 14, 4, 45]


def test_reward_to_go_by_hand():
    assert reward_to_go(REWARD, DONE, gamma=0.5).flatten().tolist() == [2, 2, 5, 4, 5]


def test_vtrace_is_its_equation():
    log_ratio = column(0.5, 2, 1, 0.25, 4).log()
    found = vtrace(
        REWARD, VALUE, NEXT, log_ratio, TERMINATED, DONE, gamma=0.5, rho_thresh=2.0, c_thresh=1.0
    )
    # y: 0.5 * 1 + 0.5 * 0.5 * 24; 2 * 12; -7 + 0.5 * -9; 0.25 * -36; 2 * -5
    assert (found[1] - VALUE).flatten().tolist() == [6.5, 24, -11.5, -9, -10]
    # rho * (delta + 0.5 * y after): 0.5 * (1 + 12); 24; -7 - 4.5; -9; -10
    assert found[0].flatten().tolist() == [6.5, 24, -11.5, -9, -10]


def test_vtrace_carries_no_target_of_the_next_trajectory():
    later = REWARD.clone()
    later[2:] = 1e9
    zero = torch.zeros_like(REWARD)
    before = vtrace(REWARD, VALUE, NEXT, zero, TERMINATED, DONE, gamma=0.9, rho_thresh=3.0)
    after = vtrace(later, VALUE, NEXT, zero, TERMINATED, DONE, gamma=0.9, rho_thresh=3.0)
    assert torch.equal(before[0][:2], after[0][:2])


@given(steps(), fractions, fractions)
def test_returns_equal_their_loops(s, gamma, lmbda):
    both, ends = {"gamma": gamma, "lmbda": lmbda}, (s.next_value, *s.flags)
    pairs = [
        (gae(*s.plain, **both), reference.gae(*s.plain, **both)),
        (td_lambda(s.reward, *ends, **both), reference.td_lambda(s.reward, *ends, **both)),
        (td1(s.reward, *ends, gamma=gamma), reference.td_lambda(s.reward, *ends, gamma, 1.0)),
        (
            td0(s.reward, s.next_value, s.terminated, gamma=gamma),
            reference.td_lambda(s.reward, *ends, gamma, 0.0),
        ),
        (
            reward_to_go(s.reward, s.done, gamma=gamma),
            reference.reward_to_go(s.reward, s.done, gamma),
        ),
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found, expected)


@given(steps(), fractions, fractions, st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0.7, 2.0]))
def test_vtrace_equals_its_loop(s, gamma, lmbda, rho, c):
    # inside a trajectory the value after a step is the value of the next step
    inside = ~s.done[:-1]
    s.next_value[:-1] = torch.where(inside, s.value[1:], s.next_value[:-1])
    found = vtrace(*s.weighted, gamma=gamma, lmbda=lmbda, rho_thresh=rho, c_thresh=c)
    torch.testing.assert_close(found, reference.vtrace(*s.weighted, gamma, lmbda, rho, c))


@given(steps(), st.integers(0, 2**31))
def test_discount_may_be_one_per_step(s, seed):
    gamma = torch.rand(len(s.reward), 1, generator=torch.Generator().manual_seed(seed)).double()
    both = {"gamma": gamma, "lmbda": 0.9}
    torch.testing.assert_close(gae(*s.plain, **both), reference.gae(*s.plain, **both))
    ends = (s.next_value, *s.flags)
    torch.testing.assert_close(
        td_lambda(s.reward, *ends, **both), reference.td_lambda(s.reward, *ends, **both)
    )


@given(steps())
def test_returns_are_linear_in_the_reward(s):
    ends = (torch.zeros_like(s.next_value), *s.flags)
    returns = td_lambda(s.reward, *ends, gamma=0.9, lmbda=0.8)
    torch.testing.assert_close(
        td_lambda(s.reward * 3 + 1, *ends, gamma=0.9, lmbda=0.8),
        3 * returns + td_lambda(torch.ones_like(s.reward), *ends, gamma=0.9, lmbda=0.8),
    )


@given(steps(), st.data())
def test_a_cut_that_bootstraps_from_the_rest_gives_the_whole(s, data):
    at = data.draw(st.integers(1, len(s.reward)))
    whole = td1(s.reward, s.next_value, *s.flags, gamma=0.9)
    ahead = s.next_value[:at].clone()
    if at < len(s.reward) and not s.done[at - 1]:
        ahead[-1] = whole[at]
    part = td1(s.reward[:at], ahead, s.terminated[:at], s.done[:at], gamma=0.9)
    torch.testing.assert_close(part, whole[:at])


@given(steps())
def test_batches_of_rows_equal_each_row(s):
    plain = [torch.stack([value, value.flip(0)]) for value in s.plain]
    found = gae(*plain, gamma=0.9, lmbda=0.8)
    for row in range(2):
        expected = gae(*(value[row] for value in plain), gamma=0.9, lmbda=0.8)
        torch.testing.assert_close((found[0][row], found[1][row]), expected)


def test_no_value_of_a_terminated_step_is_read():
    ahead = NEXT.clone()
    ahead[3] = float("nan")
    for found in (
        td0(REWARD, ahead, TERMINATED, gamma=0.5),
        td1(REWARD, ahead, TERMINATED, DONE, gamma=0.5),
        gae(REWARD, VALUE, ahead, TERMINATED, DONE, gamma=0.5, lmbda=0.5)[0],
        vtrace(REWARD, VALUE, ahead, VALUE * 0, TERMINATED, DONE, gamma=0.5)[0],
    ):
        assert found.isfinite().all()


def test_gradients_reach_values_and_rewards():
    s = Steps(*torch.randn(4, 7, 2, dtype=torch.float64), flags(*[0] * 7), flags(*[0, 0, 1] * 2, 0))
    leaves = [value.requires_grad_() for value in (s.reward, s.value, s.next_value, s.log_ratio)]
    kwargs = {"gamma": 0.9, "lmbda": 0.8}
    assert torch.autograd.gradcheck(lambda *v: gae(*v, *s.flags, **kwargs), leaves[:3])
    assert torch.autograd.gradcheck(lambda *v: vtrace(*v, *s.flags, **kwargs), leaves)


@pytest.mark.parametrize("gamma", [-0.1, 1.01, float("nan"), torch.tensor([[0.5], [1.5]])])
def test_a_discount_outside_is_refused(gamma):
    one, no = torch.ones(2, 1), flags(0, 0)
    for call in (
        lambda: td0(one, one, no, gamma=gamma),
        lambda: td1(one, one, no, no, gamma=gamma),
        lambda: gae(one, one, one, no, no, gamma=gamma, lmbda=0.9),
        lambda: reward_to_go(one, no, gamma=gamma),
        lambda: vtrace(one, one, one, one, no, no, gamma=gamma),
    ):
        with pytest.raises(ValueError, match=r"gamma: expected a number in \[0, 1\]"):
            call()


def test_returns_name_arguments_that_do_not_fit():
    s = Steps(*torch.ones(4, 3, 1), flags(0, 0, 0), flags(0, 0, 0))
    call = {"gamma": 0.9, "lmbda": 0.9}
    wrong = replace(s, value=torch.ones(3))
    with pytest.raises(ValueError, match=r"value: expected the shape of the reward, \[3, 1\]"):
        gae(*wrong.plain, **call)
    with pytest.raises(TypeError, match=r"done: expected torch.bool, got torch.int64"):
        gae(*replace(s, done=s.done.long()).plain, **call)
    with pytest.raises(ValueError, match="terminated: expected"):
        gae(*replace(s, terminated=s.terminated[:2]).plain, **call)
    with pytest.raises(TypeError, match="reward: expected float32 or float64"):
        gae(*replace(s, reward=s.reward.half()).plain, **call)
    with pytest.raises(TypeError, match="reward: expected a tensor, got ndarray"):
        gae(s.reward.numpy(), *s.plain[1:], **call)
    with pytest.raises(ValueError, match="lmbda: expected a number"):
        gae(*s.plain, gamma=0.9, lmbda=2)
    with pytest.raises(ValueError, match="_thresh: expected a number of 0 or more, got"):
        vtrace(*s.weighted, gamma=0.9, rho_thresh=-1)
    for bound in (None, "1", torch.ones(3)):
        with pytest.raises(TypeError, match="c_thresh: expected a number of 0 or more, got"):
            vtrace(*s.weighted, gamma=0.9, c_thresh=bound)
    with pytest.raises(ValueError, match="gamma: expected a shape that broadcasts"):
        gae(*s.plain, gamma=torch.rand(2, 1), lmbda=0.9)
    with pytest.raises(ValueError, match="time_dim=5"):
        gae(*s.plain, **call, time_dim=5)


@given(steps(), fractions, fractions)
def test_steps_with_a_graph_give_what_plain_ones_do(s, gamma, lmbda):
    reward, value, ahead, *ends = s.plain
    graph = [leaf.clone().requires_grad_() for leaf in (reward, value, ahead)]
    factors = {"gamma": gamma, "lmbda": lmbda}
    for found, expected in (
        (gae(*s.plain, **factors), gae(*graph, *ends, **factors)),
        (td_lambda(reward, ahead, *ends, **factors), td_lambda(*graph[::2], *ends, **factors)),
        (reward_to_go(reward, s.done, gamma=gamma), reward_to_go(graph[0], s.done, gamma=gamma)),
    ):
        torch.testing.assert_close(found, expected)


def test_infinite_reward_stays_in_its_trajectory():
    reward = REWARD.clone()
    reward[0] = float("nan")
    advantage, target = gae(reward, VALUE, NEXT, TERMINATED, DONE, gamma=0.5, lmbda=0.5)
    exact = gae(REWARD, VALUE, NEXT, TERMINATED, DONE, gamma=0.5, lmbda=0.5)
    assert advantage[0].isnan()
    assert advantage[1:].equal(exact[0][1:])
    assert target[1:].equal(exact[1][1:])
    found = td_lambda(reward, NEXT, TERMINATED, DONE, gamma=0.5, lmbda=0.5)
    assert found[0].isnan()
    assert found[1:].isfinite().all()
    assert reward_to_go(reward, DONE, gamma=0.5)[1:].flatten().tolist() == [2.0, 5.0, 4.0, 5.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize("place", [5, 40, 4_017, 199_975])
@pytest.mark.parametrize("share", [0.004, 0.02])
@pytest.mark.usefixtures("either_way")
def test_no_bit_of_another_trajectory_changes(dtype, poison, place, share):
    size = 400_003  # two pieces, which meet at 199,987
    generator = torch.Generator().manual_seed(3)
    reward, value, ahead = torch.randn(3, size, 1, generator=generator, dtype=dtype)
    done = torch.rand(size, 1, generator=generator) < share
    no = torch.zeros_like(done)
    factors = {"gamma": 1.0, "lmbda": 0.97}
    clean = gae(reward, value, ahead, no, done, **factors)[0]
    ends = done[:, 0].nonzero()[:, 0]
    first = int(ends[ends < place].max()) + 1 if (ends < place).any() else 0
    last = int(ends[ends >= place].min())
    reward[place] = poison
    found = gae(reward, value, ahead, no, done, **factors)[0]
    assert found[:first].equal(clean[:first])
    assert found[place + 1 :].equal(clean[place + 1 :])
    assert first <= place <= last
    assert poison == 1e38 or not found[first : place + 1].isfinite().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bound", [1.5, 2.0, 10.0])
def test_weights_above_one_leave_the_range_in_front_of_zeros(dtype, bound):
    reward = torch.zeros(5_000, 1, dtype=dtype)
    reward[0] = 1
    zero, no = torch.zeros_like(reward), torch.zeros(5_000, 1, dtype=torch.bool)
    ratio = torch.full_like(reward, 20.0).log()
    _, target = vtrace(reward, zero, zero, ratio, no, no, gamma=0.99, c_thresh=bound)
    torch.testing.assert_close(target, reward)
    ratio[7] = torch.nan
    _, target = vtrace(reward, zero, zero, ratio, no, no, gamma=0.99, c_thresh=bound)
    assert target[:8].isnan().all()
    assert not target[8:].any()


@pytest.mark.parametrize("gamma", [0.5, torch.full((3, 1), 0.5)])
def test_returns_of_whole_trajectories_read_no_value_on_the_way(gamma):
    one, no = torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.bool)
    ahead = torch.tensor([[torch.nan], [torch.inf], [1.0]])
    found = td1(one, ahead, no, no, gamma=gamma)
    assert found.flatten().tolist() == [1.875, 1.75, 1.5]


def test_factors_are_multiplied_in_the_precision_of_the_rewards():
    s = Steps(*torch.randn(4, 40, 1, dtype=torch.float64), *torch.zeros(2, 40, 1).bool())
    gamma, lmbda = torch.full((40, 1), 0.99), torch.full((40, 1), 0.95)
    found = gae(*s.plain, gamma=gamma, lmbda=lmbda)[0]
    wide = gae(*s.plain, gamma=gamma.double(), lmbda=lmbda.double())[0]
    torch.testing.assert_close(found, wide, rtol=1e-14, atol=1e-14)


def test_a_learnt_discount_warns_of_nothing():
    gamma = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    td0(REWARD, NEXT, *(TERMINATED,), gamma=gamma).sum().backward()
    assert gamma.grad.isfinite()


@pytest.mark.parametrize("estimate", ["gae", "td1", "td_lambda", "vtrace"])
def test_flags_that_are_swapped_are_refused(estimate):
    one, done, terminated = column(1, 1, 1), flags(0, 1, 1), flags(0, 1, 0)
    made, settings = {
        "gae": (gae, {"gamma": 0.9, "lmbda": 0.9}),
        "td1": (td1, {"gamma": 0.9}),
        "td_lambda": (td_lambda, {"gamma": 0.9, "lmbda": 0.9}),
        "vtrace": (vtrace, {"gamma": 0.9}),
    }[estimate]
    values = (one,) * {"gae": 3, "td1": 2, "td_lambda": 2, "vtrace": 4}[estimate]
    made(*values, terminated, done, **settings)
    with pytest.raises(ValueError, match=r"1 steps are terminated and not done.*swapped"):
        made(*values, done, terminated, **settings)
