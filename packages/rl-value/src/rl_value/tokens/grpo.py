"""Group-relative policy optimisation."""

from __future__ import annotations

from typing import Any, get_args

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_layout import Segments
from rl_tensordict import NestedKey, UnfitValue, UnknownName, as_tuple, copied, find, require
from rl_tensordict.arguments import check_choice
from rl_value.actions import distribution_of, log_probability, of_action
from rl_value.arguments import check_weights, floats
from rl_value.losses.loss import LossModule, refuse_moved
from rl_value.losses.ppo import clip_range, clipped_gain
from rl_value.masked_means import kept, reduce
from rl_value.networks import noted, require_network
from rl_value.tokens.groups import groups_line
from rl_value.tokens.means import MeanOver, token_mean


class GRPOLoss(LossModule):
    """Clipped objective of a language model on flat tokens, without a critic.

    -E[min(w A, clip(w, 1 - ε₁, 1 + ε₂) A)], w = π(a|s) / μ(a|s) of each token, and where `kl_coeff`
    is given β E[exp(r) - r - 1], r = log ρ(a|s) - log π(a|s) with a reference policy ρ. Written are
    ``loss_objective``, ``loss_kl`` with its mean ``kl_to_ref``, and ``clip_fraction``,
    ``kl_approx``, ``ESS``, ``max_ratio`` and ``mean_ratio``. (Shao et al., arXiv:2402.03300; means
    over tokens and two ε are those of Yu et al., arXiv:2503.14476.)

    Args:
        actor_network: writes ``"logits"`` ``[*B, T, V]``, or has ``get_dist``. Tokens of one
            sequence must not see those of another one.
        clip_epsilon: ε, or two of them, below and above 1; an annealed one is set anew.
        kl_coeff: β; None for no reference, whose ``"ref_log_prob"`` is not read then.
        over: what has the same weight in means, see `token_mean`.
        reduction: ``"mean"``, ``"sum"`` of all tokens, or ``"none"``, which gives ``[*B, T]``;
            `over` is for the mean alone.
        loss_mask_key: bool ``[*B, T]``, actions that count.
        check_finite: raise where a loss is NaN or infinite, see `LossModule`.

    Raises:
        TypeError: the actor is no tensordict module, or an argument belongs elsewhere.
        ValueError: an ε or β is out of range, or there is no such mean.

    Example:
        >>> from rl_layout.synthetic import trajectories
        >>> from tensordict.nn import TensorDictModule
        >>> actor = TensorDictModule(torch.nn.Linear(2, 9), ["observation"], ["logits"])
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = torch.randint(9, (7,))
        >>> batch["loss_mask"] = torch.ones(7, dtype=torch.bool)
        >>> batch["sample_log_prob"], batch["advantage"] = torch.zeros(7), torch.ones(7, 1)
        >>> GRPOLoss(actor)(batch)["loss_objective"].shape
        torch.Size([])
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        actor_network: TensorDictModuleBase,
        *,
        clip_epsilon: float | tuple[float, float] = 0.2,
        kl_coeff: float | None = None,
        over: MeanOver = "token",
        reduction: Any = None,
        loss_mask_key: NestedKey | None = "loss_mask",
        check_finite: bool | None = None,
        **moved: Any,
    ) -> None:
        refuse_moved(moved)
        super().__init__(
            reduction=reduction,
            loss_mask_key=loss_mask_key,
            check_finite=check_finite,
            ref_log_prob="ref_log_prob",
            group_ids="group_ids",
            logits="logits",
        )
        require_network("actor_network", actor_network)
        check_choice("over", over, get_args(MeanOver))
        if kl_coeff is not None:
            check_weights(kl_coeff=kl_coeff)
        self.actor_network = actor_network
        self.actor_method = "get_dist" if hasattr(actor_network, "get_dist") else "forward"
        clip_range(clip_epsilon)
        self.clip_epsilon = clip_epsilon
        self.kl_coeff = kl_coeff
        self.over: MeanOver = over

    @property
    def in_keys(self) -> list[NestedKey]:
        """What `forward` reads."""
        names = ["action", "sample_log_prob", "advantage"]
        names += ["ref_log_prob"] * (self.kl_coeff is not None)
        names += ["group_ids"] * (self.over == "group")
        own = [self.entries[name] for name in names]
        masks = [self.loss_mask_key] if self.loss_mask_key not in (None, "auto") else []
        return list(dict.fromkeys([*own, *masks, *self.actor_network.in_keys]))

    @property
    def outputs(self) -> list[NestedKey]:
        """The names of losses and statistics."""
        kl = [] if self.kl_coeff is None else ["loss_kl", "kl_to_ref"]
        reported = ["clip_fraction", "kl_approx", "ESS", "max_ratio", "mean_ratio"]
        return ["loss_objective", *kl, *reported]

    def forward(
        self, tensordict: TensorDictBase | None = None, *tensors: Tensor, **named: Tensor
    ) -> TensorDictBase:
        """Compute the loss of a batch.

        Args:
            tensordict: tokens ``[*B, T]`` with their markers: int64 ``"action"`` ``[*B, T]``,
                float ``"sample_log_prob"`` ``[*B, T]``, float ``"advantage"`` ``[*B, T, 1]``.
            tensors: in its place tensors in the order of `in_keys`.
            named: tensors by name, as ``next_reward`` for ``("next", "reward")``.

        Returns:
            Losses and statistics, scalars.

        Raises:
            KeyError: an entry is missing.
            ValueError: a shape does not fit, or the loss is not finite.
            TypeError: an entry has the wrong dtype.
            IndexError: an action that counts is no number of a token.
        """
        if tensors or named or not isinstance(tensordict, TensorDictBase):
            made: TensorDictBase = self.by_names((tensordict, *tensors), named)
            return made
        counted = self.counted(tensordict)
        shape = tensordict.batch_size
        log_prob = self.log_prob(tensordict, counted)
        advantage = kept(self._column(tensordict, "advantage", shape), counted)
        # what rows that do not count hold has no effect and no gradient
        log_weight = kept(log_prob - self._column(tensordict, "sample_log_prob", shape), counted)
        gain, reported = clipped_gain(log_weight, advantage, self.clip_epsilon, counted)
        results = {"loss_objective": self._mean(-gain, counted, tensordict)}
        if self.kl_coeff is not None:
            above = kept(self._column(tensordict, "ref_log_prob", shape) - log_prob, counted)
            kl = self._mean(above.exp() - above - 1, counted, tensordict)
            results |= {"loss_kl": self.kl_coeff * kl, "kl_to_ref": kl.detach()}
        return self._collected(results | reported, tensordict)

    def log_prob(self, batch: TensorDictBase, counted: Tensor | None = None) -> Tensor:
        """Compute the log-probabilities of the actions now.

        Args:
            batch: tokens ``[*B, T]``.
            counted: bool ``[*B, T]``; actions that do not count have 0.

        Returns:
            ``[*B, T]``.

        Raises:
            KeyError: the actor writes no logits.
            ValueError: logits are not ``[*B, T, V]``.
        """
        action = self.entries["action"]
        if hasattr(self.actor_network, "get_dist"):
            return log_probability(distribution_of(self.actor_network, batch), batch, action)
        logits = find(noted(self.actor_network, copied(batch)), as_tuple(self.entries["logits"]))
        if logits is None:
            msg = f"actor_network: expected a module that writes {self.entries['logits']!r}, "
            raise UnknownName(msg + f"got one that writes {self.actor_network.out_keys}.")
        shape = batch.batch_size
        if logits.shape[:-1] != shape:
            msg = f"{self.entries['logits']!r}: expected {[*shape, 'V']}, got {[*logits.shape]}."
            raise UnfitValue(msg)
        chosen = require(batch, action)
        if chosen.shape != shape:
            msg = f"{action!r}: expected {[*shape]}, one number a token, got {[*chosen.shape]}."
            raise UnfitValue(msg)
        if chosen.is_floating_point() or chosen.is_complex():
            msg = f"{action!r}: expected whole numbers, got {chosen.dtype}."
            raise TypeError(msg)
        # rows of prompts have logits too: only the counted ones are normalised
        rows = slice(None) if counted is None else counted.reshape(-1).nonzero().squeeze(-1)
        wide = logits.flatten(0, -2)[rows]
        index = chosen.reshape(-1, 1)[rows]
        values = of_action(wide, index, action).squeeze(-1) - wide.logsumexp(-1)
        if counted is not None:
            values = values.new_zeros(shape.numel()).index_put((rows,), values)
        found: Tensor = values.view(shape)
        return found

    def _column(self, batch: TensorDictBase, name: str, shape: torch.Size) -> Tensor:
        """An entry of one number a token, ``[*B, T]``."""
        key = self.entries[name]
        values = floats(require(batch, key), key)
        flat = values.squeeze(-1) if values.shape == (*shape, 1) else values
        if flat.shape != shape:
            msg = f"{key!r}: expected {[*shape]}, one number a token, got {[*values.shape]}."
            raise UnfitValue(msg)
        return flat.detach()

    def _mean(self, values: Tensor, counted: Tensor | None, batch: TensorDictBase) -> Tensor:
        if self.reduction != "mean":
            return reduce(values, counted, self.reduction)
        groups = require(batch, self.entries["group_ids"]) if self.over == "group" else None
        return token_mean(values, Segments.of(batch), self.over, counted=counted, groups=groups)

    def _explain(self, batch: TensorDictBase) -> list[str]:
        segments, counted = Segments.of(batch), self.counted(batch)
        whole = len(segments)
        active = whole if counted is None else int((segments.sum(counted) > 0).sum())
        lines = [f"sequences: {active} of {whole} have an action that counts"]
        groups = find(batch, as_tuple(self.entries["group_ids"]))
        if groups is not None:
            lines.append(groups_line(segments.first(groups)))
        return [*lines, f"means: over {self.over}"]
