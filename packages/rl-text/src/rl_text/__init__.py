"""Text as trajectories of tokens: flat batches, preference data, rollouts of language models."""

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
    "PromptTensorDictTokenizer",
    "TensorDictTokenizer",
    "TextTokenizer",
    "fingerprint",
    "flat_tokens",
    "from_padded",
    "padded",
    "place_rewards",
    "sample_completions",
    "shift",
    "token_lists",
]
