import numpy as np
import pytest
import torch

from rl_tensordict.arguments import (
    as_device,
    as_integer,
    check_calls,
    check_choice,
    check_flags,
    check_integer,
    check_number,
    check_type,
    check_whole,
    drop_useless,
    key_list,
    local_device,
    number_tensor,
    shown,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(3, 2), "a tensor [3, 2] of torch.float32"),
        ("word", "'word' (str)"),
        (None, "None (NoneType)"),
        (object(), "a object"),
        (np.zeros(3), "a ndarray"),
    ],
)
def test_shown_names_value_and_type(value, text):
    assert shown(value) == text


def test_shown_is_short():
    assert len(shown("x" * 500)) == 80


def test_check_type_says_what_was_expected():
    check_type("size", 3, int, "a number")
    with pytest.raises(TypeError, match=r"size: expected a number, got 'x' \(str\)\."):
        check_type("size", "x", int, "a number")


@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3), np.array(3)])
def test_as_integer_reads_whole_numbers_of_any_kind(value):
    assert as_integer(value) == 3
    assert type(as_integer(value)) is int


@pytest.mark.parametrize("value", [True, 3.0, "3", None, torch.zeros(2), np.zeros(2, int)])
def test_as_integer_reads_nothing_else(value):
    assert as_integer(value) is None


def test_whole_numbers_are_checked():
    assert check_integer("n", np.int32(7)) == 7
    check_whole("n", 0, 0)
    for value in (True, 3.0, "3", torch.tensor(3)):
        with pytest.raises(TypeError, match=r"n: expected a whole number, got "):
            check_whole("n", value)
    with pytest.raises(ValueError, match=r"n: expected at least 2, got 1\. Wait\."):
        check_whole("n", 1, 2, " Wait.")
    for value in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match="n: expected a number of 64 bits"):
            check_whole("n", value)


def test_numbers_are_checked_and_become_tensors():
    assert number_tensor("x", 2, torch.float64).equal(torch.tensor(2.0, dtype=torch.float64))
    given = torch.ones(3)
    assert number_tensor("x", given) is given
    for value in ("3", None, torch.zeros(2, dtype=torch.complex64)):
        with pytest.raises(TypeError, match=r"x: expected a number, got "):
            number_tensor("x", value)
    with pytest.raises(ValueError, match=r"x: expected a number, got nan\."):
        check_number("x", float("nan"))


def test_name_that_is_no_choice_is_refused_with_the_choices():
    check_choice("mode", "fast", ("slow", "fast"))
    for wrong in ("best", 1, None):
        with pytest.raises(ValueError, match=r"mode: expected 'slow', 'quick' or 'fast', got"):
            check_choice("mode", wrong, ("slow", "quick", "fast"))
    for right in (True, False, "once"):
        check_choice("mode", right, (True, False, "once"))
    for wrong in (1, 0, None, "twice"):
        with pytest.raises(ValueError, match=r"mode: expected True, False or 'once', got"):
            check_choice("mode", wrong, (True, False, "once"))


def test_switches_and_calls_of_another_type_are_named():
    check_flags(on=True, off=False)
    check_calls(policy=print, callback=None)
    with pytest.raises(TypeError, match=r"off: expected True or False, got 1 \(int\)"):
        check_flags(on=True, off=1)
    with pytest.raises(TypeError, match=r"callback: expected a function or a module, got 0"):
        check_calls(policy=print, callback=0)


def test_a_list_of_keys_is_copied():
    given = ["a", ("b", "c")]
    assert key_list("in_keys", given) == given
    assert key_list("in_keys", given) is not given
    assert key_list("in_keys", None) == []
    for value in ("a", ("a", "b")):
        with pytest.raises(TypeError, match=r"in_keys: expected a list of keys, got .* Write \["):
            key_list("in_keys", value)
    for value in (3, torch.tensor(3)):
        with pytest.raises(TypeError, match=r"in_keys: expected a list of keys, got "):
            key_list("in_keys", value)
    with pytest.raises(TypeError, match="a key must be a string"):
        key_list("in_keys", [3])


def test_devices_are_read_by_name():
    assert as_device("device", "cpu") == as_device("device", torch.device("cpu"))
    for value in (True, 3.0, None):
        with pytest.raises(TypeError, match=r"device: expected a torch\.device or its name, as"):
            as_device("device", value)
    with pytest.raises(ValueError, match=r"got 'quantum' \(str\)\."):
        as_device("device", "quantum")


def test_a_device_that_this_machine_lacks_is_refused_by_name():
    assert local_device("device", "cpu") == torch.device("cpu")
    assert local_device("device", "meta") == torch.device("meta")
    for value in ("cuda:99", "hpu"):
        with pytest.raises(RuntimeError, match=f"storage: there is no device '{value}' here"):
            local_device("storage", value)
    with pytest.raises(ValueError, match=r"storage: expected a torch\.device or its name"):
        local_device("storage", "cuda:x")


def test_a_device_beyond_64_bits_is_refused_by_name():
    with pytest.raises(ValueError, match=r"device: expected a torch.device or its name"):
        as_device("device", 2**63)


def test_arguments_without_effect_are_dropped_with_a_warning_where_a_reason_is_given():
    reasons = {"loud": "there is one algorithm", "silent": ""}
    with pytest.warns(DeprecationWarning, match=r"loud has no effect: there .* Leave it"):
        assert drop_useless({"loud": 1, "silent": 2, "other": 3}, reasons) == {"other": 3}
