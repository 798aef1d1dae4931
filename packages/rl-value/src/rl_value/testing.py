"""Conformance checks for value estimators and losses, to call from the tests of an author."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_layout import EndKind, Segments, keys
from rl_layout.synthetic import trajectories
from rl_tensordict import CPU
from rl_value.estimators import ValueEstimator
from rl_value.losses.bootstrapped.loss import BootstrappedLoss

__all__ = ["check_bootstrapped_loss", "check_estimator", "check_loss"]

LENGTHS = [4, 1, 3, 5]


def check_estimator(make: Callable[[TensorDictModule], ValueEstimator]) -> None:
    """Check that an estimator keeps the promises of estimators.

    Results are finite and have the shape of the reward; a trajectory's results depend on its own
    steps alone; what follows a termination is worth nothing; a truncation bootstraps; a step whose
    next observation is missing has the advantage 0; no stored entry is changed.

    Args:
        make: makes the estimator for a value network that reads ``"observation"`` ``[*B, 2]``.

    Raises:
        AssertionError: a promise is broken; the message says which.

    Example:
        >>> from rl_value import GAE
        >>> check_estimator(lambda net: GAE(gamma=0.9, lmbda=0.8, value_network=net))
    """
    estimator, ends = make(_critic()), [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]
    kind = type(estimator).__name__
    batch = trajectories(LENGTHS, [*ends, EndKind.TERMINATED])
    before = batch.clone()
    advantage, target = _estimate(estimator, batch)
    _require(_kept(before, batch), kind, "no stored entry is changed")
    for name, values in (("advantage", advantage), ("target", target)):
        _require(values.shape == batch["next", "reward"].shape, kind, f"{name} is [*B, T, 1]")
        _require(bool(values.isfinite().all()), kind, f"{name} is finite")
    _check_separate(estimator, before, (advantage, target), kind)
    _check_ends(estimator, before, target, kind)


def check_loss(make: Callable[[], nn.Module], batch: TensorDictBase) -> None:
    """Check that a loss keeps the promises of losses.

    Its ``loss*`` entries are finite scalars whose sum has gradients; no stored entry is changed;
    padded rows, whatever they hold, change neither losses nor gradients.

    Args:
        make: makes the loss, with equal parameters each time.
        batch: flat rows ``[N]`` with what the loss reads; all rows are real.

    Raises:
        AssertionError: a promise is broken; the message says which.

    Example:
        >>> from rl_value import DQNLoss
        >>> def make():
        ...     _ = torch.manual_seed(0)
        ...     net = TensorDictModule(nn.Linear(2, 3), ["observation"], ["action_value"])
        ...     return DQNLoss(net, action_space="categorical")
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = batch["action"].squeeze(-1)
        >>> check_loss(make, batch)
    """
    kind, given = type(make()).__name__, batch.clone()
    losses, gradients = _trained(make(), given, kind)
    _require(_kept(batch, given), kind, "no stored entry is changed")
    finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
    _require(finite and bool(gradients), kind, "the sum of the losses has finite gradients")
    padded_losses, padded_gradients = _trained(make(), _padded(batch), kind)
    same = all(torch.allclose(losses[key], padded_losses[key], atol=1e-6) for key in losses)
    _require(same, kind, "padded rows do not change the losses")
    pairs = zip(gradients, padded_gradients, strict=True)
    same = all(torch.allclose(one, other, atol=1e-6) for one, other in pairs)
    _require(same, kind, "padded rows do not change the gradients")


def check_bootstrapped_loss(make: Callable[[], BootstrappedLoss], batch: TensorDictBase) -> None:
    """Check that a loss with targets of next states keeps the promises of such losses.

    In addition to `check_loss`: the state after a termination is worth nothing, a truncation
    bootstraps; targets are r + γᵏ V(s'), with k from ``"steps_to_next_obs"``; a segment's targets
    depend on its own rows alone, a row's on no later one; rows whose next observation or history
    is missing change neither losses nor gradients and have the error 0; equal
    ``"priority_weight"`` change nothing, a row of weight 0 is not learned from; stored targets, as
    `targets` writes them, are taken.

    Args:
        make: makes the loss, with equal parameters each time. It looks one step ahead (TD0), and
            nothing in it depends on chance.
        batch: flat rows ``[N]`` of at least two trajectories with what the loss reads, which is
            ``"observation"``, the recurrent states in each row included; all rows are real.

    Raises:
        AssertionError: a promise is broken; the message says which.

    Example:
        >>> from rl_value import DQNLoss
        >>> def make():
        ...     _ = torch.manual_seed(0)
        ...     net = TensorDictModule(nn.Linear(2, 3), ["observation"], ["action_value"])
        ...     return DQNLoss(net, action_space="categorical")
        >>> batch = trajectories([3, 4])
        >>> batch["action"] = batch["action"].squeeze(-1)
        >>> check_bootstrapped_loss(make, batch)
    """
    check_loss(make, batch)
    last = int(Segments.of(batch).offsets[1]) - 1  # of the first trajectory
    kind = type(make()).__name__
    _check_own_rows(make, batch, kind)
    _check_bootstrap(make, batch, last, kind)
    _check_discounts(make, batch, kind)
    _check_left_out(make, batch, last, kind)
    _check_weights(make, batch, kind)


def _critic() -> TensorDictModule:
    return TensorDictModule(
        lambda x: (0.3 * x[..., :1] - 0.7 * x[..., 1:]).sin(), ["observation"], ["state_value"]
    )


def _estimate(estimator: ValueEstimator, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
    estimator(batch)
    advantage: Tensor = batch.get(estimator.entries["advantage"])
    return advantage, batch.get(estimator.entries["value_target"])


def _check_separate(
    estimator: ValueEstimator, batch: TensorDictBase, results: tuple[Tensor, Tensor], kind: str
) -> None:
    """Each trajectory alone, then with a NaN in another one."""
    for alone, whole in zip(
        batch.split(LENGTHS), zip(*(r.split(LENGTHS) for r in results), strict=True), strict=True
    ):
        for one, other in zip(_estimate(estimator, alone.clone()), whole, strict=True):
            same = torch.allclose(one, other, atol=1e-6)
            _require(same, kind, "a trajectory's results depend on its own steps alone")
    spoilt = batch.clone()
    spoilt["next", "reward"][LENGTHS[0]] = float("nan")  # the only step of the second trajectory
    for one, other in zip(_estimate(estimator, spoilt), results, strict=True):
        rest = torch.arange(len(batch), device=CPU) != LENGTHS[0]
        same = torch.allclose(one[rest], other[rest], atol=1e-6)
        _require(same, kind, "a NaN reaches no other trajectory")


def _check_ends(
    estimator: ValueEstimator, batch: TensorDictBase, target: Tensor, kind: str
) -> None:
    """The last steps of a terminated and of a truncated trajectory, and a missing observation."""
    terminated, truncated = LENGTHS[0] - 1, LENGTHS[0]
    moved = batch.clone()
    moved["next", "observation"][[terminated, truncated]] += 5
    changed = (_estimate(estimator, moved)[1] != target).flatten()
    _require(not changed[terminated], kind, "the state after a termination is worth nothing")
    _require(bool(changed[truncated]), kind, "a truncation bootstraps from its next observation")
    lost = batch.clone()
    lost[keys.NEXT_MISSING] = torch.arange(len(batch), device=CPU) == truncated
    missing = _estimate(estimator, lost)[0][truncated]
    _require(float(missing) == 0, kind, "a step without next observation has the advantage 0")


def _trained(
    loss: nn.Module, batch: TensorDictBase, kind: str
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Its losses, and the gradients of their sum."""
    out = loss(batch)
    losses = {key: value for key, value in out.items() if key.startswith("loss")}
    _require(bool(losses), kind, "it writes an entry that begins with 'loss'")
    for key, value in losses.items():
        scalar = value.shape == () and bool(value.isfinite())
        _require(scalar, kind, f"{key} is a finite scalar")
    loss.zero_grad()
    torch.stack(list(losses.values())).sum().backward()
    return losses, [p.grad for p in loss.parameters() if p.grad is not None]


def _check_bootstrap(
    make: Callable[[], BootstrappedLoss], batch: TensorDictBase, last: int, kind: str
) -> None:
    """Whether the next state of a trajectory's last row matters, by how it ends."""
    for end, promise in (
        ("terminated", "the state after a termination is worth nothing"),
        ("truncated", "a truncation bootstraps from its next observation"),
    ):
        one = batch.clone()
        for flag in ("terminated", "truncated", "done"):
            one["next", flag][last] = flag in (end, "done")
        other = one.clone()
        other["next", "observation"][last] += 1
        moved = bool((_targets(make(), one) != _targets(make(), other))[last].any())
        _require(moved == (end == "truncated"), kind, promise)


def _check_discounts(
    make: Callable[[], BootstrappedLoss], batch: TensorDictBase, kind: str
) -> None:
    """What rows of several steps add to rewards, and the rows before their next observations."""
    one, reward = batch.clone(), batch["next", "reward"]
    segments = Segments.of(batch)
    left = segments.spread(segments.lengths) - segments.positions  # steps to the segment's end
    for flag in ("terminated", "truncated", "done"):
        one["next", flag] = (left == 1).unsqueeze(-1) & (flag != "terminated")
    near = _targets(make(), one.clone()) - reward
    if near.shape != reward.shape:  # targets are distributions
        return
    for steps in (2, 3):
        far, ahead = one.clone(), left.clamp(max=steps)
        rows = torch.arange(len(batch), device=CPU) + ahead - 1
        far[keys.STEPS_TO_NEXT_OBS] = ahead.unsqueeze(-1)
        for key in one["next"].keys(True, True):
            if key != "reward":  # whatever rewards are, they are added
                far["next", key] = one["next", key][rows]
        added = _targets(make(), far) - reward
        discount = (added[left > 1] / near[rows][left > 1])[0] ** (1 / (steps - 1))
        wanted = discount ** (ahead - 1).unsqueeze(-1) * near[rows]
        same = torch.allclose(added, wanted, rtol=1e-4, atol=1e-6)
        _require(
            same and 0 < discount < 1, kind, "steps_to_next_obs is the exponent of the discount"
        )


def _check_own_rows(make: Callable[[], BootstrappedLoss], batch: TensorDictBase, kind: str) -> None:
    """Check targets of each segment alone, of its rows without the last, and stored targets."""
    whole, lengths = _targets(make(), batch.clone()), Segments.of(batch).lengths.tolist()
    for alone, target in zip(batch.split(lengths), whole.split(lengths), strict=True):
        same = torch.allclose(_targets(make(), alone.clone()), target, atol=1e-6)
        _require(same, kind, "a segment's targets depend on its own rows alone")
        if len(alone) > 2:
            same = torch.allclose(_targets(make(), alone[:-1].clone()), target[:-1], atol=1e-6)
            _require(same, kind, "a row's target depends on no later row")
    stored = make().targets(batch.clone())
    stored["next", "reward"] = stored["next", "reward"] + 10
    error = _error(make, batch).split(lengths)
    for part, wanted in zip(stored.split(lengths), error, strict=True):
        same = torch.allclose(_error(make, part), wanted, atol=1e-6)
        _require(same, kind, "targets that are stored are those of the loss, in parts too")


def _check_left_out(
    make: Callable[[], BootstrappedLoss], batch: TensorDictBase, last: int, kind: str
) -> None:
    """A last row without next observation, and any row without history."""
    flags = ("terminated", "truncated", "done")
    for marker, row in ((keys.NEXT_MISSING, last), (keys.HISTORY_MISSING, len(batch) - 1)):
        one = batch.clone()
        for flag in flags:
            one["next", flag][row] = flag != "terminated"
        one[marker] = torch.arange(len(batch), device=CPU) == row
        other = one.clone()
        other["next", "reward"][row] += 10
        other["next", "observation"][row] += 1
        _require(_alike(make, one, other, kind), kind, f"rows that {marker} marks change nothing")
        _require(not bool(_error(make, one)[row].any()), kind, f"{marker} rows have the error 0")


def _check_weights(make: Callable[[], BootstrappedLoss], batch: TensorDictBase, kind: str) -> None:
    """Weights that are all the same, and a row that has none."""
    one, other = batch.clone(), batch.clone()
    one[keys.PRIORITY_WEIGHT] = torch.full((len(batch),), 0.5, device=CPU)
    _require(_alike(make, one, other, kind), kind, "equal priority weights change nothing")
    one[keys.PRIORITY_WEIGHT] = (torch.arange(len(batch), device=CPU) != 0).float()
    other = one.clone()
    other["next", "reward"][0] += 10
    _require(_alike(make, one, other, kind), kind, "a row of priority weight 0 is not learned from")
    changed = _error(make, one)[0] != _error(make, other)[0]
    _require(bool(changed.any()), kind, "a row of priority weight 0 has an error to write")


def _targets(loss: BootstrappedLoss, batch: TensorDictBase) -> Tensor:
    target: Tensor = loss.targets(batch).get(loss.entries["target"])
    return target


def _error(make: Callable[[], BootstrappedLoss], batch: TensorDictBase) -> Tensor:
    loss, given = make(), batch.clone()
    loss(given)
    error: Tensor = given.get(loss.entries["priority"])
    return error


def _alike(
    make: Callable[[], nn.Module], one: TensorDictBase, other: TensorDictBase, kind: str
) -> bool:
    """Whether two batches have the same losses and gradients."""
    losses, slopes = _trained(make(), one.clone(), kind)
    others, other_slopes = _trained(make(), other.clone(), kind)
    pairs = [*zip(slopes, other_slopes, strict=True), *((losses[k], others[k]) for k in losses)]
    return all(torch.allclose(ours, theirs, atol=1e-6) for ours, theirs in pairs)


def _padded(batch: TensorDictBase) -> TensorDictBase:
    """The batch with three rows of padding, whose rewards and observations are NaN."""
    padding = batch[:3].clone()
    for key in padding.keys(True, True):
        value: Tensor = padding.get(key)
        if value.is_floating_point():
            padding.set(key, torch.full_like(value, float("nan")))
    padding.set(keys.TRAJ_IDS, torch.full((3,), -1, device=CPU))
    padded: TensorDictBase = torch.cat([batch, padding])
    padded.set(keys.MASK, torch.arange(len(padded), device=CPU) < len(batch))
    return padded


def _kept(before: TensorDictBase, after: TensorDictBase) -> bool:
    return all(torch.equal(before.get(key), after.get(key)) for key in before.keys(True, True))


def _require(true: bool, kind: str, promise: str) -> None:
    if not true:
        msg = f"{kind} breaks a promise: {promise}."
        raise AssertionError(msg)
