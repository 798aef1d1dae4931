"""What an evaluation found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of the episodes of an evaluation.

    Attributes:
        returns: float64 ``[N]``, the undiscounted return of each episode that ended.
        lengths: int64 ``[N]``, its steps.
        rows: int64 ``[N]``, the row of the environment's batch that played it.
        num_unfinished: episodes that were still running when the evaluation was cut.

    Example:
        >>> found = Evaluation(np.array([1.0, 2, 3, 10]), np.ones(4), np.zeros(4), 0)
        >>> found.mean, found.iqm
        (4.0, 2.5)
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]
    num_unfinished: int

    @property
    def mean(self) -> float:
        """The mean return; NaN without an episode."""
        return float(self.returns.mean()) if len(self.returns) else float("nan")

    @property
    def iqm(self) -> float:
        """The interquartile mean: that of the middle half of the returns.

        A quarter of the episodes, rounded down, is left out at each end. (Agarwal et al.,
        arXiv:2108.13264.)
        """
        return float(interquartile_mean(self.returns)) if len(self.returns) else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds of the 95 % interval of the interquartile mean, by percentiles of the bootstrap.

        Episodes are drawn anew 2,000 times, with the same random numbers in every call.
        """
        if not len(self.returns):
            return float("nan"), float("nan")
        size = (RESAMPLES, len(self.returns))
        drawn = self.returns[np.random.default_rng(0).integers(len(self.returns), size=size)]
        low, high = np.quantile(interquartile_mean(drawn), [0.025, 0.975])
        return float(low), float(high)

    def metrics(self, name: str = "eval") -> dict[str, float]:
        """The numbers that a logger takes.

        Args:
            name: what their names begin with.

        Returns:
            Mean, interquartile mean with its interval, mean length, and numbers of episodes.
        """
        low, high = self.interval
        length = float(self.lengths.mean()) if len(self.lengths) else float("nan")
        found = {"return": self.mean, "iqm": self.iqm, "iqm_low": low, "iqm_high": high}
        counts = {
            "length": length,
            "episodes": len(self.returns),
            "unfinished": self.num_unfinished,
        }
        return {f"{name}/{key}": value for key, value in (found | counts).items()}

    def __repr__(self) -> str:
        """The interquartile mean, its interval, and how many episodes it is of."""
        low, high = self.interval
        cut = f", {self.num_unfinished} unfinished" if self.num_unfinished else ""
        spread = f"iqm={self.iqm:.4g} [{low:.4g}, {high:.4g}]"
        return f"Evaluation({spread}, mean={self.mean:.4g}, {len(self.returns)} episodes{cut})"


def interquartile_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the middle half along the last axis, ``[..., N]`` to ``[...]``."""
    cut = values.shape[-1] // 4
    return np.asarray(np.sort(values, -1)[..., cut : values.shape[-1] - cut].mean(-1))
