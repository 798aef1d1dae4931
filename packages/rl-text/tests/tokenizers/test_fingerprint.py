import pytest

from rl_text import ByteTokenizer, fingerprint


def test_calls_of_a_tokenizer_do_not_change_what_it_is(trained):
    tokenizer = trained()
    before = fingerprint(tokenizer)
    tokenizer(["a", "b c"], padding="max_length", truncation=True, max_length=9)
    assert fingerprint(tokenizer) == before == fingerprint(trained())


def test_another_vocabulary_end_token_or_template_is_another_tokenizer(trained):
    plain = fingerprint(trained())
    others = [trained(260), trained(eos_token="a"), trained(), trained()]
    others[2].chat_template = "{{ messages }}"
    others[3].padding_side = "left"
    found = {plain, *map(fingerprint, others), fingerprint(ByteTokenizer())}
    assert len(found) == 6


def test_tokenizer_that_does_not_say_what_it_is_is_refused():
    with pytest.raises(TypeError, match="cannot be identified"):
        fingerprint(object())
