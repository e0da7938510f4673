from __future__ import annotations

from isoscale.core.position import PositionGate
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.errors import PositionError
from isoscale.types import Placement
from tests.unit.simulated import Meeting, SimulatedExchange

SHARES = Placement(shares=(1, 2, 2))


def ask(exchange: SimulatedExchange, *positions: str) -> list[bool]:
    gate, answers = PositionGate(exchange), []
    for position in positions:
        gate.announce(position)
        answers.append(gate.agrees())
        assert gate.agrees() is answers[-1], "asking twice waits once"
    return answers


def test_equal_positions_agree_step_after_step() -> None:
    assert Meeting(SHARES).run(lambda e: ask(e, "step 1", "step 2")) == [[True, True]] * 3


def test_a_difference_is_seen_and_forgotten() -> None:
    results = Meeting(SHARES).run(lambda e: ask(e, f"step {e.index // 2}", "step 2"))
    assert results == [[False, True]] * 3


def test_different_positions_are_named_on_every_executor() -> None:
    def work(exchange: SimulatedExchange) -> None:
        gate = PositionGate(exchange)
        gate.announce(f"step {exchange.index // 2}")
        gate.check()

    for error in Meeting(SHARES).run(work):
        assert isinstance(error, PositionError)
        assert (error.position, error.other_executor, error.other_position) == ("step 0", 2, "step 1")


def test_one_process_agrees_with_itself() -> None:
    gate = PositionGate(LocalExchange(4))
    gate.announce("anywhere")
    gate.check()
