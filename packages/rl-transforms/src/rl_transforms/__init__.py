"""Changes of tensordicts, for environments and for buffers."""

from rl_transforms.action_mask import ActionMask
from rl_transforms.burn_in import BurnIn
from rl_transforms.cast import DoubleToFloat, DTypeCastTransform
from rl_transforms.cat_frames import CatFrames
from rl_transforms.cat_tensors import CatTensors
from rl_transforms.compose import CallableTransform, Compose, as_transform
from rl_transforms.crop import RandomCropTensorDict
from rl_transforms.device_cast import DeviceCastTransform
from rl_transforms.done_groups import GroupTransform
from rl_transforms.driver import Driven, Driver
from rl_transforms.end_of_life import EndOfLife
from rl_transforms.exclude import ExcludeTransform
from rl_transforms.frame_skip import FrameSkip
from rl_transforms.group_done import GroupDone
from rl_transforms.hindsight import HindsightRelabel, HindsightStrategy
from rl_transforms.images import CenterCrop, GrayScale, ImageTransform, Resize, ToTensorImage
from rl_transforms.init_tracker import InitTracker
from rl_transforms.multi_step import MultiStep, discounted_sums, multi_step
from rl_transforms.multi_step_transform import MultiStepTransform
from rl_transforms.next_observation import NextObservationDelta
from rl_transforms.next_state import NextStateReconstructor
from rl_transforms.noop_reset import NoopReset
from rl_transforms.observation_norm import ObservationNorm
from rl_transforms.primer import TensorDictPrimer
from rl_transforms.rename import RenameTransform
from rl_transforms.reward_sum import RewardSum
from rl_transforms.rewards import RewardClipping, RewardScaling, SignTransform
from rl_transforms.select import SelectTransform
from rl_transforms.shapes import FlattenObservation, SqueezeTransform, UnsqueezeTransform
from rl_transforms.step_counter import StepCounter
from rl_transforms.time_max_pool import TimeMaxPool
from rl_transforms.transform import Place, Transform
from rl_transforms.vec_norm import VecNorm

__all__ = [
    "ActionMask",
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
    "Place",
    "RandomCropTensorDict",
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
