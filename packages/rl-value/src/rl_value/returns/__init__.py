"""Returns and advantages of plain arrays, cut where trajectories end."""

from rl_value.returns.gae import gae
from rl_value.returns.td import reward_to_go, td0, td1, td_lambda
from rl_value.returns.vtrace import vtrace
from rl_value.scan.linear_scan import linear_scan

__all__ = ["gae", "linear_scan", "reward_to_go", "td0", "td1", "td_lambda", "vtrace"]
