"""Which action a search tries next."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl_tensordict.arguments import check_flags, check_number, check_whole
from rl_trees.search.columns import EXP3_RULE, GUMBEL_RULE, PUCT_RULE, UCB1_RULE, Rule


class SelectionRule(ABC):
    """How a search chooses among the actions of a node.

    n(a) are the visits of an action, N their sum, Q(a) the mean return, P(a) the prior. Of equal
    scores the first action is chosen. A selection that is not backed up counts as a visit with the
    loss of a virtual visit.
    """

    kind: int

    @abstractmethod
    def parameters(self) -> tuple[float, ...]:
        """At most four numbers that the loops take."""

    def plan(self, actions: int) -> NDArray[np.int32]:
        """The visits that a simulation looks for at a root; nothing unless a rule plans ahead.

        Args:
            actions: The most actions.
        """
        return np.zeros((1, 1), np.int32)

    def rule(self, virtual_loss: float) -> Rule:
        """Kind and numbers for the loops."""
        check_number("virtual_loss", virtual_loss)
        numbers = [*self.parameters(), 0.0, 0.0, 0.0, 0.0][:4]
        return Rule(self.kind, np.array([*numbers, virtual_loss]))


@dataclass(frozen=True)
class PUCT(SelectionRule):
    """Q(a) + P(a) sqrt(N) / (1 + n(a)) (c + log((N + c_base + 1) / c_base)).

    Args:
        c: How much priors count.
        c_base: Visits after which they count more, above 0.
        first_play: Q of an action without visits.
        normalize: Map means to [0, 1] by the least and the greatest one of a tree.

    Source:
        Silver et al. (2018), A general reinforcement learning algorithm that masters chess, shogi
        and Go through self-play.

    Example:
        >>> PUCT(c=2.0).parameters()
        (2.0, 19652.0, 0.0, 0.0)
    """

    c: float = 1.25
    c_base: float = 19652.0
    first_play: float = 0.0
    normalize: bool = False
    kind = PUCT_RULE

    def __post_init__(self) -> None:
        check_number("first_play", self.first_play)
        _check_finite("c", self.c)
        _check_finite("c_base", self.c_base)
        if self.c_base <= 0:
            raise ValueError(f"c_base: expected a number above 0, got {self.c_base}.")
        check_flags(normalize=self.normalize)

    def parameters(self) -> tuple[float, ...]:
        """c, c_base, first_play, normalize."""
        return self.c, self.c_base, self.first_play, float(self.normalize)


@dataclass(frozen=True)
class UCB1(SelectionRule):
    """Q(a) + c sqrt(log(N) / n(a)), after every action was tried once.

    Args:
        c: How much rarely tried actions count.

    Source:
        Kocsis and Szepesvari (2006), Bandit based Monte-Carlo planning.

    Example:
        >>> UCB1(c=0.5).parameters()
        (0.5,)
    """

    c: float = math.sqrt(2)
    kind = UCB1_RULE

    def __post_init__(self) -> None:
        _check_finite("c", self.c)

    def parameters(self) -> tuple[float, ...]:
        """C."""
        return (self.c,)


@dataclass(frozen=True)
class EXP3(SelectionRule):
    """Draws a with probability p(a) = (1 - g) w(a) / sum(w) + g / K of K legal actions.

    After a return x, mapped to [0, 1], the weight of the action becomes w exp(g x / (p K)).

    Args:
        gamma: g, between 0 and 1.
        low: The least return.
        high: The greatest return; returns outside are cut off.

    Source:
        Auer, Cesa-Bianchi, Freund and Schapire (2002), The nonstochastic multiarmed bandit problem.

    Raises:
        ValueError: Numbers out of range.
        TypeError: They are no numbers.

    Example:
        >>> EXP3(gamma=0.2).parameters()
        (0.2, -1.0, 1.0)
    """

    gamma: float = 0.1
    low: float = -1.0
    high: float = 1.0
    kind = EXP3_RULE

    def __post_init__(self) -> None:
        for name in ("gamma", "low", "high"):
            check_number(name, getattr(self, name))
        if not 0 < self.gamma <= 1 or not self.low < self.high:
            raise ValueError(
                f"gamma must be in (0, 1] and low below high, got {self.gamma}, {self.low} and "
                f"{self.high}."
            )

    def parameters(self) -> tuple[float, ...]:
        """gamma, low, high."""
        return self.gamma, self.low, self.high


@dataclass(frozen=True)
class GumbelHalving(SelectionRule):
    """Sequential halving of actions at the root, and the improved policy below it.

    At the root the best `max_considered` actions by noise + logits are tried equally often, then
    the better half of them by noise + logits + s(Q), and so on. Elsewhere the action with the
    greatest P'(a) - n(a) / (1 + N) is chosen, with P' = softmax(logits + s(Q)) and
    s(Q) = (visit_offset + max n) value_scale Q, where Q is mapped to [0, 1] in each node and is
    the mixed value if there are no visits.

    Args:
        num_simulations: Simulations of a search.
        max_considered: Actions that are tried at the root.
        value_scale: How much means count, 0 or more.
        visit_offset: Visits that are added for it, 0 or more.

    Source:
        Danihelka et al. (2022), Policy improvement by planning with Gumbel.

    Raises:
        ValueError: Numbers out of range.
        TypeError: They are no numbers.

    Example:
        >>> GumbelHalving(8, max_considered=4).plan(4)[4].tolist()
        [0, 0, 0, 0, 1, 1, 2, 2]
    """

    num_simulations: int
    max_considered: int = 16
    value_scale: float = 0.1
    visit_offset: float = 50.0
    kind = GUMBEL_RULE

    def __post_init__(self) -> None:
        for name in ("num_simulations", "max_considered"):
            check_whole(name, getattr(self, name), 1)
        for name in ("value_scale", "visit_offset"):
            _check_finite(name, getattr(self, name), 0)

    def parameters(self) -> tuple[float, ...]:
        """max_considered, value_scale, visit_offset."""
        return float(self.max_considered), self.value_scale, self.visit_offset

    def plan(self, actions: int) -> NDArray[np.int32]:
        """For each number of actions, the visits that an action has which a simulation tries.

        Args:
            actions: The most actions.

        Returns:
            int32 `[actions + 1, num_simulations]`.
        """
        check_whole("actions", actions, 1)
        return np.array([self._rounds(count) for count in range(actions + 1)], np.int32)

    def _rounds(self, considered: int) -> list[int]:
        """Rounds of equal visits, each with half of the actions of the one before."""
        if considered <= 1:
            return list(range(self.num_simulations))
        halvings = math.ceil(math.log2(considered))
        plan: list[int] = []
        visits = 0
        while len(plan) < self.num_simulations:
            # each halving gets an equal share of the simulations, spread over its actions
            for _ in range(max(1, self.num_simulations // (halvings * considered))):
                plan += [visits] * considered
                visits += 1
            considered = max(2, considered // 2)
        return plan[: self.num_simulations]


def _check_finite(name: str, value: float, least: float = -math.inf) -> None:
    """Raises unless a number is finite and not below the least one."""
    check_number(name, value)
    if not math.isfinite(value) or value < least:
        bound = "" if least == -math.inf else f" of at least {least}"
        raise ValueError(f"{name}: expected a finite number{bound}, got {value}.")
