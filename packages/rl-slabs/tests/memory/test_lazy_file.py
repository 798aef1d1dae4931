import os
import pickle

import pytest

from rl_slabs.memory.lazy_file import FileHandle


@pytest.fixture
def memory():
    descriptor = os.memfd_create("test")
    os.write(descriptor, b"content")
    yield descriptor
    os.close(descriptor)


def content(descriptor):
    try:
        return os.pread(descriptor, 99, 0)
    finally:
        os.close(descriptor)


def test_a_pickled_handle_opens_the_same_file_any_number_of_times(memory):
    handle = pickle.loads(pickle.dumps(FileHandle(memory)))
    assert content(handle.open()) == content(handle.open()) == b"content"


def test_another_process_opens_it_while_the_sender_holds_it(forked, memory):
    child = forked(lambda pipe: pipe.send(content(pickle.loads(pipe.recv_bytes()).open())))
    child.pipe.send_bytes(pickle.dumps(FileHandle(memory)))
    assert child.receive() == b"content"


def test_a_closed_file_is_an_error_that_says_what_to_do():
    descriptor = os.memfd_create("test")
    handle = FileHandle(descriptor)
    os.close(descriptor)
    with pytest.raises(FileNotFoundError, match="is gone: it closed the slab, ended, or lives"):
        handle.open()


def test_a_descriptor_that_was_used_again_is_not_mistaken(memory):
    other = os.memfd_create("other")
    handle = FileHandle(other)
    os.dup2(memory, other)
    with pytest.raises(FileNotFoundError, match="is gone"):
        handle.open()
    os.close(other)
