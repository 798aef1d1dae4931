"""Text as trajectories of tokens: flat batches, preference data, rollouts of language models."""

from rl_text.datasets.dataloader import TokenBatches, create_infinite_iterator, get_dataloader
from rl_text.datasets.examples import read_examples
from rl_text.datasets.loader import TokenizedDatasetLoader
from rl_text.datasets.preferences import PairwiseDataset, PromptData, RewardData
from rl_text.datasets.tokenized import TokenizedDataset
from rl_text.models.completions import place_rewards, sample_completions
from rl_text.models.language_model import LanguageModel
from rl_text.tokenizers.byte_tokenizer import ByteTokenizer
from rl_text.tokenizers.fingerprint import fingerprint
from rl_text.tokenizers.prompt_tokenizer import PromptTensorDictTokenizer
from rl_text.tokenizers.protocol import TextTokenizer
from rl_text.tokenizers.tensordict_tokenizer import TensorDictTokenizer
from rl_text.tokens.flat import flat_tokens
from rl_text.tokens.shift import shift
from rl_text.tokens.views import from_padded, padded, token_lists

__all__ = [
    "ByteTokenizer",
    "LanguageModel",
    "PairwiseDataset",
    "PromptData",
    "PromptTensorDictTokenizer",
    "RewardData",
    "TensorDictTokenizer",
    "TextTokenizer",
    "TokenBatches",
    "TokenizedDataset",
    "TokenizedDatasetLoader",
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
