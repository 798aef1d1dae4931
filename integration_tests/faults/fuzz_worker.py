"""The child process of `fuzz.py`: makes calls one after another, and says how each was answered."""

from __future__ import annotations

import dis
import importlib
import inspect
import json
import os
import random
import re
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import EnumType
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np
import torch
from fuzz_inputs import MAY_ADD, recorded
from fuzz_pools import BAD, Pool, fitting
from torch import nn

HERE = Path(__file__).parent
OURS = re.compile(r"/(packages/rl-[a-z]+/src|site-packages)/rl_[a-z]+/")
MEMORY = 6 << 30  # bytes on top of what torch takes itself
# of objects that can be called or indexed, in addition to their public methods
SPECIAL = ("__getitem__", "__setitem__", "__delitem__", "__len__", "__contains__", "__eq__")
# what the machine lacks: room, a device
LACKS = re.compile(
    r"can't allocate|not enough memory|allocate memory|out of memory|with CUDA|acceler"
)
# what Python itself says of arguments that fit no parameters
SIGNATURE = re.compile(
    r"missing \d+ required|unexpected keyword|takes .* positional|multiple values"
)
# what a note tells a user to do about an error of torch; to name the call again is no help
ADVICE = re.compile(
    r"\b(call|check|compare|give|look|make|match|pass|see|store|use|wrap|write)\b", re.IGNORECASE
)


class Hang(BaseException):
    """A call took too long."""


@dataclass
class Target:
    """Something to call: how it is called, and how it is made anew for each call."""

    name: str
    make: Callable[[], Callable[..., Any]]
    signature: inspect.Signature
    changes: bool = False
    """Whether it says that it changes what it is given."""
    may_add: bool = False
    """Whether it may add entries to what it is given."""


def targets_of(package: str) -> tuple[list[Target], dict[str, Pool]]:
    """List what can be called in a package, and the values that its arguments may have."""
    module = importlib.import_module(package.replace("-", "_"))
    try:
        listed = importlib.import_module(f"fuzz_{package.removeprefix('rl-')}")
    except ModuleNotFoundError as error:
        if error.name != f"fuzz_{package.removeprefix('rl-')}":
            raise
        listed = None
    skip = getattr(listed, "SKIP", {})
    found: list[Target] = []
    for name in module.__all__:
        value = getattr(module, name)
        if is_edge(value) and name not in skip:
            found += targets(name, lambda value=value: value)
    for name, factory in getattr(listed, "CALLS", ()):
        made = factory()
        if inspect.isroutine(made) or isinstance(made, type):
            found += targets(name, factory)
            continue
        for method in methods_of(made):
            owners = (name, type(made).__name__, "*")
            if not any(f"{owner}.{method}" in skip for owner in owners):
                find = lambda factory=factory, method=method: getattr(factory(), method)  # noqa: E731
                found += targets(f"{name}.{method}", find)
    changes = getattr(listed, "CHANGES", {})
    for target in found:
        target.changes = not {target.name, f"*.{target.name.rpartition('.')[2]}"}.isdisjoint(
            changes
        )
        target.may_add = package in MAY_ADD
    return found, getattr(listed, "POOLS", {})


def is_edge(value: Any) -> bool:
    """Whether a public name can be called, and is not only handed on, a protocol or an enum."""
    ours = callable(value) and getattr(value, "__module__", "").startswith("rl_")
    return ours and not (isinstance(value, EnumType) or getattr(value, "_is_protocol", False))


def targets(name: str, make: Callable[[], Any]) -> list[Target]:
    """One target, where its signature is known; none otherwise."""
    try:
        return [Target(name, make, inspect.signature(make()))]
    except (TypeError, ValueError):
        return []


def methods_of(made: Any) -> list[str]:
    """Name the public methods of an object that our packages define."""
    kind, names = type(made), []
    for name in dir(kind):
        if name.startswith("_") and name not in SPECIAL:
            continue
        value = inspect.getattr_static(kind, name)
        function = getattr(value, "__func__", value)
        if inspect.isroutine(function) and OURS.search(_file(function)):
            names.append(name)
    if isinstance(made, nn.Module) and "forward" in names:
        # as users call it, with what wraps `forward`
        names[names.index("forward")] = "__call__"
    elif "__call__" in dir(kind) and OURS.search(_file(kind.__call__)):
        names.append("__call__")
    return names


def _file(function: Any) -> str:
    function = inspect.unwrap(function) if callable(function) else function
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def arguments(target: Target, pools: dict[str, Pool], rng: random.Random) -> tuple[Any, Any]:
    """Choose arguments: most of them fit, some do not."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    badness = rng.choice((0.0, 0.2, 0.5))

    def value(parameter: inspect.Parameter) -> Any:
        if rng.random() >= badness:
            good = fitting(parameter, pools)
            if good:
                return rng.choice(good)()
        return rng.choice(BAD)()

    for parameter in target.signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [value(parameter) for _ in range(rng.choice((1, 1, 1, 0, 2)))]
            continue
        has_default = parameter.default is not parameter.empty
        if parameter.kind is parameter.VAR_KEYWORD or (has_default and rng.random() < 0.6):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(value(parameter))
        else:
            named[parameter.name] = value(parameter)
    return positional, named


def answer(target: Target, positional: Any, named: Any, seconds: float) -> dict[str, Any]:
    """Make one call, and tell what came of it."""
    call = target.make()
    given = {**dict(enumerate(positional)), **named}
    checks = [] if target.changes else list(recorded(given, may_add=target.may_add))
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        call(*positional, **named)
        signal.setitimer(signal.ITIMER_REAL, 0)
        said = {"kind": "fine"}
    except BaseException as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        said = verdict(error, seconds)
    changed = next((found for check in checks if (found := check())), None)
    if changed is not None:
        return {"kind": "changed", "message": changed, "group": changed[:80], "place": "?"}
    return said


def verdict(error: BaseException, seconds: float) -> dict[str, Any]:
    """Tell whose exception it is."""
    trace: TracebackType | None = error.__traceback__
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lasti, trace.tb_lineno))
        trace = trace.tb_next
    message = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
    ours = [(frame, line) for frame, _, line in frames if OURS.search(frame.f_code.co_filename)]
    frame, position, _ = frames[-1]
    advised = any(ADVICE.search(note) for note in getattr(error, "__notes__", ()))
    if advised or (SIGNATURE.search(message) and len(frames) <= 4):
        return {"kind": "ours", "message": message}
    # the system names the file itself
    if isinstance(error, MemoryError | FileExistsError | FileNotFoundError | NotADirectoryError):
        return {"kind": "fine"}
    if LACKS.search(message):
        return {"kind": "fine"}
    if isinstance(error, Hang):
        message = f"no answer for {seconds:g} s"
    elif OURS.search(frame.f_code.co_filename) and raised(frame, position) and str(error):
        return {"kind": "ours", "message": message}
    place = f"{Path(ours[-1][0].f_code.co_filename).name}:{ours[-1][1]}" if ours else "?"
    group = re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "#", message)[:80]
    return {"kind": "obscure", "message": message[:160], "group": group, "place": place}


def raised(frame: FrameType, position: int) -> bool:
    """Whether a frame is at a `raise` of its own, and not at an operation that failed."""
    return dis.opname[frame.f_code.co_code[position]] == "RAISE_VARARGS"


def short(value: Any) -> str:
    """Write a value in a few characters."""
    if isinstance(value, torch.Tensor):
        return f"tensor({list(value.shape)}, {value.dtype})".replace("torch.", "")
    try:
        text = re.sub(r"\s+", " ", repr(value))
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."


def prepare(number: int, target: Target, pools: dict[str, Pool], rng: random.Random) -> Any:
    """Choose the arguments of one call, and describe it."""
    torch.manual_seed(number)
    np.random.seed(number)  # noqa: NPY002 - some code under test uses it
    positional, named = arguments(target, pools, rng)
    written = [short(v) for v in positional] + [f"{k}={short(v)}" for k, v in named.items()]
    begun = {"number": number, "name": target.name, "call": f"({', '.join(written)})"}
    return positional, named, begun


def hang(*_: Any) -> None:
    """End a call that takes too long."""
    raise Hang


def main() -> None:
    """Make the calls from one number on."""
    package, seed, first, calls, seconds = sys.argv[1:]
    sys.path.insert(0, str(HERE))
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, hang)
    torch.set_num_threads(1)
    targets, pools = targets_of(package)
    names = sorted({target.name for target in targets})
    by_name = {target.name: target for target in targets}
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    say = os.fdopen(os.dup(1), "w", buffering=1)
    show = calls == "show"
    if not show:
        say.write("ready\n")
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
    number = int(first)
    while show or calls == "-1" or number < int(calls):
        rng = random.Random(f"{seed} {number}")
        target = by_name[rng.choice(names)]
        positional, named, begun = prepare(number, target, pools, rng)
        if show:
            say.write(f"{begun['name']}{begun['call']}\n")
            try:
                say.write(f"{target.make()(*positional, **named)!r}\n")
            except BaseException:
                say.write(traceback.format_exc())
            return
        say.write(json.dumps(begun) + "\n")
        said = answer(target, positional, named, float(seconds))
        say.write(json.dumps({**begun, **said}) + "\n")
        number += 1


if __name__ == "__main__":
    main()
