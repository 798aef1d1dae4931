"""Noise on top of the actions of a policy without chance."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType
from torch import Tensor

from rl_layout.keys import next_key
from rl_policies.exploration.annealing import ExplorationModule
from rl_policies.keys import ACTION
from rl_policies.modules.action_spec import ActionForm
from rl_specs import Composite, TensorSpec, Unbounded
from rl_tensordict import NestedKey, as_key, as_tuple, note_errors
from rl_transforms import TensorDictPrimer


class AdditiveGaussianModule(ExplorationModule):
    """Adds normal noise to actions.

        action ← nearest in spec of (action + σ (mean + std ε)),    ε standard normal
        σ ← max(sigma_end, σ - frames (sigma_init - sigma_end) / annealing_num_steps)

    It acts where the interaction type is RANDOM, as collectors set it, and by
    `default_interaction_type` where none is set. Put it after the policy in a
    `TensorDictSequential`; it writes a new action and leaves the old tensor as it was. Random
    numbers come from the generator of torch. σ is a buffer, and so part of `state_dict`.

    Args:
        spec: spec of the action, floats, or a `Composite` that holds it.
        sigma_init: σ at the start.
        sigma_end: σ in the end, at most `sigma_init`.
        annealing_num_steps: how many frames it takes to get there.
        mean: mean of the noise before it is scaled, a number or `[*E]`.
        std: standard deviation of it, likewise.
        action_key: what is read and written.
        default_interaction_type: what counts where no interaction type is set.
        device: where the buffers lie.

    Raises:
        ValueError: σ is negative or would rise, or the annealing takes no step.
        TypeError: `spec` is no spec of floats.
        KeyError: the spec holds other keys only.

    Example:
        >>> from rl_specs import Bounded
        >>> noisy = AdditiveGaussianModule(Bounded(-1, 1, shape=(2,)), sigma_init=9.0)
        >>> noisy.step(torch.zeros(100, 2))[0].abs().max()
        tensor(1.)
        >>> noisy.step(1000)
        >>> noisy.sigma
        tensor(0.1000)
    """

    sigma: Tensor
    mean: Tensor
    std: Tensor

    @note_errors
    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        spec: TensorSpec,
        sigma_init: float = 1.0,
        sigma_end: float = 0.1,
        annealing_num_steps: int = 1000,
        mean: Tensor | float = 0.0,
        std: Tensor | float = 1.0,
        *,
        action_key: NestedKey = ACTION,
        default_interaction_type: InteractionType | str = InteractionType.RANDOM,
        device: torch.device | str | None = None,
    ) -> None:
        rest = action_key, default_interaction_type, device
        super().__init__(spec, "sigma", sigma_init, sigma_end, annealing_num_steps, *rest)
        dtype = _require_floats(self._form)
        self.register_buffer("mean", torch.as_tensor(mean, dtype=dtype, device=device))
        self.register_buffer("std", torch.as_tensor(std, dtype=dtype, device=device))

    def _explored(self, action: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        if not self._acts():
            return (action,)
        noise = torch.addcmul(self.mean, torch.randn_like(action), self.std)
        return (self._form.projected(torch.addcmul(action, noise, self.sigma.to(noise.dtype))),)


class OrnsteinUhlenbeckModule(ExplorationModule):
    """Adds noise that wanders about a mean to actions, as in Lillicrap et al. (2016).

        n ← n + theta (mu - n) dt + sigma √dt ε,    ε standard normal
        action ← nearest in spec of (action + eps n)
        eps ← max(eps_end, eps - frames (eps_init - eps_end) / annealing_num_steps)

    The noise belongs to a trajectory, and is carried as the state of a recurrent network is: read
    from the root of a step, written under `"next"`, and put to `x0` at every reset by the primer
    that `make_tensordict_primer` makes. Environments that are given the policy add that by
    themselves. Any number of environments may be stepped together, or one after another.

    It acts where the interaction type is RANDOM, as collectors set it, and by
    `default_interaction_type` where none is set; elsewhere action and noise stay as they are.

    Args:
        spec: spec of the action, floats, or a `Composite` that holds it.
        eps_init: factor of the noise at the start.
        eps_end: factor in the end, at most `eps_init`.
        annealing_num_steps: how many frames it takes to get there.
        theta: how strongly the noise is drawn to its mean.
        mu: the mean.
        sigma: how strongly it wanders.
        dt: length of a step.
        x0: the noise before the first step of a trajectory, a number or `[*E]`.
        action_key: what is read and written.
        noise_key: key of the noise; `"ou_noise"` alongside the action by default.
        default_interaction_type: what counts where no interaction type is set.
        device: where the buffers lie.

    Raises:
        ValueError: a factor is negative or would rise, the annealing takes no step, or `theta`,
            `sigma` or `dt` is negative.
        TypeError: `spec` is no spec of floats.
        KeyError: the spec holds other keys only.

    Example:
        >>> from rl_specs import Bounded
        >>> noisy = OrnsteinUhlenbeckModule(Bounded(-1, 1, shape=(2,)), sigma=0.0, x0=0.8, dt=1.0)
        >>> action, after = noisy.step(torch.zeros(5, 2), torch.full((5, 2), 0.8))
        >>> action.unique(), after.unique()
        (tensor([0.6800]), tensor([0.6800]))
        >>> noisy.in_keys, noisy.out_keys
        (['action', 'ou_noise'], ['action', ('next', 'ou_noise')])
    """

    eps: Tensor

    @note_errors
    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        spec: TensorSpec,
        eps_init: float = 1.0,
        eps_end: float = 0.1,
        annealing_num_steps: int = 1000,
        theta: float = 0.15,
        mu: float = 0.0,
        sigma: float = 0.2,
        dt: float = 0.01,
        x0: Tensor | float = 0.0,
        *,
        action_key: NestedKey = ACTION,
        noise_key: NestedKey | None = None,
        default_interaction_type: InteractionType | str = InteractionType.RANDOM,
        device: torch.device | str | None = None,
    ) -> None:
        rest = action_key, default_interaction_type, device
        super().__init__(spec, "eps", eps_init, eps_end, annealing_num_steps, *rest)
        _require_floats(self._form)
        if min(theta, sigma, dt) < 0:
            got = f"theta={theta}, sigma={sigma}, dt={dt}"
            msg = f"theta, sigma and dt must not be negative: got {got}"
            raise ValueError(msg)
        self.theta, self.mu, self.sigma, self.dt, self.x0 = theta, mu, sigma, dt, x0
        default_key = as_key((*as_tuple(action_key)[:-1], "ou_noise"))
        self.noise_key = default_key if noise_key is None else noise_key
        self.in_keys.append(self.noise_key)
        self.out_keys.append(next_key(self.noise_key))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Read actions and noise from a tensordict, and write those to take and to continue with.

        Args:
            args: a tensordict, which is returned; or tensors in the order of `in_keys`.
            kwargs: tensors by key.

        Returns:
            The tensordict, or the outputs where tensors were given.

        Raises:
            KeyError: the action or the noise is missing.
            ValueError: the action has another shape than the spec, or than the noise.
            TypeError: the action has another dtype than the spec.
        """
        if args and isinstance(args[0], TensorDictBase) and args[0].get(self.noise_key) is None:
            msg = (
                f"the noise {self.noise_key!r} is missing: make_tensordict_primer() makes the "
                "transform that puts it there, and environments given the policy add that."
            )
            raise KeyError(msg)
        return super().forward(*args, **kwargs)

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """Make the transform that puts the noise to `x0` at every reset.

        Returns:
            The primer; `rl_envs` appends it to environments that are given the policy.

        Example:
            >>> from rl_specs import Bounded
            >>> noisy = OrnsteinUhlenbeckModule(Bounded(-1, 1, shape=(2,)))
            >>> noisy.make_tensordict_primer().primers["ou_noise"].shape
            torch.Size([2])
        """
        specs, form = Composite(), self._form
        noise = Unbounded(form.tail, device=form.leaf.device, dtype=form.dtype)
        specs.set(self.noise_key, noise)
        return TensorDictPrimer(specs, default_value=self.x0, expand_specs=True)

    def _explored(self, action: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        (noise,) = others
        if noise.shape != action.shape:
            shapes = f"{tuple(noise.shape)} for actions {tuple(action.shape)}"
            msg = f"{self.noise_key!r} must have the shape of the action: got {shapes}"
            raise ValueError(msg)
        if not self._acts():
            return action, noise
        drift = torch.lerp(noise, torch.full_like(noise, self.mu), self.theta * self.dt)
        after = drift.add_(torch.randn_like(noise), alpha=self.sigma * self.dt**0.5)
        return self._form.projected(torch.addcmul(action, after, self.eps.to(after.dtype))), after


def _require_floats(form: ActionForm) -> torch.dtype:
    if not form.dtype.is_floating_point:
        msg = f"noise is added to floating-point actions: got a spec of {form.dtype}"
        raise TypeError(msg)
    return form.dtype
