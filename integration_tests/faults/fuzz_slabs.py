"""What is fuzzed of rl-slabs beside its public names."""

from __future__ import annotations

CALLS: list = []
