from __future__ import annotations

import numpy as np
import pytest

from isoscale.core.streams import numpy_stream, rng


@pytest.fixture(autouse=True)
def leave_the_global_stream_alone() -> object:
    with rng.isolated():
        yield


def seeded(seed: int) -> numpy_stream.NumpyStream:
    np.random.seed(seed)
    return numpy_stream.capture()


def test_memory_is_used_here() -> None:
    assert numpy_stream._places() is not None


@pytest.mark.parametrize("normals", [0, 1, 2, 3])
def test_memory_is_what_numpy_says(normals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded(8)
    np.random.randn(normals)
    by_memory = numpy_stream.capture()
    numpy_stream.restore(by_memory)
    after = [float(np.random.randn()) for _ in range(3)]
    monkeypatch.setattr(numpy_stream, "_places", lambda: None)
    seeded(8)
    np.random.randn(normals)
    assert numpy_stream.capture() == by_memory
    numpy_stream.restore(by_memory)
    assert [float(np.random.randn()) for _ in range(3)] == after


@pytest.mark.parametrize("draws", ["nothing", "random", "one normal", "two normals", "many"])
def test_switching_back_and_forth_is_as_if_nobody_else_had_drawn(draws: str) -> None:
    """Each of two identities draws in turns; a normal deviate put aside belongs to the one that drew it."""

    def draw() -> list[float]:
        amount = {"nothing": 0, "random": 0, "one normal": 1, "two normals": 2, "many": 1001}[draws]
        numbers = [float(np.random.randn()) for _ in range(amount)]
        return numbers + [float(np.random.random())] * (draws == "random")

    expected = []
    for seed in (1, 2):
        np.random.seed(seed)
        expected.append([draw() for _ in range(4)])
    contexts, outside = [seeded(1), seeded(2)], seeded(3)
    got: list[list[list[float]]] = [[], []]
    for _ in range(4):
        outside_now = numpy_stream.swap(contexts[0])
        got[0].append(draw())
        contexts[0] = numpy_stream.swap(contexts[1])
        got[1].append(draw())
        contexts[1] = numpy_stream.swap(outside_now)
        assert numpy_stream.capture() == outside
    assert got == expected


def test_swap_is_capture_and_restore() -> None:
    first, second = seeded(4), seeded(5)
    assert numpy_stream.swap(first) == second
    assert numpy_stream.capture() == first
    np.random.randn()
    used = numpy_stream.capture()
    assert used.has_gauss
    assert numpy_stream.swap(second) == used
    assert numpy_stream.swap(used) == second
    assert numpy_stream.capture() == used


def test_parts_make_the_whole() -> None:
    stream = seeded(6)
    np.random.randn()
    stream = numpy_stream.capture()
    again = numpy_stream.NumpyStream.of(stream.words, stream.position, stream.has_gauss, stream.gauss)
    assert again == stream
