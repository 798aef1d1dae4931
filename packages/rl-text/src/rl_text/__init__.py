"""Text as trajectories of tokens: flat batches, preference data, rollouts of language models."""

from rl_text.datasets.dataloader import TokenBatches, create_infinite_iterator, get_dataloader
from rl_text.datasets.examples import read_examples
from rl_text.datasets.loader import TokenizedDatasetLoader
from rl_text.datasets.preferences import PairwiseDataset, PromptData, RewardData
from rl_text.datasets.tokenized import TokenizedDataset
from rl_text.models.completions import place_rewards, sample_completions
from rl_text.models.kl_controllers import AdaptiveKLController, ConstantKLController, KLController
from rl_text.models.language_model import LanguageModel
from rl_text.models.rollout_from_model import RolloutFromModel
from rl_text.prompt_groups import PromptGroupSampler
from rl_text.tokenizers.byte_tokenizer import ByteTokenizer
from rl_text.tokenizers.fingerprint import fingerprint
from rl_text.tokenizers.prompt_tokenizer import PromptTensorDictTokenizer
from rl_text.tokenizers.protocol import TextTokenizer
from rl_text.tokenizers.tensordict_tokenizer import TensorDictTokenizer
from rl_text.tokens.flat import flat_tokens
from rl_text.tokens.shift import shift
from rl_text.tokens.views import from_padded, padded, token_lists
from rl_text.transforms.hash import Hash
from rl_text.transforms.tokenizer import Tokenizer

__all__ = [
    "AdaptiveKLController",
    "ByteTokenizer",
    "ConstantKLController",
    "Hash",
    "KLController",
    "LanguageModel",
    "PairwiseDataset",
    "PromptData",
    "PromptGroupSampler",
    "PromptTensorDictTokenizer",
    "RewardData",
    "RolloutFromModel",
    "TensorDictTokenizer",
    "TextTokenizer",
    "TokenBatches",
    "TokenizedDataset",
    "TokenizedDatasetLoader",
    "Tokenizer",
    "create_infinite_iterator",
    "fingerprint",
    "flat_tokens",
    "from_padded",
    "get_dataloader",
    "padded",
    "place_rewards",
    "read_examples",
    "sample_completions",
    "shift",
    "token_lists",
]
