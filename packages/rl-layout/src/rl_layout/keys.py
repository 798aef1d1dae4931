"""The keys that mark trajectories in a batch, and what one does with nested keys.

Root keys hold what was known before the step, keys under ``"next"`` what the step produced.
Done-like keys and rewards end in a dimension of size 1; ids and row numbers do not.
"""

from __future__ import annotations

from rl_tensordict import NestedKey as NestedKey
from rl_tensordict import as_key as as_key
from rl_tensordict import as_tuple as as_tuple
from rl_tensordict import leaves as leaves
from rl_tensordict import require as require
from rl_tensordict import sibling as sibling

NEXT = "next"
REWARD = "reward"
DONE = "done"
TERMINATED = "terminated"
TRUNCATED = "truncated"
DONE_KEYS = (DONE, TERMINATED, TRUNCATED)

IS_INIT = "is_init"
NEXT_REWARD = (NEXT, REWARD)
NEXT_DONE = (NEXT, DONE)
NEXT_TERMINATED = (NEXT, TERMINATED)
NEXT_TRUNCATED = (NEXT, TRUNCATED)
NEXT_DONE_KEYS = (NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED)
STEPS_TO_NEXT_OBS = (NEXT, "steps_to_next_obs")
DELTA = (NEXT, "delta")
END_OF_LIFE = (NEXT, "end-of-life")  # in samples: an end of a segment, and of no trajectory

COLLECTOR = "collector"
TRAJ_IDS = (COLLECTOR, "traj_ids")
TRAJ_STEP = (COLLECTOR, "traj_step")
MASK = (COLLECTOR, "mask")
NEXT_MISSING = (COLLECTOR, "next_missing")
HISTORY_MISSING = (COLLECTOR, "history_missing")
MID_EPISODE = (COLLECTOR, "mid_episode")
POLICY_VERSION = (COLLECTOR, "policy_version")
ROW = (COLLECTOR, "row")
SLICE_IDS = (COLLECTOR, "slice_ids")
BUFFER_IDS = (COLLECTOR, "buffer_ids")
STORAGE_ID = (COLLECTOR, "storage_id")

INDEX = "index"
PRIORITY_WEIGHT = "priority_weight"
SHIFTED_VALID = "shifted_valid"

WAITING = "waiting"  # of the members of a group

PADDING_ID = -1
TIME = "time"


def next_key(key: NestedKey) -> tuple[str, ...]:
    """Name a key's place among what the step produced.

    Args:
        key: a root key.

    Returns:
        The key under ``"next"``.

    Example:
        >>> next_key(("agents", "observation"))
        ('next', 'agents', 'observation')
    """
    return (NEXT, *as_tuple(key))


def root_key(key: NestedKey) -> NestedKey:
    """Name the place a key under ``"next"`` moves to when time continues.

    Args:
        key: a key under ``"next"``.

    Returns:
        The key without its first part.

    Raises:
        ValueError: the key does not lie under ``"next"``.

    Example:
        >>> root_key(("next", "observation"))
        'observation'
    """
    parts = as_tuple(key)
    if parts[0] != NEXT or len(parts) < 2:
        msg = f"expected a key under 'next': got {key!r}. Write ('next', ...)."
        raise ValueError(msg)
    return as_key(parts[1:])
