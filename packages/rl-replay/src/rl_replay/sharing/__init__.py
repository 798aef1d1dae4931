"""A storage whose rows other processes write and read as well."""

from rl_replay.sharing.sharing import Sharing

__all__ = ["Sharing"]
