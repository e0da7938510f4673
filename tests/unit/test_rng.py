from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.utils.data

from isoscale.core.streams import rng


@pytest.fixture(autouse=True)
def leave_streams() -> Iterator[None]:
    with rng.isolated():
        yield


def draw() -> tuple[float, float, float, float]:
    """Normal deviates too: Python and NumPy cache the second of a pair."""
    return random.random(), random.gauss(0, 1), float(np.random.randn()), float(torch.randn(()))


def test_seed_all_seeds_the_three_streams_as_a_script_does() -> None:
    rng.seed_all(5)
    ours = draw()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert draw() == ours


def test_restore_goes_back_to_the_capture() -> None:
    rng.seed_all(1)
    draw()
    streams = rng.capture()
    first = [draw() for _ in range(3)]
    rng.restore(streams)
    assert [draw() for _ in range(3)] == first
    rng.restore(streams)
    assert draw() == first[0]


def test_seeded_leaves_the_caller_alone() -> None:
    rng.seed_all(3)
    expected = draw()
    rng.seed_all(3)
    streams = rng.seeded(9)
    assert draw() == expected
    rng.restore(streams)
    ours = draw()
    rng.seed_all(9)
    assert draw() == ours


def test_isolated_puts_streams_back_after_an_error() -> None:
    rng.seed_all(4)
    expected = draw()
    rng.seed_all(4)

    def fail() -> None:
        with rng.isolated():
            draw()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert draw() == expected


@pytest.mark.parametrize("draws_before", [0, 1, 2])
def test_state_survives_a_weights_only_file(draws_before: int) -> None:
    rng.seed_all(6)
    for _ in range(draws_before):
        draw()
    file = io.BytesIO()
    torch.save(rng.capture().to_state(), file)
    expected = [draw() for _ in range(4)]
    file.seek(0)
    rng.seed_all(0)
    rng.restore(rng.Streams.from_state(torch.load(file, weights_only=True)))
    assert [draw() for _ in range(4)] == expected


def test_a_capture_does_not_move_with_later_draws() -> None:
    rng.seed_all(8)
    streams = rng.capture()
    before = (streams.python, streams.numpy.raw, streams.torch.clone())
    draw()
    assert streams.python == before[0]
    assert streams.numpy.raw == before[1]
    assert torch.equal(streams.torch, before[2])


@pytest.mark.filterwarnings("ignore:get_state and legacy:RuntimeWarning")
def test_a_replaced_numpy_generator_is_refused() -> None:
    state = np.random.get_state()
    kept = np.random.mtrand._rand._bit_generator
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        with pytest.raises(RuntimeError, match="MT19937"):
            rng.capture()
    finally:
        np.random.set_bit_generator(kept)
        np.random.set_state(state)


def moved(change: Callable[[], object]) -> tuple[rng.Streams, rng.Streams]:
    with rng.isolated():
        rng.seed_all(3)
        before = rng.capture()
        change()
        return before, rng.capture()


CHANGES: list[Callable[[], object]] = [
    lambda: None,
    random.random,
    lambda: random.gauss(0, 1),  # keeps the second value of the pair
    np.random.rand,
    np.random.randn,
    lambda: np.random.rand(700),
    lambda: torch.rand(3),
    lambda: torch.randn(20),
    lambda: (random.random(), np.random.randn(), torch.rand(())),
]


@pytest.mark.parametrize("change", CHANGES)
def test_changes_give_the_same_streams_elsewhere(change: Callable[[], object]) -> None:
    before, after = moved(change)
    changes = after.changes_since(before)
    again = before.with_changes(changes)
    assert again.changes_since(after) == [None] * 4
    with rng.isolated():
        rng.restore(after)
        expected = [draw() for _ in range(4)]
        rng.restore(again)
        assert [draw() for _ in range(4)] == expected


def test_only_what_changed_travels() -> None:
    for index, change in enumerate([random.random, np.random.rand, lambda: torch.rand(())]):
        before, after = moved(change)
        assert [part is not None for part in after.changes_since(before)] == [i == index for i in range(4)]
    before, after = moved(lambda: None)
    assert after.changes_since(before) == [None] * 4


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_a_base_seed_is_what_a_data_loader_draws(seed: int) -> None:
    with rng.isolated():
        rng.seed_all(seed)
        drawn, after = rng.draw_base_seed(rng.capture())
        iterator = iter(torch.utils.data.DataLoader([1, 2, 3], num_workers=0))
        assert iterator._base_seed == drawn
        assert rng.capture().changes_since(after) == [None] * 4
