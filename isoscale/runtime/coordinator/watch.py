"""Which executors are to be ended, as the coordinator sees them, and their end.

Puts together what it hears (connections), what the system says of its own processes, and the rules on silence
(`runtime.coordinator.liveness`). What a loss means for the job is `runtime.membership`'s affair.
"""

from __future__ import annotations

from collections.abc import Mapping

from isoscale.protocol import messages as m
from isoscale.runtime.control.server import ControlServer
from isoscale.runtime.coordinator.journal import Journal
from isoscale.runtime.coordinator.liveness import KillReason, Liveness
from isoscale.runtime.coordinator.processes import Processes
from isoscale.runtime.membership.roster import Roster

__all__ = ["Watch"]


class Watch:
    def __init__(self, server: ControlServer, processes: Processes, liveness: Liveness, journal: Journal) -> None:
        self._server = server
        self._processes = processes
        self._liveness = liveness
        self._journal = journal

    def judge(
        self, now: float, roster: Roster, hellos: Mapping[int, m.Hello]
    ) -> tuple[str, list[tuple[int, KillReason]]]:
        """Who is to be ended, of those who have not been; and a warning, or ""."""
        known = {e for e in (*self._processes, *hellos) if not self._processes.is_condemned(e)}
        silences = {e: s for e in known if (s := self._server.silent_for(e, now)) is not None}
        warning = self._liveness.listen(silences, roster.holders(), now, known - set(hellos))
        return warning, self._liveness.judge(silences, roster, set(self._processes), self._processes.is_stopped)

    def end(self, executor: int, verdict: KillReason, hello: m.Hello | None) -> bool:
        """End an executor for a reason. False if its process is elsewhere: then it is only told, and counts as gone."""
        local = executor in self._processes
        if local and self._processes.is_condemned(executor):
            return True
        self._journal.write(
            "executor_killed",
            executor=executor,
            pid=self._processes.pid_of(executor) if local else hello.pid if hello is not None else 0,
            reason=verdict.reason,
            silent_s=None if verdict.silent_s is None else round(verdict.silent_s, 3),
            limit_s=verdict.limit_s,
        )
        if local:
            self._processes.kill(executor, verdict.reason)
        else:
            self._server.drop(executor)
        return local
