"""Changes of tensordicts, for environments and for buffers."""

from rl_transforms.cast import DoubleToFloat, DTypeCastTransform
from rl_transforms.cat_tensors import CatTensors
from rl_transforms.compose import CallableTransform, Compose, as_transform
from rl_transforms.crop import RandomCropTensorDict
from rl_transforms.device_cast import DeviceCastTransform
from rl_transforms.done_groups import GroupTransform
from rl_transforms.exclude import ExcludeTransform
from rl_transforms.images import CenterCrop, GrayScale, ImageTransform, Resize, ToTensorImage
from rl_transforms.init_tracker import InitTracker
from rl_transforms.multi_step import MultiStep, discounted_sums, multi_step
from rl_transforms.multi_step_transform import MultiStepTransform
from rl_transforms.next_observation import NextObservationDelta
from rl_transforms.next_state import NextStateReconstructor
from rl_transforms.observation_norm import ObservationNorm
from rl_transforms.primer import TensorDictPrimer
from rl_transforms.rename import RenameTransform
from rl_transforms.reward_sum import RewardSum
from rl_transforms.rewards import RewardClipping, RewardScaling, SignTransform
from rl_transforms.select import SelectTransform
from rl_transforms.shapes import FlattenObservation, SqueezeTransform, UnsqueezeTransform
from rl_transforms.step_counter import StepCounter
from rl_transforms.transform import Place, Transform

__all__ = [
    "CallableTransform",
    "CatTensors",
    "CenterCrop",
    "Compose",
    "DTypeCastTransform",
    "DeviceCastTransform",
    "DoubleToFloat",
    "ExcludeTransform",
    "FlattenObservation",
    "GrayScale",
    "GroupTransform",
    "ImageTransform",
    "InitTracker",
    "MultiStep",
    "MultiStepTransform",
    "NextObservationDelta",
    "NextStateReconstructor",
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
    "ToTensorImage",
    "Transform",
    "UnsqueezeTransform",
    "as_transform",
    "discounted_sums",
    "multi_step",
]
