"""How long an executor may be silent, or keep the others waiting, before it counts as lost. Rules on times.

One that is silent while others are heard is at fault. If all who hold the job's state fall silent together, it is
rather their machine (memory, a network that is gone) or something that the script does everywhere at once: they train
on, or will, and what they hold exists nowhere else. So they have patience, and after that one of them is given up at a
time: the others may get what it had, and none is ended only because nobody is heard. Then not all come back at once:
TCP tries again after as long as it has already waited. Times are the coordinator's own
(`runtime.coordinator.own_time`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field
from functools import partial

from isoscale.protocol import messages as m
from isoscale.runtime.membership.roster import Roster
from isoscale.types import Settings

__all__ = ["KillReason", "Liveness"]

#: one that is not set up yet runs kernels to show what it computes with, many at a time on a busy machine, and nobody
#: waits for it
_SETTING_UP_S = 60.0


@dataclass(frozen=True, slots=True)
class KillReason:
    """Why an executor is ended; for silence, how long it has been silent and may have been."""

    reason: str
    silent_s: float | None = None
    limit_s: float | None = None


@dataclass(slots=True)
class Liveness:
    settings: Settings
    #: those whose silence together says nothing of each: who holds the job's state, or everybody as long as nobody does
    _crowd: Mapping[int, float] = field(default_factory=dict)
    _starting: Collection[int] = ()
    #: whether anybody at all is heard, holder or not
    _anybody: bool = True
    #: none of the crowd has been heard since
    _deaf_since: float | None = None
    #: and everybody has until then to be heard again
    _patient_until: float = 0.0
    #: of a crowd that was silent for too long, the one to begin with
    _given_up: int | None = None
    _said: bool = False

    def listen(
        self, silences: Mapping[int, float], holders: Collection[int], now: float, starting: Collection[int] = ()
    ) -> str:
        """Once a tick: how long each executor that ever was heard has been silent. A warning when there is one.

        `starting` are those that are not set up yet.
        """
        settled = {e: silent for e, silent in silences.items() if e not in starting}
        self._crowd = {e: silences[e] for e in holders if e in silences} or settled
        self._anybody = self._is_heard(silences)
        self._starting = starting
        self._given_up = None
        if not self._crowd or self._is_heard(self._crowd):
            if now > self._patient_until:
                self._deaf_since, self._said = None, False
            return ""
        if self._deaf_since is None:
            self._deaf_since = now - min(self._crowd.values())
        deaf_s = now - self._deaf_since
        self._patient_until = now + max(self.settings.lost_after_s, deaf_s)
        if deaf_s > self.settings.orphan_s:
            self._given_up = max(self._crowd, key=lambda e: (self._crowd[e], e))
            self._deaf_since = now
        if self._said or len(self._crowd) < 2 or deaf_s < self.settings.lost_after_s:
            return ""
        self._said = True
        return (
            f"none of {len(self._crowd)} executors has been heard for {deaf_s:.0f} s, so nobody is taken for dead: "
            f"is their machine out of memory, or out of reach? In {self.settings.orphan_s:.0f} s one is given up"
        )

    def _is_heard(self, silences: Mapping[int, float]) -> bool:
        """Somebody, lately: those who fell silent together are not told apart by when each of them last spoke."""
        lately = max(2 * self.settings.heartbeat_s, self.settings.lost_after_s / 2)
        return any(silent <= lately for silent in silences.values())

    def limit(self, executor: int, *, local: bool) -> float:
        """Seconds of silence that are too long. `local`: nothing is between it and the coordinator."""
        settings = self.settings
        if executor == self._given_up:
            return settings.lost_after_s
        if executor in self._starting:
            return max(settings.lost_after_s, _SETTING_UP_S)
        if executor in self._crowd:
            alone = local and len(self._crowd) == 1
            return settings.lost_after_s if self._deaf_since is None or alone else float("inf")
        return settings.lost_after_s if self._anybody else settings.orphan_s

    def away_limit(self, limit: float) -> float:
        """Seconds for which a connection may be closed; longer if all are, since it is rather what lies between."""
        together = self._deaf_since is not None or all(s > 2 * self.settings.heartbeat_s for s in self._crowd.values())
        return max(limit, self.settings.lost_after_s) if together and len(self._crowd) > 1 else limit

    def judge(
        self, silences: Mapping[int, float], roster: Roster, local: Set[int], is_stopped: Callable[[int], bool]
    ) -> list[tuple[int, KillReason]]:
        """Who is to be ended: a stopped or hung executor is dead for the others, and is made so.

        After `listen`. `local` are those whose processes can be asked about, by `is_stopped`.
        """
        waited_s, found = roster.waited_s(), []
        for executor, silent in silences.items():
            if executor in local:
                stopped = partial(is_stopped, executor)
                verdict = self.why_dead(executor, silent, roster.last_beat(executor), waited_s, stopped)
            else:
                verdict = self.too_silent(executor, silent, local=False)
            if verdict is not None:
                found.append((executor, verdict))
        return found

    def too_silent(self, executor: int, silent: float, *, local: bool) -> KillReason | None:
        limit = self.limit(executor, local=local)
        return KillReason(f"no heartbeat for {silent:.1f} s", silent, limit) if silent > limit else None

    def why_dead(
        self, executor: int, silent: float, beat: m.Beat | None, waited_s: float, is_stopped: Callable[[], bool]
    ) -> KillReason | None:
        """Why a process of this machine is to be killed; None if it is well.

        `beat` is a member's last one, `waited_s` how long another member has waited in the exchange, `is_stopped` asks
        the system.
        """
        together = len(self._crowd) > 1 and all(s > 2 * self.settings.heartbeat_s for s in self._crowd.values())
        limit = self.settings.lost_after_s if together else 2 * self.settings.heartbeat_s
        if silent > limit and is_stopped():
            return KillReason("stopped by a signal", silent, limit)
        if verdict := self.too_silent(executor, silent, local=True):
            return verdict
        if beat is not None and beat.place != "exchange":
            kept_s = min(beat.place_s, waited_s)
            if kept_s > self.settings.stalled_after_s:
                return KillReason(f"kept the others waiting for {kept_s:.0f} s")
        return None
