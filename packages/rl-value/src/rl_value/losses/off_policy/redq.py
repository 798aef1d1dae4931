"""Randomized ensembled double Q-learning."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_tensordict.arguments import check_whole
from rl_value.losses.bootstrapped.critics import members_of
from rl_value.losses.off_policy.sac import SACLoss


class REDQLoss(SACLoss):
    """Soft actor-critic with many critics, of which a few at random give each target (REDQ).

        target    r + γ (min over a random subset of Q'ᵢ(s', a') - α log π(a' | s'))
        critics   Σᵢ d(Qᵢ(s, a), target)
        actor     α log π(ã | s) - meanᵢ Qᵢ(s, ã)

    Everything else is as in `SACLoss`. Critics may have dropout and layer norms, with which two
    are enough (DroQ): dropout draws for each critic, in targets too.
    (Chen et al., arXiv:2101.05982; Hiraoka et al., arXiv:2110.02034.)

    Args:
        actor_network: has ``get_dist``, whose samples have gradients.
        qvalue_network: as `SACLoss` takes it; 10 critics are made of a single one.
        sub_sample_len: how many critics give a target.
        min_alpha: least α.
        max_alpha: greatest α.
        settings: what `SACLoss` takes besides.

    Raises:
        ValueError: as `SACLoss`, and for more critics in a target than there are.
        TypeError: a network is no tensordict module, or an argument belongs elsewhere.

    Example:
        >>> from rl_value import REDQLoss, SACLoss
        >>> issubclass(REDQLoss, SACLoss)
        True
    """

    num_critics = 10

    def __init__(
        self,
        actor_network: TensorDictModuleBase,
        qvalue_network: Any,
        *,
        sub_sample_len: int = 2,
        min_alpha: float | None = 0.1,
        max_alpha: float | None = 10.0,
        **settings: Any,
    ) -> None:
        super().__init__(
            actor_network, qvalue_network, min_alpha=min_alpha, max_alpha=max_alpha, **settings
        )
        check_whole("sub_sample_len", sub_sample_len, 1)
        there = members_of(self.qvalue_network)
        if there is not None and sub_sample_len > there:
            msg = f"sub_sample_len={sub_sample_len}, and there are {there} critics."
            raise ValueError(msg)
        self.sub_sample_len = sub_sample_len

    def _of_next(self, values: Tensor) -> Tensor:
        """The least value of some critics ``[*B, num, 1]``, drawn once for a batch."""
        some = torch.randperm(values.shape[-2], device=values.device)[: self.sub_sample_len]
        return values.index_select(-2, some).amin(-2)

    def _of_actor(self, values: Tensor) -> Tensor:
        """The mean value of the critics."""
        return values.mean(-2)
