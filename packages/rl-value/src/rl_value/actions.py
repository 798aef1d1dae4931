"""The distribution of an actor and the probabilities of stored actions, of one head or several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import CompositeDistribution
from torch import Tensor
from torch.distributions import Categorical, Distribution, kl_divergence

from rl_tensordict import NestedKey, UnfitValue, as_tuple, copied, find, require, sibling
from rl_value.arguments import floats
from rl_value.networks import note_network
from rl_value.scan.block_scan import is_transformed


def distribution_of(actor: Any, batch: TensorDictBase) -> Distribution:
    """Make the distribution of an actor's actions now; the batch stays as it is."""
    try:
        dist: Distribution = actor.get_dist(copied(batch))
    except Exception as error:
        given = {key: batch.get(key, None) for key in actor.in_keys}
        note_network(error, actor.out_keys, given)
        if not isinstance(error, KeyError):  # an entry that is missing says so itself
            error.add_note("Look for NaN in the inputs of the actor and in its weights.")
        raise
    return dist


def heads(dist: Distribution, action: NestedKey) -> dict[NestedKey, Distribution]:
    """List the distributions of an actor by the key of the action that each gives."""
    if isinstance(dist, CompositeDistribution):
        return dict(dist.dists)
    return {action: dist}


def log_probability(dist: Distribution, batch: TensorDictBase, action: NestedKey) -> Tensor:
    """Compute the log-probability of the actions that are stored."""
    found = []
    for key, head in heads(dist, action).items():
        taken = require(batch, key)
        if not isinstance(taken, Tensor):
            msg = f"{key!r}: expected a tensor of actions, got {type(taken).__name__}."
            raise TypeError(msg)
        if taken.requires_grad:
            msg = f"{key!r} requires gradients: a stored action is a constant. Call .detach()."
            raise RuntimeError(msg)
        try:
            value = _log_prob(head, taken, key)
        except Exception as error:
            wanted = [*head.batch_shape, *head.event_shape]
            note = f"{key!r}: {list(taken.shape)} {taken.dtype}; the actor gives {wanted} by "
            error.add_note(f"{note}{type(head).__name__}. Store actions as the actor gives them.")
            raise
        if value.numel() > taken.numel():  # each action was compared with every distribution
            expected = [*head.batch_shape, *head.event_shape]
            msg = f"{key!r}: expected {expected}, as the actor gives it, got {list(taken.shape)}. "
            msg += "Call squeeze(-1) or reshape."
            raise ValueError(msg)
        found.append(value)
    return _total(found, batch)


def stored_log_probability(
    dist: Distribution, batch: TensorDictBase, action: NestedKey, entry: NestedKey
) -> Tensor:
    """Read the log-probability that was stored with the actions."""
    whole = find(batch, as_tuple(entry))
    if whole is not None:
        return floats(whole, entry).detach()
    found = {}
    for key in heads(dist, action):
        own = log_probability_key(key)
        found[own] = find(batch, as_tuple(own))
    absent = [key for key, value in found.items() if value is None]
    if absent:
        require(batch, entry if len(absent) == len(found) else absent[0])
    return _total([floats(value, key) for key, value in found.items()], batch).detach()


def log_probability_key(action: NestedKey) -> NestedKey:
    """Name the log-probability of an action as tensordict's own modules do."""
    return sibling(action, f"{as_tuple(action)[-1]}_log_prob")


def entropies(
    dist: Distribution, batch: TensorDictBase, action: NestedKey, samples: int = 1
) -> Mapping[NestedKey, Tensor]:
    """Compute the entropy of each head, exactly if there is a formula, else from samples."""
    found = {}
    several = isinstance(dist, CompositeDistribution)
    for key, head in heads(dist, action).items():
        try:
            value = _entropy(head)
        except NotImplementedError:
            drawn = head.rsample if head.has_rsample else head.sample
            value = -head.log_prob(drawn(torch.Size([samples]))).mean(0)
        found[key] = _over_steps(value, batch) if several else value
    return found


def divergence(
    before: Distribution, now: Distribution, batch: TensorDictBase, samples: int = 1
) -> Tensor:
    """Compute KL(before, now), exactly if there is a formula, else from samples."""
    ours = heads(now, "action")
    found = []
    for key, head in heads(before, "action").items():
        was, now_is = (getattr(one, "param_shape", one.batch_shape) for one in (head, ours[key]))
        if was != now_is:
            msg = f"{key!r}: expected the parameters that acted in the shape of the actor's, "
            msg += f"{list(now_is)}, got {list(was)}."
            raise ValueError(msg)
        try:
            found.append(kl_divergence(head, ours[key]))
        except NotImplementedError:
            drawn = head.sample(torch.Size([samples]))
            found.append((head.log_prob(drawn) - ours[key].log_prob(drawn)).mean(0))
    return _total(found, batch)


def of_action(values: Tensor, index: Tensor, key: NestedKey) -> Tensor:
    """Take what represents the action of each step."""
    try:
        return values.gather(-1, index)
    except RuntimeError as error:
        if index.ndim != values.ndim or not index.numel() or not index.is_cpu:
            raise
        msg = f"{key!r}: expected numbers from 0 to {values.shape[-1] - 1}, got some from "
        msg += f"{int(index.min())} to {int(index.max())}."
        raise IndexError(msg) from error


def _log_prob(head: Distribution, taken: Tensor, key: NestedKey) -> Tensor:
    """Log-probability of actions; of categorical logits a direct gather, without validation."""
    if type(head) is not Categorical or taken.shape != head.batch_shape:
        return head.log_prob(taken)
    index = taken.long()
    # the logits are normalised already
    found = of_action(head.logits, index.unsqueeze(-1), key).squeeze(-1)
    if not taken.is_floating_point():
        return found
    between = taken != index  # no choice: on a GPU, which is not waited for, it shows as NaN
    if not is_transformed() and taken.is_cpu and bool(between.any()):
        first = float(taken[between][0])
        msg = f"{key!r}: expected whole numbers from 0 to {head.logits.shape[-1] - 1}, got {first}."
        raise UnfitValue(msg)
    return found.masked_fill(between, torch.nan)


def _entropy(head: Distribution) -> Tensor:
    """Entropy of a distribution; of a plain choice from its logits alone."""
    if type(head) is not Categorical:
        return head.entropy()
    logits = head.logits.clamp(min=torch.finfo(head.logits.dtype).min)  # 0 log 0 is 0
    return -(head.logits.exp() * logits).sum(-1)


def _total(found: list[Tensor], batch: TensorDictBase) -> Tensor:
    if len(found) == 1:
        return found[0]
    return torch.stack([_over_steps(value, batch) for value in found]).sum(0)


def _over_steps(value: Tensor, batch: TensorDictBase) -> Tensor:
    extra: int = value.ndim - batch.ndim
    return value.flatten(batch.ndim).sum(-1) if extra > 0 else value
