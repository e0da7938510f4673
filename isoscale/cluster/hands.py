"""Carries out what the driver says, by the threads of the jobs concerned. Decides nothing and waits for nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from isoscale.cluster import coordinator
from isoscale.cluster.bundle import Codes
from isoscale.cluster.live import Live
from isoscale.cluster.process import Executors, LocalExecutors
from isoscale.cluster.recording import Recorder
from isoscale.cluster.run import Post, Run
from isoscale.cluster.state_directory import job_directory
from isoscale.scheduling.driving import CancelRun, Instruction, KillRun, Launch, PauseRun, SendGrant

__all__ = ["Hands"]


class Hands:
    """Used by the engine's thread."""

    def __init__(
        self,
        state: Path,
        live: Mapping[str, Live],
        codes: Codes,
        recorder: Recorder,
        cores: Mapping[str, tuple[int, ...]],
        post: Post,
        now: Callable[[], float],
    ) -> None:
        """`post`: where a job's thread tells what it sees."""
        self._state, self._live, self._codes, self._recorder = state, live, codes, recorder
        self._cores, self._post, self._now = cores, post, now
        self._runs: dict[str, Run] = {}
        #: environment of coordinators
        self.variables: Mapping[str, str] = {}
        #: where their executors run, and how to find those
        self.settings = coordinator.SETTINGS
        #: where each has a storage of its own below this URL; "": none
        self.storage = ""
        self.executors: Executors = LocalExecutors()

    def perform(self, instruction: Instruction) -> None:
        """What is for a job; other instructions are none of its business."""
        match instruction:
            case Launch(job, attempt, grant):
                run, terms, record = self.run_of(job), self._terms(job), self._live[job].record
                run.launch(
                    attempt,
                    grant,
                    lambda grant: coordinator.prepare(run.directory, record, self._codes, grant, terms, self.variables),
                    lambda pid, born: self._recorder.started(job, attempt, pid, born, self._now()),
                )
            case SendGrant(job, grant):
                self.run_of(job).send(grant)
            case PauseRun(job, grant):
                self.run_of(job).pause(grant)
            case CancelRun(job, grant):
                self.run_of(job).cancel(grant)
            case KillRun(job, devices, is_coordinator):
                self.run_of(job).kill(devices, coordinator_too=is_coordinator)

    def run_of(self, job: str) -> Run:
        if job not in self._runs:
            directory, terms = job_directory(self._state, job), self._terms(job)
            self._runs[job] = Run(job, directory, self._post, self._now, terms, self.executors)
        return self._runs[job]

    def let_go(self, is_needed: Callable[[str], bool]) -> None:
        """Of jobs that are over."""
        for job in [job for job in self._runs if not is_needed(job)]:
            self._runs.pop(job).close()

    def close(self) -> None:
        """Jobs go on without the service."""
        for run in self._runs.values():
            run.close()
        for run in self._runs.values():
            run.join(6)

    def _terms(self, job: str) -> coordinator.Terms:
        workers = self._live[job].record.submission.workers if job in self._live else 1
        settings = replace(self.settings, storage=f"{self.storage}/{job}") if self.storage else self.settings
        return coordinator.Terms(workers=workers, cores=self._cores, settings=settings)
