"""Arguments and modules for fuzzing rl-tensordict: its calls, and its argument checks."""

from __future__ import annotations

from typing import Any

import torch
from fuzz_pools import Pool, each, steps
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_tensordict import (
    Call,
    ModuleCalls,
    StepSequence,
    TensorStep,
    VerifiedCalls,
    arguments,
    find,
)


class Doubled(TensorStep):
    """A module of its own step."""

    in_keys, out_keys = ["observation"], ["action"]

    def step(self, observation):
        """Twice the observation."""
        return (2 * observation,)


class Sequence(StepSequence, TensorDictSequential):
    """Modules one after another."""


def net() -> TensorDictModule:
    """Writes a hidden layer."""
    return TensorDictModule(nn.Linear(3, 4), ["observation"], ["hidden"])


def sequence() -> Sequence:
    """Two networks, called on tensors."""
    return Sequence(net(), TensorDictModule(nn.Linear(4, 2), ["hidden"], ["action"]))


def unchecked(batch):
    """A function of a tensordict."""
    return batch


# As their docstrings say, these check nothing, or not all: a check would cost as much as the work.
UNCHECKED = "takes what its caller has checked, many times a step"
SKIP = {
    **dict.fromkeys(["build", "build_flat", "insert", "put_group", "put_leaves"], UNCHECKED),
    "names_of": "asks the tensordict; what is none has no names to ask for",
    "find": "takes a key that `as_tuple` has made; with keys that fit it is called below",
    "put": "raises the errors of `TensorDict.set`, whose place it takes",
    "write_step": "is the `forward` of a module, which notes its errors",
    "outputs_of": "takes keys of a module, once a call of a network",
    "*.run": "makes calls of networks, whose callers note their errors",
    "*.run_mixed": "makes calls of networks, whose callers note their errors",
    "*.run_parts": "makes calls of networks, whose callers note their errors",
    "VerifiedCalls.__call__": "makes calls of networks, whose callers note their errors",
}
CHANGES = {"Sequence().__call__": "writes to a second argument, tensordict's `tensordict_out`"}
CALLS: list[tuple[str, Any]] = [
    ("find", lambda: lambda batch: find(batch, ("next", "reward"))),
    ("Call()", lambda: Call(nn.Identity(), [("a",)], [("b",)])),
    ("Call() on a tensordict", lambda: Call(unchecked, None, None, reason="it has hooks")),
    ("ModuleCalls()", lambda: ModuleCalls(sequence())),
    ("ModuleCalls() of a function", lambda: ModuleCalls(unchecked)),
    ("VerifiedCalls()", lambda: VerifiedCalls(sequence())),
    ("VerifiedCalls() of a function", lambda: VerifiedCalls(unchecked)),
    ("Doubled()", Doubled),
    ("Sequence()", sequence),
    # the name and what is expected are written where the check is made
    ("shown", lambda: arguments.shown),
    ("check_type", lambda: lambda value: arguments.check_type("x", value, int, "an integer")),
    ("check_collection", lambda: lambda value: arguments.check_collection("x", value)),
    ("as_integer", lambda: arguments.as_integer),
    ("check_integer", lambda: arguments.check_integer),
    ("check_whole", lambda: lambda value: arguments.check_whole("x", value, 0)),
    ("check_number", lambda: arguments.check_number),
    ("number_tensor", lambda: lambda value: arguments.number_tensor("x", value, torch.float32)),
    ("key_list", lambda: arguments.key_list),
    ("as_device", lambda: arguments.as_device),
]
POOLS: dict[str, Pool] = {
    "key": each("observation", ("next", "reward"), ("a", ("b", "c"))),
    "parts": each(("observation",), ("next", "reward"), ["a", "b"]),
    "flat": [dict, lambda: {("next", "reward"): torch.zeros(3, 1), ("action",): torch.ones(3)}],
    "values": [dict, lambda: {("observation",): torch.zeros(5, 3)}],
    "batch": [steps, lambda: TensorDict({"a": {"b": torch.zeros(2)}}, [2]), lambda: steps((2, 3))],
    "module": [net, sequence, Doubled, lambda: unchecked],
    "policy": [net, sequence, Doubled, lambda: unchecked],
    "tensors": [lambda: torch.zeros(5, 3), lambda: torch.ones(3)],
    "note": [lambda: print],
    "errors": each(Exception, (KeyError, ValueError)),
    "error": [lambda: ValueError("too few"), lambda: KeyError("a")],
    "arguments": [list, lambda: [3, torch.zeros(2)]],
    "keys": [list, lambda: ["observation", ("next", "reward")]],
    "group": each("next", "action"),
    "reason": each("", "it has hooks"),
    "device": each("cpu", "cuda:0"),
}
