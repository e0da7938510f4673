from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.seal import Seal, Sealed, short_hash
from isoscale.core.totals import Tally, combine
from isoscale.types import Placement
from tests.unit.simulated import Meeting, SimulatedExchange

AWKWARD = [0.1, -0.0, 1e300, math.nan, 5e-324]


def report(tally: Tally, rank: int) -> None:
    tally.log(rank, {"loss": AWKWARD[rank]})
    tally.sum(rank, {"seen": 2**50 + rank, "error": torch.tensor([1.0, AWKWARD[rank]])})
    if rank == 2:
        tally.sum(rank, {"rare": 7})


def close(exchange: Any, **changes: Any) -> Sealed:
    tally = Tally()
    for rank in exchange.placement.ranks_of(exchange.index):
        report(tally, rank)
    return Seal(exchange).close(tally, **{"digest": "", "stop": False, "ready": False, **changes})


def comparable(sealed: Sealed) -> tuple[Any, ...]:
    values = sealed.values
    sums = {k: v.view(torch.int64).tolist() if isinstance(v, torch.Tensor) else v for k, v in values.sums.items()}
    return {k: v.hex() for k, v in values.means.items()}, sums, sealed.stop, sealed.differing


@pytest.mark.parametrize("shares", [(5,), (1, 4), (2, 1, 2), (1, 1, 1, 1, 1)])
def test_values_do_not_depend_on_placement(shares: tuple[int, ...]) -> None:
    whole = Tally()
    for rank in range(5):
        report(whole, rank)
    expected = comparable(Sealed(combine(whole.values()), False, ()))
    for sealed in Meeting(Placement(shares=shares)).run(close):
        assert comparable(sealed) == expected
        assert [sealed.values.by_rank["loss"][r].hex() for r in range(5)] == [float(v).hex() for v in AWKWARD]


def test_one_process_agrees_with_itself() -> None:
    sealed = close(LocalExchange(5))
    assert sealed.values.sums["rare"] == 7
    assert (sealed.stop, sealed.differing) == (False, ())


def test_anybody_may_ask_to_stop() -> None:
    results = Meeting(Placement(shares=(2, 3))).run(lambda e: close(e, stop=e.index == 1))
    assert [sealed.stop for sealed in results] == [True, True]
    assert close(LocalExchange(5), stop=True).stop


def test_executors_with_another_digest_are_named() -> None:
    results = Meeting(Placement(shares=(1, 2, 2))).run(lambda e: close(e, digest="odd" if e.index == 1 else "same"))
    assert [sealed.differing for sealed in results] == [(1,), (1,), (1,)]


def test_values_may_appear_and_stay_away_from_step_to_step() -> None:
    def work(exchange: SimulatedExchange) -> list[dict[str, Any]]:
        seal, sums = Seal(exchange), []
        for names in (["a"], ["a", "b"], [], ["b"]):
            tally = Tally()
            for rank in exchange.placement.ranks_of(exchange.index):
                tally.sum(rank, dict.fromkeys(names, 1) if rank != 1 else {})
            sums.append(seal.close(tally, digest="", stop=False, ready=False).values.sums)
        return sums

    expected = [{"a": 2}, {"a": 2, "b": 2}, {}, {"b": 2}]
    assert Meeting(Placement(shares=(1, 1, 1))).run(work) == [expected] * 3


@pytest.mark.parametrize("text", ["", "a", "loader 1 batch 3"])
def test_a_short_hash_fits_and_is_never_zero(text: str) -> None:
    assert 0 < short_hash(text) < 2**63
    assert short_hash(text) == short_hash(text) != short_hash(text + "x")


@pytest.mark.parametrize("lacking", [None, 0, 1])
def test_a_switch_is_agreed_when_everybody_is_ready(lacking: int | None) -> None:
    results = Meeting(Placement(shares=(2, 3))).run(lambda e: close(e, ready=e.index != lacking))
    assert [sealed.all_ready for sealed in results] == [lacking is None] * 2
    assert close(LocalExchange(5), ready=lacking is None).all_ready is (lacking is None)


def test_what_one_executor_saw_sealed_tells_another_the_same() -> None:
    """Only those that have left a seal hold its vector; it is all that another one lacks."""

    def work(exchange: SimulatedExchange) -> tuple[Sealed, Sealed]:
        seal, tally = Seal(exchange), Tally()
        for rank in exchange.placement.ranks_of(exchange.index):
            report(tally, rank)
        left = seal.close(tally, digest="d", stop=True, ready=True)
        assert seal.vector is not None
        assert not seal.entered
        vectors = exchange.gather_bytes(seal.vector.numpy().tobytes())
        theirs = torch.frombuffer(bytearray(vectors[1 - exchange.index]), dtype=torch.int64)
        return left, seal.read(theirs)

    for left, read in Meeting(Placement(shares=(2, 3))).run(work):
        assert comparable(left) == comparable(read)
        assert left.all_ready
        assert read.all_ready


def test_messages_travel_in_the_vector_unless_they_are_too_long_for_it() -> None:
    sizes = [3, 3, 40, 2**17, 5, 0]

    def work(exchange: SimulatedExchange) -> tuple[list[list[bytes]], list[bool]]:
        seal, told, carried = Seal(exchange), [], []
        for size in sizes:
            carried.append(seal.carries)
            mine = bytes([exchange.index]) * (size * (1 + exchange.index))
            seal.close(Tally(), digest="", stop=False, message=mine if seal.carries else None)
            told.append(seal.messages if carried[-1] else exchange.gather_bytes(mine))
            seal.expect(told[-1])
        return told, carried

    expected = [[bytes(size), bytes([1]) * 2 * size] for size in sizes]
    for told, carried in Meeting(Placement(shares=(1, 2))).run(work):
        assert told == expected
        assert carried == [False, True, True, True, False, True]


def test_messages_are_in_the_vector_that_a_luckier_executor_has_left_with() -> None:
    def work(exchange: SimulatedExchange) -> list[bytes]:
        seal = Seal(exchange)
        seal.expect([b"as long as this"] * 2)
        seal.close(Tally(), digest="", stop=False, message=f"of {exchange.index}".encode())
        assert seal.vector is not None
        seal.messages = []
        seal.read(seal.vector)
        return seal.messages

    assert Meeting(Placement(shares=(1, 1))).run(work) == [[b"of 0", b"of 1"]] * 2
