"""A fuzzed call that changes what it was given is seen."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from faults.fuzz_inputs import recorded


@pytest.mark.parametrize("may_add", [False, True])
@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda rows: rows.get("a"), {}),
        (lambda rows: rows["b", "c"].add_(1), dict.fromkeys((False, True), "has changed")),
        (lambda rows: rows.pop("a"), dict.fromkeys((False, True), "has lost {'a'}")),
        (lambda rows: rows.set("n", torch.ones(3)), {False: "has gained {'n'}"}),
        (lambda rows: rows.set("a", torch.ones(3)), {False: "has changed"}),
        (lambda rows: setattr(rows, "names", ["time"]), dict.fromkeys((False, True), "the names")),
    ],
    ids=["read", "in place", "removed", "added", "replaced", "named"],
)
def test_a_change_of_an_input_is_named(change, seen, may_add):
    rows = TensorDict({"a": torch.zeros(3), "b": {"c": torch.ones(3)}}, [3])
    checks = list(recorded({"rows": rows}, may_add=may_add))
    change(rows)
    found = [said for check in checks if (said := check())]
    assert len(found) == (may_add in seen)
    assert all(seen[may_add] in said for said in found)
