"""Keys of the entries that policies read and write."""

from __future__ import annotations

from collections.abc import Sequence

from rl_tensordict import NestedKey

OBSERVATION = "observation"
ACTION = "action"
SAMPLE_LOG_PROB = "sample_log_prob"
STATE_VALUE = "state_value"
STATE_ACTION_VALUE = "state_action_value"
ACTION_VALUE = "action_value"
CHOSEN_ACTION_VALUE = "chosen_action_value"


def listed(keys: Sequence[NestedKey] | NestedKey | None, default: NestedKey) -> list[NestedKey]:
    """One key, several, or by default one, as a list."""
    if keys is None:
        return [default]
    return [keys] if isinstance(keys, str | tuple) else list(keys)
