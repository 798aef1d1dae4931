import pytest
import torch
from tensordict import TensorDict

from rl_tensordict import add_notes, note_call


def noted(*given, **named):
    """The notes of an error after a call was noted."""
    error = ValueError("no")
    note_call(error, *given, **named)
    return error.__notes__


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(3, 2), "float32 [3, 2]"),
        (TensorDict({"a": {"b": torch.zeros(3)}}, [3]), "a tensordict [3] of [('a', 'b')]"),
        ("word", "'word'"),
        (None, "None"),
        (int, "a class int"),
        ([3], "a list"),
    ],
)
def test_a_note_describes_each_argument(value, text):
    assert noted("Actor", [value]) == [
        f"Actor was given {text}. Compare their shapes and dtypes with the inputs of the network."
    ]


def test_a_note_names_arguments_by_their_keys_as_far_as_there_are_some():
    found = noted("Actor", [1, 2], ["observation"], "Read on.")
    assert found == ["Actor was given 'observation' 1, 2. Read on."]


def test_a_note_of_a_call_without_arguments_says_what_it_reads():
    assert noted("Actor", [], ["a", "b"]) == [
        "Actor was given nothing; it reads 'a', 'b'. "
        "Pass a tensordict that holds them, or one tensor for each."
    ]


def test_a_call_inside_adds_the_note():
    error = ValueError("no")
    error.add_note("Failed while executing module '0'.")
    note_call(error, "inner", [1])
    note_call(error, "outer", [2])
    assert [text[:5] for text in error.__notes__] == ["Faile", "inner"]


def test_add_notes_tells_of_the_errors_that_were_named_and_of_no_others():
    seen = []

    def note(error, function, args, kwargs):
        seen.append((type(error), function.__name__, args, kwargs))
        error.add_note("a note")

    @add_notes(note, (KeyError, ValueError))
    def call(error, **options):
        if error is not None:
            raise error
        return options

    assert call(None, a=1) == {"a": 1}
    key, value, other = KeyError(), ValueError(), TypeError()
    for error in (key, value, other):
        with pytest.raises(type(error)):
            call(error, b=2)
    assert [kind for kind, *_ in seen] == [KeyError, ValueError]
    assert seen[0][1:] == ("call", (key,), {"b": 2})
    assert key.__notes__ == value.__notes__ == ["a note"]
    assert not hasattr(other, "__notes__")


def test_a_note_may_raise_in_the_place_of_an_error():
    def note(error, function, args, kwargs):
        raise TypeError("x: expected a number") from error

    with pytest.raises(TypeError, match="x: expected a number") as caught:
        add_notes(note)(lambda x: 1 / x)(0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("no", "Actor", []), "error: expected an exception, got 'no'"),
        ((ValueError(), "Actor", 3), "arguments: expected a list, got 3"),
        ((ValueError(), "Actor", [], torch.tensor(1)), "keys: expected a list, got a tensor"),
    ],
    ids=["error", "arguments", "keys"],
)
def test_a_note_of_no_call_is_refused(given, said):
    with pytest.raises(TypeError, match=said):
        note_call(*given)
