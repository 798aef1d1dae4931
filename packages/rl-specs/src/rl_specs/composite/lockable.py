"""A tree of nodes that can be locked against changes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Self


class Lockable:
    """A node of a tree whose content can be locked.

    A node that was locked with its parent can only be unlocked with it: otherwise the parent's
    promise would break unseen.
    """

    _locked: bool = False
    _lockers: list[weakref.ref[Lockable]]

    @property
    def is_locked(self) -> bool:
        """Whether the content may not be changed."""
        return self._locked

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        self.lock_() if value else self.unlock_()

    @property
    def locked(self) -> bool:
        """Whether the content may not be changed: the same as `is_locked`."""
        return self._locked

    def lock_(self, recurse: bool | None = None) -> Self:
        """Lock the content against changes, in place.

        Args:
            recurse: lock what is nested as well; None means yes.

        Returns:
            The node itself.
        """
        if not self._locked:
            self._lock(recurse is not False, None)
        return self

    def unlock_(self, recurse: bool | None = None) -> Self:
        """Allow changes of the content again, in place.

        Args:
            recurse: unlock what is nested as well; None means yes.

        Returns:
            The node itself.

        Raises:
            RuntimeError: the node was locked with a parent, which still is.
        """
        parents = [locker() for locker in self._lockers]
        if any(parent is not None and parent._locked for parent in parents):
            msg = "this node was locked with the one that holds it: unlock that one instead"
            raise RuntimeError(msg)
        self._unlock(recurse is not False)
        return self

    def _nodes(self) -> Iterable[Lockable]:
        """List the nodes right below."""
        raise NotImplementedError

    def _lock(self, recurse: bool, parent: Lockable | None) -> None:
        self._locked = True
        if parent is not None:
            self._lockers = [*self._lockers, weakref.ref(parent)]
        if recurse:
            for node in self._nodes():
                node._lock(True, self)

    def _unlock(self, recurse: bool) -> None:
        self._locked, self._lockers = False, []
        if recurse:
            for node in self._nodes():
                # a node in two trees stays locked until the last of them is unlocked
                others = [locker() for locker in node._lockers]
                if not any(other is not None and other._locked for other in others):
                    node._unlock(True)

    def _check_unlocked(self) -> None:
        if self._locked:
            msg = "this spec is locked: call unlock_() first, or change a clone()"
            raise RuntimeError(msg)

    def __getstate__(self) -> dict[str, Any]:
        # weak references do not travel: a copy is locked by itself, not by who locked the original
        return {**self.__dict__, "_lockers": []}
