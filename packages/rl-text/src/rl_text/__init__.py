"""Text as trajectories of tokens: flat batches, preference data, rollouts of language models."""

from rl_text.models.completions import place_rewards, sample_completions
from rl_text.models.language_model import LanguageModel
from rl_text.tokens.flat import flat_tokens
from rl_text.tokens.shift import shift
from rl_text.tokens.views import from_padded, padded, token_lists

__all__ = [
    "LanguageModel",
    "flat_tokens",
    "from_padded",
    "padded",
    "place_rewards",
    "sample_completions",
    "shift",
    "token_lists",
]
