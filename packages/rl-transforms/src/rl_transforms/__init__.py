"""Changes of tensordicts, for environments and for buffers."""

from rl_transforms.compose import CallableTransform, Compose, as_transform
from rl_transforms.dtypes.cast import DoubleToFloat, DTypeCastTransform
from rl_transforms.dtypes.device_cast import DeviceCastTransform
from rl_transforms.dtypes.finite_check import FiniteTensorDictCheck
from rl_transforms.episodes.action_mask import ActionMask
from rl_transforms.episodes.end_of_life import EndOfLife
from rl_transforms.episodes.env_driver import Driven, Driver
from rl_transforms.episodes.frame_skip import FrameSkip
from rl_transforms.episodes.group_done import GroupDone
from rl_transforms.episodes.groups import GroupTransform
from rl_transforms.episodes.init_tracker import InitTracker
from rl_transforms.episodes.noop_reset import NoopReset
from rl_transforms.episodes.primer import TensorDictPrimer
from rl_transforms.episodes.step_counter import StepCounter
from rl_transforms.history.cat_frames import CatFrames
from rl_transforms.history.time_max_pool import TimeMaxPool
from rl_transforms.keys.cat_tensors import CatTensors
from rl_transforms.keys.exclude import ExcludeTransform
from rl_transforms.keys.remove_empty import RemoveEmptySpecs
from rl_transforms.keys.rename import RenameTransform
from rl_transforms.keys.select import SelectTransform
from rl_transforms.multi_step.on_sample import MultiStep, discounted_sums, multi_step
from rl_transforms.multi_step.on_write import MultiStepTransform
from rl_transforms.next_observation.delta import NextObservationDelta
from rl_transforms.next_observation.reconstruct import NextStateReconstructor
from rl_transforms.observations.images import (
    CenterCrop,
    GrayScale,
    ImageTransform,
    Resize,
    ToTensorImage,
)
from rl_transforms.observations.observation_norm import ObservationNorm
from rl_transforms.observations.shapes import (
    FlattenObservation,
    PermuteTransform,
    SqueezeTransform,
    UnsqueezeTransform,
)
from rl_transforms.observations.vec_norm import VecNorm
from rl_transforms.rewards.reward_sum import RewardSum
from rl_transforms.rewards.rewards import (
    BinarizeReward,
    RewardClipping,
    RewardScaling,
    SignTransform,
)
from rl_transforms.sampling.burn_in import BurnIn
from rl_transforms.sampling.crop import RandomCropTensorDict
from rl_transforms.sampling.hindsight import HindsightRelabel, HindsightStrategy
from rl_transforms.sampling.policy_age import PolicyAgeFilter
from rl_transforms.transform import Place, Transform

__all__ = [
    "ActionMask",
    "BinarizeReward",
    "BurnIn",
    "CallableTransform",
    "CatFrames",
    "CatTensors",
    "CenterCrop",
    "Compose",
    "DTypeCastTransform",
    "DeviceCastTransform",
    "DoubleToFloat",
    "Driven",
    "Driver",
    "EndOfLife",
    "ExcludeTransform",
    "FiniteTensorDictCheck",
    "FlattenObservation",
    "FrameSkip",
    "GrayScale",
    "GroupDone",
    "GroupTransform",
    "HindsightRelabel",
    "HindsightStrategy",
    "ImageTransform",
    "InitTracker",
    "MultiStep",
    "MultiStepTransform",
    "NextObservationDelta",
    "NextStateReconstructor",
    "NoopReset",
    "ObservationNorm",
    "PermuteTransform",
    "Place",
    "PolicyAgeFilter",
    "RandomCropTensorDict",
    "RemoveEmptySpecs",
    "RenameTransform",
    "Resize",
    "RewardClipping",
    "RewardScaling",
    "RewardSum",
    "SelectTransform",
    "SignTransform",
    "SqueezeTransform",
    "StepCounter",
    "TensorDictPrimer",
    "TimeMaxPool",
    "ToTensorImage",
    "Transform",
    "UnsqueezeTransform",
    "VecNorm",
    "as_transform",
    "discounted_sums",
    "multi_step",
]
