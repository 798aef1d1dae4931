import pytest
import torch


@pytest.fixture(scope="session")
def gpt2():
    """A random GPT-2 of a few weights, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=20,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
        initializer_range=0.3,
    )
    return GPT2LMHeadModel(config).eval()
