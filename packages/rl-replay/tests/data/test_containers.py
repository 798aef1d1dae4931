"""Which classes stored rows may name, and what a name in a file can do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import namedtuple
from typing import NamedTuple

import pytest
import torch
from tensordict import TensorClass, TensorDict

from rl_replay import LazyTensorStorage, ReplayBuffer, register_container
from rl_replay.checkpoint.manifest import MANIFEST, sealed
from rl_replay.data.containers import container


class Pair(NamedTuple):
    """Two leaves."""

    left: object
    right: object


class Step(TensorClass):
    """A row with named fields."""

    seen: torch.Tensor
    gain: torch.Tensor


def filled(rows):
    buffer = ReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(rows)
    return buffer


def pairs(count=5):
    return Pair(torch.arange(count), torch.zeros(count, 2))


def plant(folder, names):
    """Name another class in a dump of pairs or steps, under a checksum that is right."""
    head = json.loads((folder / MANIFEST).read_bytes().rpartition(b"\n")[0])
    tree = head["parts"]["storage/structure/tree"]
    if isinstance(tree["plain"], list):
        tree["plain"][0] = names
    else:
        tree["plain"] = names
    (folder / MANIFEST).write_bytes(sealed(head))


def planted_names():
    """Names of some hundred things that can be called, loaded modules or not."""
    first = ["subprocess:Popen", "os:system", "builtins:eval", "builtins:exec", "os:_exit"]
    first += ["antigravity:geohash", "ctypes:CDLL", "nowhere_at_all:Pair", "", ":", "dict:", "Pair"]
    first += [f"{__name__}:Step.from_tensordict", "collections:OrderedDict", "builtins:tuple"]
    found = [
        f"{module.__name__}:{name}"
        for module in list(sys.modules.values())
        if module.__name__.split(".")[0] in ("subprocess", "os", "pickle", "shutil", "socket")
        for name in dir(module)
        if callable(getattr(module, name))
    ]
    return first + found[:400]


@pytest.mark.parametrize("kind", ["named tuple", "tensorclass"])
def test_planted_class_name_creates_and_imports_nothing(tmp_path, monkeypatch, kind):
    rows = pairs() if kind == "named tuple" else Step(torch.arange(5), torch.ones(5), batch_size=5)
    filled(rows).dumps(tmp_path)
    reader, modules = filled(pairs(3)), set(sys.modules)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    names = planted_names()
    assert len(names) > 300
    for name in names:
        plant(tmp_path, name)
        with pytest.raises(ValueError, match=r"(does not know|no form)"):
            reader.loads(tmp_path)
        assert reader[:].left.tolist() == [0, 1, 2]
    assert set(sys.modules) - modules == set()


def test_state_of_an_unknown_class_is_refused_and_changes_nothing():
    state = filled(pairs()).state_dict()
    state["storage"]["structure"]["tree"][0] = "subprocess:Popen"
    reader = filled(pairs(3))
    with pytest.raises(ValueError, match=r"'Popen' of module 'subprocess'.*register_container"):
        reader.load_state_dict(state)
    assert len(reader) == 3


def test_class_of_a_nested_group_is_looked_up_as_well(tmp_path):
    step = Step(torch.arange(5), torch.ones(5), batch_size=5)
    filled(TensorDict(step=step, batch_size=[5])).dumps(tmp_path)
    head = json.loads((tmp_path / MANIFEST).read_bytes().rpartition(b"\n")[0])
    head["parts"]["storage/structure/groups"]["plain"][0][2] = "subprocess:Popen"
    (tmp_path / MANIFEST).write_bytes(sealed(head))
    with pytest.raises(ValueError, match="register_container"):
        ReplayBuffer(storage=LazyTensorStorage(9)).loads(tmp_path)


def test_class_of_stored_rows_is_known(tmp_path):
    filled(pairs()).dumps(tmp_path)
    reader = ReplayBuffer(storage=LazyTensorStorage(9))
    reader.loads(tmp_path)
    assert type(reader[:]) is Pair


def test_register_container_lets_a_reader_load_a_class_it_never_stored(tmp_path):
    filled(pairs()).dumps(tmp_path)
    plant(tmp_path, "elsewhere:Couple")
    reader = ReplayBuffer(storage=LazyTensorStorage(9))
    with pytest.raises(ValueError, match="class 'Couple' of module 'elsewhere'"):
        reader.loads(tmp_path)
    couple = register_container(namedtuple("Couple", ["left", "right"], module="elsewhere"))
    reader.loads(tmp_path)
    assert type(reader[:]) is couple


@pytest.mark.parametrize("kind", [dict, tuple, int, "Pair", torch.nn.Linear, subprocess.Popen])
def test_register_container_refuses_other_classes(kind):
    with pytest.raises(TypeError, match="a named tuple or a tensorclass"):
        register_container(kind)


def test_register_container_is_a_decorator():
    assert register_container(Step) is Step
    assert container(f"{__name__}:Step") is Step
