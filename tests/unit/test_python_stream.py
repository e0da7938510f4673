from __future__ import annotations

import random

import pytest

from isoscale.core.streams import python_stream, rng


@pytest.fixture(autouse=True)
def leave_the_global_stream_alone() -> object:
    with rng.isolated():
        yield


def seeded(seed: int) -> python_stream.PythonStream:
    random.seed(seed)
    return python_stream.capture()


def test_memory_is_used_here() -> None:
    assert python_stream._place() is not None


@pytest.mark.parametrize("draws", [0, 1, 3, 624, 1001])
@pytest.mark.parametrize("normals", [0, 1, 2])
def test_memory_is_what_python_says(draws: int, normals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(8)
    for _ in range(draws):
        random.random()
    for _ in range(normals):
        random.gauss(0.0, 1.0)
    by_memory = python_stream.capture()
    assert by_memory.state == random.getstate()
    after = [random.gauss(0.0, 1.0) for _ in range(3)]
    python_stream.restore(by_memory)
    assert random.getstate() == by_memory.state
    assert [random.gauss(0.0, 1.0) for _ in range(3)] == after
    monkeypatch.setattr(python_stream, "_place", lambda: None)
    python_stream.restore(by_memory)
    assert python_stream.capture() == by_memory
    assert [random.gauss(0.0, 1.0) for _ in range(3)] == after


def test_switching_back_and_forth_is_as_if_nobody_else_had_drawn() -> None:
    """Each of two identities draws in turns; a normal deviate put aside belongs to the one that drew it."""

    def draw() -> list[float]:
        return [random.gauss(0.0, 1.0), random.random(), *(random.gauss(0.0, 1.0) for _ in range(400))]

    expected = []
    for seed in (1, 2):
        random.seed(seed)
        expected.append([draw() for _ in range(4)])
    contexts, outside = [seeded(1), seeded(2)], seeded(3)
    got: list[list[list[float]]] = [[], []]
    for _ in range(4):
        outside_now = python_stream.swap(contexts[0])
        got[0].append(draw())
        contexts[0] = python_stream.swap(contexts[1])
        got[1].append(draw())
        contexts[1] = python_stream.swap(outside_now)
        assert python_stream.capture() == outside
    assert got == expected


def test_a_generator_of_another_type_is_switched_by_its_own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(random.Random):
        pass

    mine = Mine(5)
    monkeypatch.setattr(python_stream, "_owner", lambda: mine)
    assert python_stream._place() is None
    kept = python_stream.capture()
    expected = [mine.random() for _ in range(3)]
    python_stream.restore(kept)
    assert [mine.random() for _ in range(3)] == expected
