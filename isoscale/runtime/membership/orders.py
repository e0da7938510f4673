"""What the executors of a generation are told, and what the event log says of it. Values only: nothing is decided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from isoscale.batches import BatchChange
from isoscale.protocol import messages as m
from isoscale.runtime.membership.instructions import Emit, Instruction, Tell

__all__ = ["Formation", "addresses_of", "generation_events", "meeting_place", "rescale_event", "straggler_event"]


def addresses_of(members: Iterable[m.Hello | None], *, apart: bool = False) -> tuple[str, ...]:
    """Where each of them listens, "" if it does not; nothing at all if they are on one machine.

    `apart`: that may be another one than the coordinator's, whose files they do not see.
    """
    hellos = list(members)
    machines = {hello.machine for hello in hellos if hello is not None}
    return tuple(hello.store if hello is not None else "" for hello in hellos) if apart or len(machines) > 1 else ()


def meeting_place(addresses: tuple[str, ...], prefix: str, generation: int) -> str:
    """Where the members of a generation meet: a file on one machine, across machines a store that the first serves."""
    if addresses and addresses[0]:
        return f"{addresses[0]}/{prefix.rpartition('/')[2]}-{generation}"
    return f"{prefix}-{generation}"


@dataclass(frozen=True, slots=True)
class Formation:
    """A generation that is about to be formed: every member gets its index, and all the same rest."""

    generation: int
    members: tuple[int, ...]
    shares: tuple[int, ...]
    #: where its members meet
    store: str
    #: the step at which they wait for the plan's next change
    hold_at: int | None
    #: where they listen, across machines
    addresses: tuple[str, ...] = ()

    def begin(self, checkpoint: str, batches: tuple[BatchChange, ...] = (), reached: int = 0) -> list[Instruction]:
        """Start training, from a checkpoint or from the beginning; up to `reached` steps with the same batch sizes."""
        common = self._common() | {"checkpoint": checkpoint, "batches": batches, "reached": reached}
        return [Tell(e, m.Begin(index=i, **common)) for i, e in enumerate(self.members)]

    def prepare(self, coming: frozenset[int], leaving: tuple[int, ...], sender: int = -1) -> list[Instruction]:
        """Form the group beside training. Those who stay share the work of handing the state to those who come; where
        nobody stays, `sender` does it alone."""
        staying = [i for i, executor in enumerate(self.members) if executor not in coming]
        fresh = [i for i, executor in enumerate(self.members) if executor in coming]
        senders = {i: staying[n % len(staying)] if staying else -1 for n, i in enumerate(fresh)}
        places = [*enumerate(self.members), *((-1, executor) for executor in leaving)]
        common = self._common()
        return [Tell(e, m.Prepare(index=i, senders=senders, sender=sender, **common)) for i, e in places]

    def recover(self) -> list[Instruction]:
        """Go on from the last sealed step without whoever is gone."""
        common = self._common()
        return [Tell(e, m.Recover(index=i, **common)) for i, e in enumerate(self.members)]

    def _common(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "shares": self.shares,
            "members": self.members,
            "store": self.store,
            "addresses": self.addresses,
            "hold_at": self.hold_at,
        }


def generation_events(
    generation: int, step: int, members: tuple[int, ...], shares: tuple[int, ...], reason: str, joined: Iterable[int]
) -> list[Instruction]:
    joins: list[Instruction] = [
        Emit("executor_joined", {"executor": executor, "generation": generation}) for executor in joined
    ]
    fields = {
        "generation": generation,
        "step": step,
        "members": list(members),
        "shares": list(shares),
        "reason": reason,
    }
    return [*joins, Emit("generation", fields)]


def rescale_event(
    generation: int,
    before: int,
    step: int,
    pause: tuple[float, float],
    members: tuple[int, ...],
    shares: tuple[int, ...],
    reason: str,
) -> Emit:
    """`pause`: seconds in which nobody trained, and seconds that somebody waited for others."""
    return Emit(
        "rescale",
        {
            "generation": generation,
            "from": before,
            "to": len(members),
            "step": step,
            "pause_s": round(pause[0], 6),
            "wait_s": round(pause[1], 6),
            "reason": reason,
            "members": list(members),
            "shares": list(shares),
        },
    )


def straggler_event(
    executor: int, ratio: float, gain: float, shares: tuple[int, ...], set_aside: tuple[int, ...]
) -> Emit:
    """`ratio`: the slow executor's turn over the median's. `shares` are those of the members that stay."""
    return Emit(
        "straggler",
        {
            "executor": executor,
            "ratio": round(ratio, 3),
            "shares": list(shares),
            "gain": round(gain, 3),
            "set_aside": list(set_aside),
        },
    )
