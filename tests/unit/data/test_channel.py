"""What goes through the socket between an executor and its loader processes comes out whole, or not at all."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from isoscale.data.channel import _HEADER, Channel, pair


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    here, far = pair()
    there = Channel(far)
    yield here, there
    here.close()
    there.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    "message",
    [
        {"x": torch.arange(6.0).reshape(2, 3), "y": [torch.tensor(1), "text"], "none": torch.empty(0, 4)},
        [torch.full((2,), float(i)) for i in range(300)],  # more than the kernel sends at once
        {"pickled": bytes(range(256)) * 4096, "x": torch.ones(3)},  # more than a socket holds
        list(range(100_000)),
        torch.arange(12).reshape(3, 4).t()[1:],
    ],
    ids=["tensors", "300 tensors", "a megabyte", "numbers", "a view"],
)
def test_messages_come_whole(ends: tuple[Channel, Channel], message: Any) -> None:
    here, there = ends
    there.send(message)  # nobody reads yet
    assert here.wait(1)
    got = here.receive()
    assert repr(got) == repr(message)
    assert not here.wait(0)


def test_tensors_lie_in_shared_memory_and_descriptors_do_not_pile_up(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    tensor = torch.zeros(5)
    there.send(tensor)
    got = here.receive()
    tensor += 1  # both ends are in this process, and see one memory
    assert got.tolist() == [1.0] * 5
    del got, tensor
    before = open_descriptors()
    for _ in range(20):
        there.send([torch.zeros(3), bytes(100_000)])
        here.receive()
    assert open_descriptors() == before


@pytest.mark.parametrize("size", [10_000, 100_000])
def test_posting_never_waits_for_a_reader(ends: tuple[Channel, Channel], size: int) -> None:
    here, there = ends
    before = open_descriptors()
    messages = [[i] * size for i in range(100)]
    for message in messages:
        here.post(message)
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.extend(there.receive() for _ in messages))
    reader.start()
    while reader.is_alive():
        here.wait(0.01)
    assert got == messages
    assert open_descriptors() == before


@pytest.mark.parametrize("begun", [b"", b"\x01", _HEADER.pack(100, 0, False) + b"half", _HEADER.pack(4, 2, False)])
def test_what_a_dead_process_had_begun_to_send_ends_with_it(begun: bytes) -> None:
    here, far = pair()
    far.sendall(begun)
    far.close()
    assert here.wait(1)
    with pytest.raises(EOFError):
        here.receive()
    here.post("to nobody")
    here.close()


def test_descriptors_of_a_message_that_cannot_be_read_are_closed(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    before = open_descriptors()
    there.send([torch.zeros(3), Unreadable()])
    with pytest.raises(ZeroDivisionError):
        here.receive()
    assert open_descriptors() == before


def test_a_limit_of_open_files_is_named(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    there.send([torch.zeros(3) for _ in range(60)])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 10, hard))
    try:
        with pytest.raises(RuntimeError, match="ulimit -n"):
            here.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Unreadable:
    def __reduce__(self) -> Any:
        return divmod, (1, 0)


def test_the_other_strategy_of_torch_works_too(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        there.send(torch.arange(4))
        assert here.receive().tolist() == [0, 1, 2, 3]
    finally:
        torch.multiprocessing.set_sharing_strategy("file_descriptor")
