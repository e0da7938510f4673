"""What a job was asked for and what became of it: every request that was accepted is answered, once. Pure bookkeeping.

Outcomes: `done`; `overtaken` by a newer request or a plan; `given_up`, since the executors cannot be had; `refused`;
`failed`, since no checkpoint could be written; `ended`, the job did so first. Who may ask, and how a job is scaled or
stopped, is not decided here (`runtime.membership.desk`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from isoscale.protocol.status import Outcome, RequestStatus, Sort
from isoscale.runtime.membership.instructions import Emit, Instruction

__all__ = ["Request", "Requests", "Standing"]

#: answers that are still shown to whoever waits for one
_MAX_SHOWN = 64


#: of these the newest counts
_OVERTAKES: dict[Sort, tuple[Sort, ...]] = {"scale": ("scale",), "grant": ("grant",), "pause": ("grant", "pause")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    id: int
    request: Sort
    #: a device set; "" where others than these are not asked for
    target: str = ""
    #: executors that shall go
    away: tuple[int, ...] = ()
    reason: str = "asked"
    #: the batch size that is asked for, alone or with devices
    batch: int | None = None
    #: committed steps when it was accepted, and when that was
    step: int = 0
    since: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The executors of a job, as far as requests are concerned."""

    members: tuple[int, ...]
    #: of the members, sorted
    kinds: tuple[str, ...]
    #: the present generation has sealed a step, and no change is under way
    settled: bool
    #: the devices that are asked for, and why the last ones that were are not any more
    target: str
    refused: str = ""
    #: sorted kinds of those that are worked for: all but those of executors that are set aside
    wanted: tuple[str, ...]
    set_aside: tuple[int, ...] = ()
    #: nothing runs on devices that were taken away
    lets_go: bool = True

    @property
    def is_reached(self) -> bool:
        return self.settled and self.kinds == self.wanted

    def __str__(self) -> str:
        without = f" without executor {', '.join(map(str, self.set_aside))} (slow: set aside)" if self.set_aside else ""
        return f"training on {self.target}{without}"


@dataclass(slots=True)
class Requests:
    #: the highest id that was ever given
    last: int = 0
    _open: dict[int, Request] = field(default_factory=dict)
    #: of those that ask for devices and a batch size: whose batch size needs no more
    _rebatched: set[int] = field(default_factory=set)
    _answered: deque[RequestStatus] = field(default_factory=lambda: deque(maxlen=_MAX_SHOWN))

    def accept(
        self,
        sort: Sort,
        *,
        target: str = "",
        away: tuple[int, ...] = (),
        reason: str,
        step: int,
        now: float,
        batch: int | None = None,
    ) -> tuple[Request, list[Instruction]]:
        """A new one. Of those that ask for devices the newest counts, and of those that ask for a batch size."""
        self.last += 1
        one = Request(
            id=self.last, request=sort, target=target, away=away, reason=reason, step=step, since=now, batch=batch
        )
        fields = {"id": one.id, "request": sort, "target": target, "away": list(away), "reason": reason}
        fields |= {} if batch is None else {"batch": batch}
        instructions: list[Instruction] = [Emit("request", fields)]
        if batch is not None:
            self._rebatched |= {older.id for older in self.open_of("scale", "migrate", "grant")}
            for older in self.open_of("batch"):
                instructions += self.answer(older.id, "overtaken", f"by request {one.id}: batch size {batch}")
        for older in self.open_of(*_OVERTAKES.get(sort, ())):
            instructions += self.answer(older.id, "overtaken", f"by request {one.id}: {target or sort}")
        self._open[one.id] = one
        return one, instructions

    def adopt(self, events: Iterable[Mapping[str, Any]], now: float) -> None:
        """Those that an earlier coordinator had not answered, as it has written them down."""
        for event in events:
            self._open[event["id"]] = Request(
                id=event["id"],
                request=event["request"],
                target=event["target"],
                away=tuple(event["away"]),
                reason=event["reason"],
                batch=event.get("batch"),
                since=now,
            )
            self.last = max(self.last, event["id"])

    def answer(self, request: int, outcome: Outcome, detail: str) -> list[Instruction]:
        """Nothing happens if it has been answered."""
        one = self._open.pop(request, None)
        if one is None:
            return []
        self._answered.append({"id": one.id, "request": one.request, "outcome": outcome, "detail": detail})
        return [Emit("answered", {"id": one.id, "outcome": outcome, "detail": detail})]

    def answer_all(self, outcome: Outcome, detail: str, *sorts: Sort) -> list[Instruction]:
        """All that are open; of these sorts, where some are named."""
        chosen = self.open_of(*sorts) if sorts else list(self._open.values())
        return [instruction for one in chosen for instruction in self.answer(one.id, outcome, detail)]

    def open_of(self, *sorts: Sort) -> list[Request]:
        return [one for one in self._open.values() if one.request in sorts]

    def on_standing(self, standing: Standing) -> list[Instruction]:
        """Which of those that ask for devices are fulfilled, or will not be."""
        instructions: list[Instruction] = []
        for one in self.open_of("scale", "migrate", "grant"):
            if one.request == "grant" and not standing.lets_go:
                continue
            if standing.refused:
                instructions += self.answer(one.id, "given_up", standing.refused)
            elif one.target and one.target != standing.target:
                instructions += self.answer(one.id, "overtaken", f"by a plan or another coordinator: {standing.target}")
            elif standing.is_reached and not set(one.away) & set(standing.members) and not self._awaits_batch(one):
                instructions += self.answer(one.id, "done", str(standing))
        return instructions

    def wish(self) -> Request | None:
        """Which of those that are open asks for a batch size that the job does not have yet; the newest counts."""
        asked = [one for one in self._open.values() if self._awaits_batch(one)]
        return max(asked, key=lambda one: one.id, default=None)

    def _awaits_batch(self, one: Request) -> bool:
        return one.batch is not None and one.id not in self._rebatched

    def on_rebatched(self, request: int, step: int, size: int, error: str) -> list[Instruction]:
        """The batch size was changed for a request, or cannot be."""
        if error:
            return self.answer(request, "failed", f"the batch size stays what it is: {error}")
        self._rebatched.add(request)
        if (one := self._open.get(request)) is None or one.request != "batch":
            return []
        return self.answer(request, "done", f"batch size {size} from step {step + 1} on")

    def on_checkpoint(self, step: int, path: str) -> list[Instruction]:
        """One was published: it serves everybody who had asked by then."""
        asked = [one for one in self.open_of("checkpoint") if one.step <= step]
        return [instruction for one in asked for instruction in self.answer(one.id, "done", f"step {step}, {path}")]

    def shown(self, now: float) -> list[RequestStatus]:
        """For `status`: those that are open, then the last answers, newest last."""
        waiting: list[RequestStatus] = [
            {
                "id": one.id,
                "request": one.request,
                "target": one.target,
                "away": list(one.away),
                "reason": one.reason,
                "outcome": None,
                "open_s": round(now - one.since, 1),
            }
            for one in self._open.values()
        ]
        for shown in waiting:
            if (batch := self._open[shown["id"]].batch) is not None:
                shown["batch"] = batch
        return [*self._answered, *waiting]
