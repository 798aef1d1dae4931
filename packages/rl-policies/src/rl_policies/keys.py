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
    """Write one key, several or none as a list.

    Args:
        keys: a key, a list of keys, or None.
        default: the key that None stands for.

    Returns:
        The list.

    Example:
        >>> listed(None, "action"), listed(("agents", "action"), "action"), listed(["a"], "b")
        (['action'], [('agents', 'action')], ['a'])
    """
    if keys is None:
        return [default]
    return [keys] if isinstance(keys, str | tuple) else list(keys)
