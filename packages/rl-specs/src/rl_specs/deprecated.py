"""Former names of the specs: they still work, and warn.

An old name makes an instance of the new class, and counts all of its instances as its own:

    >>> import warnings
    >>> with warnings.catch_warnings(action="ignore"):
    ...     spec = DiscreteTensorSpec(3)
    >>> type(spec).__name__, isinstance(spec, DiscreteTensorSpec)
    ('Categorical', True)
"""

from __future__ import annotations

import warnings
from typing import Any

from rl_specs.composite.composite import Composite
from rl_specs.composite.stacked import Stacked
from rl_specs.composite.stacked_composite import StackedComposite
from rl_specs.leaves.binary import Binary
from rl_specs.leaves.bounded import Bounded
from rl_specs.leaves.categorical import Categorical, OneHot
from rl_specs.leaves.multi import MultiCategorical, MultiOneHot
from rl_specs.leaves.non_tensor import NonTensor
from rl_specs.leaves.unbounded import UnboundedContinuous, UnboundedDiscrete


class _Renamed(type):
    """An alias of the class it inherits from."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ != __name__:
            # a subclass that a user made of an old name
            return super().__call__(*args, **kwargs)
        new: type = cls.__bases__[0]
        msg = f"{cls.__name__} is deprecated: it is called {new.__name__} now"
        warnings.warn(msg, DeprecationWarning, stacklevel=2)
        return new(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        if cls.__module__ != __name__:
            return super().__instancecheck__(instance)
        return isinstance(instance, cls.__bases__[0])


class BinaryDiscreteTensorSpec(Binary, metaclass=_Renamed):
    """Deprecated: use `Binary`."""


class BoundedTensorSpec(Bounded, metaclass=_Renamed):
    """Deprecated: use `Bounded`."""


class CompositeSpec(Composite, metaclass=_Renamed):
    """Deprecated: use `Composite`."""


class DiscreteTensorSpec(Categorical, metaclass=_Renamed):
    """Deprecated: use `Categorical`."""


class LazyStackedCompositeSpec(StackedComposite, metaclass=_Renamed):
    """Deprecated: use `StackedComposite`."""


class LazyStackedTensorSpec(Stacked, metaclass=_Renamed):
    """Deprecated: use `Stacked`."""


class MultiDiscreteTensorSpec(MultiCategorical, metaclass=_Renamed):
    """Deprecated: use `MultiCategorical`."""


class MultiOneHotDiscreteTensorSpec(MultiOneHot, metaclass=_Renamed):
    """Deprecated: use `MultiOneHot`."""


class NonTensorSpec(NonTensor, metaclass=_Renamed):
    """Deprecated: use `NonTensor`."""


class OneHotDiscreteTensorSpec(OneHot, metaclass=_Renamed):
    """Deprecated: use `OneHot`."""


class UnboundedContinuousTensorSpec(UnboundedContinuous, metaclass=_Renamed):
    """Deprecated: use `Unbounded`, or `UnboundedContinuous`."""


class UnboundedDiscreteTensorSpec(UnboundedDiscrete, metaclass=_Renamed):
    """Deprecated: use `Unbounded`, or `UnboundedDiscrete`."""
