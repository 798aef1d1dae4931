import pytest

TEXTS = ["the cat sat on the mat", "a dog", "what a cat the dog saw", "b c d e f"]


@pytest.fixture(scope="session")
def trained():
    """A function that trains a byte-level tokenizer of transformers on a few texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    def train(size=300, **special):
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=["<pad>", "<eos>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(TEXTS * 9, trainer)
        named = {"pad_token": "<pad>", "eos_token": "<eos>", **special}
        return PreTrainedTokenizerFast(tokenizer_object=inner, **named)

    return train


@pytest.fixture(scope="session")
def tokenizer(trained):
    return trained()
