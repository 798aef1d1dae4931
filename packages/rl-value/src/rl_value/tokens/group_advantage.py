"""Advantages of sequences over others of the same group."""

from __future__ import annotations

import warnings
from typing import Literal, get_args

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import Segments, keys
from rl_tensordict import NestedKey, UnfitValue, require
from rl_tensordict.arguments import check_choice, check_number
from rl_value.arguments import floats
from rl_value.dispatch import NamedModule, check_tensordict
from rl_value.estimators.explanation import described
from rl_value.tokens.groups import check_groups, group_of, groups_line

Baseline = Literal["standardise", "mean", "leave_one_out"]


def group_advantage(
    reward: Tensor, groups: Tensor, baseline: Baseline = "standardise", eps: float = 1e-6
) -> Tensor:
    """Compare each sequence with the others of its group.

    With mean m, deviation s (of n - 1) and size n of its group, a reward r has the advantage
    ``"standardise"`` (r - m) / (s + ε) (Shao et al., arXiv:2402.03300); ``"mean"`` r - m (Liu et
    al., arXiv:2503.20783); ``"leave_one_out"`` r minus the mean of the others, (r - m) n / (n - 1)
    (Ahmadian et al., arXiv:2402.14740). The only one of a group has 0.

    Args:
        reward: float ``[S]``, of each sequence.
        groups: integers ``[S]``, equal in sequences of one group.
        baseline: what is compared with.
        eps: ε, above 0: the rounding of equal rewards is divided by it.

    Returns:
        ``[S]``, of the reward's dtype.

    Raises:
        ValueError: shapes differ, ε is not above 0, or there is no such baseline.
        TypeError: rewards are no floats, or groups no integers.

    Example:
        >>> reward, groups = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1])
        >>> group_advantage(reward, groups, "mean").tolist()
        [-1.0, 1.0, 0.0]
    """
    check_baseline(baseline, eps)
    floats(reward, "reward")
    check_groups("groups", groups)
    if reward.shape != groups.shape or reward.ndim != 1:
        msg = f"expected a reward and a group for each sequence, [S]: got {[*reward.shape]} and "
        raise UnfitValue(msg + f"{[*groups.shape]}.")
    part, size = groups.unique(return_inverse=True, return_counts=True)[1:]
    number = size.double()
    exact = reward.double()
    zeros = torch.zeros_like(number)
    surplus = exact - (zeros.index_add(0, part, exact) / number)[part]
    if baseline == "standardise":
        square = zeros.index_add(0, part, surplus.square())
        deviation = (square / (number - 1).clamp(min=1)).sqrt()
        surplus = surplus / (deviation + eps)[part]
    elif baseline == "leave_one_out":
        surplus = surplus * (number / (number - 1).clamp(min=1))[part]
    found: Tensor = surplus.masked_fill((size == 1)[part], 0).to(reward.dtype)
    return found


def check_baseline(baseline: Baseline, eps: float) -> None:
    """Raise for settings that advantages cannot be computed with."""
    check_choice("baseline", baseline, get_args(Baseline))
    check_number("eps", eps)
    if eps <= 0:
        msg = f"eps: expected more than 0, got {eps}."
        raise ValueError(msg)


class GRPOAdvantage(NamedModule):
    """Writes the advantage of each sequence over its group on all of its tokens.

    The reward of a sequence is the sum of those of its tokens. A group of one has no one to compare
    with: its advantage is 0, of which the first call that meets one warns.

    Args:
        baseline: what rewards are compared with, see `group_advantage`.
        eps: added to a deviation that is divided by; above 0.
        reward_key: float ``[*B, T, 1]``.
        group_key: int64 ``[*B, T]``.
        advantage_key: where the advantage is written, float ``[*B, T, 1]``.

    Raises:
        ValueError: there is no such baseline, or `eps` is not above 0.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> batch = trajectories([1, 2])  # rewards 1, and 1 + 2
        >>> batch["group_ids"] = torch.zeros(3, dtype=torch.int64)
        >>> GRPOAdvantage("mean")(batch)["advantage"].flatten().tolist()
        [-1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        baseline: Baseline = "standardise",
        eps: float = 1e-6,
        *,
        reward_key: NestedKey = keys.NEXT_REWARD,
        group_key: NestedKey = "group_ids",
        advantage_key: NestedKey = "advantage",
    ) -> None:
        super().__init__()
        check_baseline(baseline, eps)
        self.baseline, self.eps = baseline, eps
        self.reward_key, self.group_key = reward_key, group_key
        self.advantage_key = advantage_key
        self._has_warned = False

    @property
    def in_keys(self) -> list[NestedKey]:
        """What `forward` reads: rewards and groups."""
        return [self.reward_key, self.group_key]

    @property
    def outputs(self) -> list[NestedKey]:
        """The key of the advantage."""
        return [self.advantage_key]

    def forward(
        self, tensordict: TensorDictBase | None = None, *tensors: Tensor, **named: Tensor
    ) -> TensorDictBase:
        """Write the advantage into the batch.

        Args:
            tensordict: tokens ``[*B, T]``.
            tensors: in its place tensors in the order of `in_keys`.
            named: tensors by name, as ``next_reward`` for ``("next", "reward")``.

        Returns:
            The same tensordict.

        Raises:
            KeyError: rewards or groups are missing.
            ValueError: a shape does not fit, or a sequence is in two groups.
            TypeError: rewards are no floats, or groups no integers.
        """
        if tensors or named or not isinstance(tensordict, TensorDictBase):
            made: TensorDictBase = self.by_names((tensordict, *tensors), named)
            return made
        reward = floats(require(tensordict, self.reward_key), self.reward_key)
        segments = Segments.of(tensordict)
        total = segments.sum(reward)
        group = self._group_of(tensordict, segments)
        if total.shape[1:].numel() != 1:
            wanted = f"expected {[*tensordict.batch_size, 1]}, one reward a step"
            raise UnfitValue(f"{self.reward_key!r}: {wanted}, got {[*reward.shape]}.")
        advantage = group_advantage(total.reshape(-1), group, self.baseline, self.eps)
        self._warn_of_lone(group)
        spread = segments.scatter(segments.spread(advantage))
        tensordict.set(self.advantage_key, spread.unsqueeze(-1))
        return tensordict

    def explain(self, tensordict: TensorDictBase) -> str:
        """Say what a batch is divided into; nothing is computed or written.

        Args:
            tensordict: tokens ``[*B, T]``.

        Returns:
            A few lines: the sequences, their groups, and what rewards are compared with.

        Raises:
            KeyError: groups are missing.
        """
        check_tensordict(tensordict)
        segments = Segments.of(tensordict)
        lines = [
            f"sequences: {len(segments)} in {segments.num_real} rows",
            groups_line(self._group_of(tensordict, segments)),
            f"advantage: by {self.baseline}, spread over the rows of each sequence",
        ]
        return described(type(self).__name__, lines)

    def _group_of(self, batch: TensorDictBase, segments: Segments) -> Tensor:
        return group_of(repr(self.group_key), require(batch, self.group_key), segments)

    def _warn_of_lone(self, group: Tensor) -> None:
        if self._has_warned or group.device.type != "cpu":  # a look would wait for the device
            return
        numbers, size = group.unique(return_counts=True)
        lone = numbers[size == 1]
        if len(lone):
            self._has_warned = True
            msg = (
                f"{len(lone)} of {len(numbers)} groups have one sequence, the first is group "
                f"{int(lone[0])}: its advantage is 0 and nothing is learned from it. Draw several "
                "sequences for each prompt, and batches of whole groups."
            )
            warnings.warn(msg, UserWarning, stacklevel=4)
