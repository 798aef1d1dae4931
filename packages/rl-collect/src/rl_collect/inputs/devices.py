"""Where environment, policy and batches live, and what moves data between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor, nn

from rl_tensordict import build, leaves, lies_on, nest
from rl_tensordict.arguments import as_device, local_device


@dataclass(frozen=True)
class Devices:
    """Where a collector's parts live."""

    env: torch.device  # of the environment
    policy: torch.device  # of the policy's parameters
    storing: torch.device  # of the batches

    @classmethod
    def of(
        cls,
        env: torch.device,
        policy: Any = None,
        *,
        device: Any = None,
        env_device: Any = None,
        policy_device: Any = None,
        storing_device: Any = None,
    ) -> Devices:
        """Fill in what was not said."""
        parameter = next(iter(policy.parameters()), None) if hasattr(policy, "parameters") else None
        found = env if parameter is None else parameter.device
        devices = cls(
            as_device("env_device", env if env_device is None else env_device),
            _first(policy_device=policy_device, device=device, policy=found),
            _first(storing_device=storing_device, device=device, environment=env),
        )
        making = (
            f"make it with device={str(devices.env)!r}, or leave env_device out, because what it "
            "returns is moved"
        )
        _require_same("environment", env, devices.env, making)
        moving = f"move it first, by policy.to({str(devices.policy)!r})"
        _require_same("policy", None if parameter is None else found, devices.policy, moving)
        return devices


def policy_on(policy: Any, device: Any, name: str) -> Any:
    """The policy itself if it is on the device or has no tensors, otherwise a copy there."""
    if device is None or not isinstance(policy, nn.Module):
        return policy
    wanted = as_device(name, device)
    found = next((one.device for one in policy.parameters()), wanted)
    if found.type == wanted.type and wanted.index in (None, found.index):
        return policy
    local_device(name, wanted)
    try:
        return deepcopy(policy).to(wanted)
    except Exception as error:
        msg = (
            f"the policy is on {found}, and a copy on {wanted} could not be made ({error}): move "
            f"it first, by policy.to({str(wanted)!r})."
        )
        raise ValueError(msg) from error


def _first(**said: Any) -> torch.device:
    """The first device that is named, which this machine must have."""
    return local_device(*next((name, one) for name, one in said.items() if one is not None))


def _require_same(what: str, found: torch.device | None, wanted: torch.device, advice: str) -> None:
    if found is not None and found.type != wanted.type:
        msg = f"the {what} is on {found}, and should be on {wanted}: {advice}."
        raise ValueError(msg)


def mover(
    device: torch.device, *, synchronise: bool = True, clears: bool = False
) -> Callable[[Any], Any]:
    """Make a function that brings data to a device, and waits until it is there."""
    # Nothing needs to be waited for on the way to CUDA, where work is done in order. On request
    # tensordicts name no device afterwards.
    wait = synchroniser(device) if synchronise else None
    is_ahead = wait is not None or not synchronise  # somebody waits for the copy afterwards

    def move(data: Any) -> Any:
        if lies_on(data, device):
            return data
        if not _is_on(data, device):
            data = data.to(device, non_blocking=is_ahead)
            if wait is not None:
                wait()
        return data.clear_device_() if clears else data

    return move


def _is_on(data: Any, device: torch.device) -> bool:
    if isinstance(data, LazyStackedTensorDict):  # its leaves may have no one size
        return all(_is_on(one, device) for one in data.tensordicts)
    if isinstance(data, TensorDictBase):
        return all(_is_on(one, device) for one in data.values())
    return bool(data.device == device)


def synchroniser(device: torch.device) -> Callable[[], None] | None:
    """What makes sure that copies to a device have arrived; None if nothing is needed."""
    if device.type in ("cuda", "meta"):
        return None
    if device.type not in ("cpu", "mps", "npu"):
        msg = f"do not know how to wait for copies to {device}: use cpu, cuda, mps or npu."
        raise RuntimeError(msg)
    if torch.cuda.is_available():
        return torch.cuda.synchronize
    if torch.backends.mps.is_available():
        return torch.mps.synchronize
    return None


class CrossDevicePolicy:
    """A policy on another device than the environment."""

    def __init__(
        self, policy: Callable[..., Any], there: Callable[[Any], Any], back: Callable[[Any], Any]
    ) -> None:
        self._policy, self._there, self._back = policy, there, back

    def __call__(self, root: TensorDictBase) -> TensorDictBase:
        """Act, there, on a copy; and add what was written to the root, here."""
        given = self._there(root.copy().clear_device_())
        before = dict(leaves(given))
        made = self._policy(given)
        found = leaves(given if made is None else made)
        written = {key: leaf for key, leaf in found if leaf is not before.get(key)}
        # all at once: there is one wait for a step
        for key, leaf in leaves(self._back(build(nest(written), root.batch_size))):
            root.set(key, leaf)
        return root


def generators() -> list[Tensor]:
    """Save torch's global generators: of the CPU, and of CUDA if initialised."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def set_generators(states: Sequence[Tensor]) -> None:
    """Go back to saved states."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(list(states[1:]))
