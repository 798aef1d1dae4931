"""Descriptions of reinforcement-learning data: shapes, dtypes, and domains."""

from rl_specs.composite.composite import Composite
from rl_specs.composite.consolidate import (
    check_no_exclusive_keys,
    consolidate_spec,
    contains_lazy_spec,
)
from rl_specs.composite.make_composite import make_composite_from_td
from rl_specs.composite.stack import stack_specs
from rl_specs.composite.stacked import Stacked
from rl_specs.composite.stacked_composite import StackedComposite
from rl_specs.core.tensor_spec import TensorSpec
from rl_specs.deprecated import (
    BinaryDiscreteTensorSpec,
    BoundedTensorSpec,
    CompositeSpec,
    DiscreteTensorSpec,
    LazyStackedCompositeSpec,
    LazyStackedTensorSpec,
    MultiDiscreteTensorSpec,
    MultiOneHotDiscreteTensorSpec,
    NonTensorSpec,
    OneHotDiscreteTensorSpec,
    UnboundedContinuousTensorSpec,
    UnboundedDiscreteTensorSpec,
)
from rl_specs.leaves.binary import Binary
from rl_specs.leaves.bounded import Bounded, BoundedContinuous, BoundedDiscrete
from rl_specs.leaves.boxes import BinaryBox, BoxList, CategoricalBox, ContinuousBox
from rl_specs.leaves.categorical import Categorical, OneHot
from rl_specs.leaves.choice_of import Choice
from rl_specs.leaves.multi import MultiCategorical, MultiOneHot
from rl_specs.leaves.non_tensor import NonTensor
from rl_specs.leaves.unbounded import Unbounded, UnboundedContinuous, UnboundedDiscrete

__all__ = [
    "Binary",
    "BinaryBox",
    "BinaryDiscreteTensorSpec",
    "Bounded",
    "BoundedContinuous",
    "BoundedDiscrete",
    "BoundedTensorSpec",
    "BoxList",
    "Categorical",
    "CategoricalBox",
    "Choice",
    "Composite",
    "CompositeSpec",
    "ContinuousBox",
    "DiscreteTensorSpec",
    "LazyStackedCompositeSpec",
    "LazyStackedTensorSpec",
    "MultiCategorical",
    "MultiDiscreteTensorSpec",
    "MultiOneHot",
    "MultiOneHotDiscreteTensorSpec",
    "NonTensor",
    "NonTensorSpec",
    "OneHot",
    "OneHotDiscreteTensorSpec",
    "Stacked",
    "StackedComposite",
    "TensorSpec",
    "Unbounded",
    "UnboundedContinuous",
    "UnboundedContinuousTensorSpec",
    "UnboundedDiscrete",
    "UnboundedDiscreteTensorSpec",
    "check_no_exclusive_keys",
    "consolidate_spec",
    "contains_lazy_spec",
    "make_composite_from_td",
    "stack_specs",
]
