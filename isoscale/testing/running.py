"""A job in processes of its own, as a test holds it: look at it, hurt it, wait for it.

Everything is read from the run's directory (events, process ids), so it works while the coordinator is dead.
A process is only ever signalled if it is the one that was started: pid and time of birth must agree.
Whatever is done to the job here is written into `RunningJob.record`, and at the end the log is held against it
(`isoscale.analysis.promises`): a story in which a promise was broken fails, whatever its digest.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from isoscale import env
from isoscale.analysis.promises import Deed, Record, Verdict, check
from isoscale.backends.system import born
from isoscale.errors import IsoscaleError
from isoscale.protocol.events import parse_events
from isoscale.protocol.files import open_regular
from isoscale.runtime.control.job_handle import JobHandle
from isoscale.runtime.executor.fault_points import FaultPoint
from isoscale.testing.looking import forks_of, handles, read_json, write_atomic
from isoscale.testing.nursery import ForkedChild, Nursery
from isoscale.testing.recording import RecordingHandle

__all__ = ["PATIENCE_S", "BrokenPromiseError", "JobEndedError", "RunningJob", "start"]

Found = TypeVar("Found")

#: SIGUSR1 makes a coordinator print where its threads are
_COMMAND = "import faulthandler, signal; faulthandler.register(signal.SIGUSR1); from isoscale.cli import main; main()"
_POLL_S = 0.01
#: how long anything is waited for that should come
PATIENCE_S = 240.0
_DEEDS = {signal.SIGKILL: "kill", signal.SIGSTOP: "stop", signal.SIGCONT: "continue", signal.SIGTERM: "notice"}


class JobEndedError(Exception):
    """Raised when something is waited for that cannot come any more."""


class BrokenPromiseError(AssertionError):
    """Raised at the end of a story in which the job did not keep what isoscale promises."""


def start(
    script: str | Path,
    *,
    out: str | Path,
    workers: int = 4,
    executors: int | None = 2,
    plan: str | None = None,
    spares: int = 0,
    lost_after_s: float = 10.0,
    checkpoint_every: int = 0,
    resume: bool = False,
    options: Sequence[str] = (),
    script_args: Sequence[str] = (),
    points: Sequence[FaultPoint] = (),
    edits: tuple[str, str] | None = None,
    record: Record | None = None,
    cwd: str | Path | None = None,
    nursery: Nursery | None = None,
) -> RunningJob:
    """`isoscale run SCRIPT` with these options.

    `points` are faults inside executors (`faults.at`); `edits` is a text of the script and what `RunningJob.edit` puts
    in its place. `record` is of an earlier life of the same run, for `resume`.
    """
    arguments = ["run", str(script), "--workers", str(workers), "--out", str(out), "--lost-after", str(lost_after_s)]
    if executors is not None and plan is None:
        arguments += ["--executors", str(executors)]
    arguments += ["--plan", plan] if plan is not None else []
    arguments += ["--spares", str(spares)] if spares else []
    arguments += ["--checkpoint-every", str(checkpoint_every)] if checkpoint_every else []
    arguments += ["--resume"] if resume else []
    arguments += [*options, *(["--", *script_args] if script_args else [])]
    job = RunningJob(Path(out), cwd=cwd, nursery=nursery)
    job.script, job.edits, job.record = Path(script), edits, record or job.record
    job.record.faulty |= {point.executor for point in points}
    job._launch(arguments, points)
    return job


class RunningJob:
    """Also a context manager: at its end nothing of the job is left running, and it has kept its promises."""

    def __init__(self, directory: Path, *, cwd: str | Path | None = None, nursery: Nursery | None = None) -> None:
        self.directory = directory
        self._cwd = Path(cwd or ".")
        self._nursery = nursery
        self._coordinator: subprocess.Popen[bytes] | ForkedChild | None = None
        #: what was read of the event log, up to where
        self._events: list[dict[str, Any]] = []
        self._read_to = 0
        #: pid and birth of every process that was seen
        self._seen: dict[int, int] = {}
        #: by which its control socket is known, where that has a certificate
        self.ca_file: Path | None = None
        #: all that was done to it here
        self.record = Record()
        #: what `edit` changes in which file, if anything
        self.script = Path()
        self.edits: tuple[str, str] | None = None
        #: promises that this story breaks on purpose, and why
        self._exempt: dict[str, str] = {}

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is None:
            self.check_promises()

    def close(self) -> None:
        """Kill whatever still runs."""
        if self._coordinator is not None and self._coordinator.poll() is None:
            self._coordinator.kill()
            self._coordinator.wait()
        self.pids()
        if self._nursery is not None:
            self._nursery.end_executors(self.directory / "control" / "token")
        for event in self.events("executor_started"):
            # Processes whose start the coordinator did not live to write down elsewhere.
            self._seen.setdefault(event["pid"], self._born_of_run(event["pid"]))
        for pid, birth in self._seen.items():
            if birth and born(pid) == birth:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    # ---- looking ----

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """What the event log says so far."""
        self._read_on(self.directory / "events.jsonl")
        return [event for event in self._events if name in (None, event["event"])]

    def _read_on(self, path: Path) -> None:
        """Whoever waits looks a hundred times a second: only at what is new, and at whole lines."""
        size = path.stat().st_size if path.exists() else 0
        if size < self._read_to:  # another one
            self._events, self._read_to = [], 0
        if size > self._read_to:
            with open_regular(path) as file:
                file.seek(self._read_to)
                new = file.read()
            new = new[: new.rfind(b"\n") + 1]
            self._read_to += len(new)
            self._events += parse_events(new.splitlines())

    def step(self) -> int:
        """Committed steps, as far as a coordinator was there to write them down."""
        return max((event["step"] for event in self.events("step")), default=0)

    def members(self) -> list[int]:
        """Executors of the present generation, in placement order."""
        generations = self.events("generation")
        return list(generations[-1]["members"]) if generations else []

    def pids(self) -> dict[int, int]:
        """Processes that are alive, by executor."""
        with contextlib.suppress(OSError, ValueError):
            known = json.loads((self.directory / "control" / "executors.json").read_text())
            alive = {int(e): one["pid"] for e, one in known.items() if one["born"] and born(one["pid"]) == one["born"]}
            self._seen |= {pid: born(pid) for pid in alive.values()}
            return alive
        return {}

    def losses(self) -> dict[int, float]:
        """By step; a step that was written down twice must have the same loss both times."""
        losses: dict[int, float] = {}
        for event in self.events("step"):
            assert losses.setdefault(event["step"], event["loss"]) == event["loss"], f"step {event['step']} differs"
        return losses

    def digest(self) -> str:
        """Of the result. Raises JobEndedError if there is none."""
        finished = self.events("finished")
        if not finished:
            raise JobEndedError(f"no result in {self.directory}:\n{self.output()}")
        return str(finished[-1]["digest"])

    def output(self) -> str:
        """What coordinators have printed."""
        path = self._log
        return path.read_text(errors="replace") if path.exists() else ""

    def handle(self) -> JobHandle:
        return RecordingHandle(self.directory, self.record.asked, self.ca_file)

    # ---- promises ----

    def promises(self) -> Verdict:
        """What became of them so far, by the log and by what was done here."""
        settings = read_json(self.directory / "control" / "job.json").get("settings")
        summary = read_json(self.directory / "summary.json")
        return check(self.events(), record=self.record, settings=settings, summary=summary)

    def exempt(self, promise: str, because: str) -> None:
        """This story breaks that one on purpose."""
        self._exempt[promise] = because

    def check_promises(self) -> None:
        """Raises BrokenPromiseError, with all that was found."""
        found = [finding for finding in self.promises().findings if finding.promise not in self._exempt]
        if found:
            raise BrokenPromiseError("\n".join([f"{self.directory} broke its promises:", *map(str, found)]))

    # ---- waiting ----

    def wait_for(self, condition: Callable[[], Found | None], what: str, timeout_s: float = PATIENCE_S) -> Found:
        """Until `condition` gives something true. Raises JobEndedError or TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self.has_ended
            found = condition()
            if found:
                return found
            if ended:
                raise JobEndedError(f"{what}: did not come before the end\n{self.output()}")
            if time.monotonic() > deadline:
                self.show_threads()
                raise TimeoutError(f"{what}: not within {timeout_s} s\n{self.output()}")
            time.sleep(_POLL_S)

    def wait_step(self, step: int, timeout_s: float = PATIENCE_S) -> int:
        """Until so many steps are committed; how many there are."""
        return self.wait_for(lambda: at if (at := self.step()) >= step else None, f"step {step}", timeout_s)

    def wait_members(self, count: int, timeout_s: float = PATIENCE_S) -> list[int]:
        """Until the job trains on so many executors."""

        def there() -> list[int] | None:
            members = self.members()
            return members if len(members) == count else None

        return self.wait_for(there, f"{count} executors", timeout_s)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Until the coordinator ends; its exit code. Raises TimeoutError."""
        assert self._coordinator is not None
        try:
            return self._coordinator.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.show_threads()
            raise TimeoutError(f"not done within {timeout_s} s, at step {self.step()}\n{self.output()}") from None

    def show_threads(self) -> None:
        """Where everybody is, into the logs, for scripts that registered SIGUSR1 with faulthandler."""
        for pid in [*self.pids().values(), *([self._coordinator.pid] if self._coordinator is not None else [])]:
            with contextlib.suppress(OSError):
                if handles(pid, signal.SIGUSR1):
                    os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)

    # ---- doing ----

    def did(self, what: str, executor: int | None = None, pid: int | None = None, seconds: float = 0.0) -> None:
        """Write a deed down; before it is done, so that nothing it causes can come first."""
        self.record.deeds.append(Deed(t=time.time(), what=what, executor=executor, pid=pid, seconds=seconds))

    def signal(self, executor: int, number: int, *, record: bool = True) -> bool:
        """False if that executor is gone already."""
        pid = self.pids().get(executor)
        if pid is None:
            return False
        if record:
            self.did(_DEEDS.get(signal.Signals(number), "signal"), executor, pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    def kill(self, executor: int) -> bool:
        return self.signal(executor, signal.SIGKILL)

    def kill_loaders(self, executor: int) -> bool:
        """The loader processes of an executor, with SIGKILL. False if it has none at the moment."""
        pid, killed = self.pids().get(executor), 0
        self.did("kill_loaders", executor, pid)
        for child in forks_of(pid) if pid is not None else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
                killed += 1
        return killed > 0

    def stop(self, executor: int) -> bool:
        """It neither runs nor ends: SIGSTOP."""
        return self.signal(executor, signal.SIGSTOP)

    def notice(self, executor: int) -> bool:
        """What a spot instance gets before it is taken away: SIGTERM."""
        return self.signal(executor, signal.SIGTERM)

    def kill_coordinator(self) -> None:
        assert self._coordinator is not None
        self.pids()
        self.did("kill_coordinator")
        self._coordinator.kill()
        self._coordinator.wait()

    def signal_coordinator(self, number: int) -> None:
        """SIGINT is Ctrl-C, SIGTERM what batch systems send; SIGSTOP and SIGCONT suspend it."""
        assert self._coordinator is not None
        names = {signal.SIGSTOP: "stop_coordinator", signal.SIGCONT: "continue_coordinator"}
        self.did(names.get(signal.Signals(number), "interrupt"))
        if self._coordinator.poll() is None:
            os.kill(self._coordinator.pid, number)

    def stop_coordinator(self) -> None:
        """It neither runs nor ends until `continue_coordinator`."""
        self.signal_coordinator(signal.SIGSTOP)

    def continue_coordinator(self) -> None:
        self.signal_coordinator(signal.SIGCONT)

    @property
    def was_stopped(self) -> bool:
        """The job has ended on request, or because all its executors were told to go, and can be resumed."""
        ends = [event["event"] for event in self.events() if event["event"] in ("finished", "stopped", "failed")]
        return self.has_ended and ends[-1:] == ["stopped"]

    @property
    def has_ended(self) -> bool:
        """There is no coordinator (any more)."""
        return self._coordinator is None or self._coordinator.poll() is not None

    def kill_all(self) -> None:
        """Coordinator first, so that nobody is replaced."""
        self.kill_coordinator()
        for executor in self.pids():
            self.kill(executor)
        deadline = time.monotonic() + PATIENCE_S
        while self.pids() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def resume(self, *options: str) -> None:
        """Another coordinator: `isoscale resume DIR`."""
        self.did("resume")
        self._launch(["resume", str(self.directory), *options], ())

    def hurry(self) -> None:
        """For `short_job`: do the rest as fast as you can."""
        # Not as soon as there is a directory: `isoscale run` wants to find it empty.
        self.wait_for((self.directory / "events.jsonl").exists, "the run's directory")
        (self.directory / "hurry").touch()

    def flood(self, lines: int) -> None:
        """For `short_job`: print so many lines, now, on every executor."""
        self.did("flood", seconds=30.0)
        write_atomic(self.directory / "flood", f"{time.time()} {lines}")

    def make_slow(self, executor: int, factor: float) -> None:
        """For `short_job`: turns of this executor take so many times as long from now on, those of others do not."""
        self.did("slow", executor, seconds=PATIENCE_S)
        write_atomic(self.directory / "slow", f"{executor} {factor}")

    def edit(self) -> bool:
        """Change the script while the job runs, as `start` was told. False if it does not say how, or did so before."""
        if self.edits is None:
            return False
        (old, new), self.edits = self.edits, None
        text = self.script.read_text()
        assert old in text, f"{self.script} has no {old!r}"
        self.did("edit")
        write_atomic(self.script, text.replace(old, new))
        return True

    def scale(self, target: int | str) -> dict[str, Any]:
        """Raises IsoscaleError if nobody is there to ask, or the answer is no."""
        with self.handle() as handle:
            return handle.scale_to(target)

    def try_scale(self, target: int | str) -> bool:
        return self.try_to(lambda handle: handle.scale_to(target))

    def try_to(self, ask: Callable[[JobHandle], object]) -> bool:
        """Ask something of the job. False if nobody is there, or the answer is no."""
        with contextlib.suppress(IsoscaleError, TimeoutError), self.handle() as handle:
            ask(handle)
            return True
        return False

    def demand(self, target: str) -> bool:
        """Ask for what no job can do. True if the answer is no, and nothing else."""
        begun = time.time()
        with contextlib.suppress(IsoscaleError, TimeoutError), self.handle() as handle:
            assert isinstance(handle, RecordingHandle)
            handle.absurd = True
            handle.scale_to(target)
        mine = [asked for asked in self.record.asked if asked.absurd and asked.t >= begun]
        return bool(mine) and mine[-1].ok is False

    # ---- parts ----

    @property
    def _log(self) -> Path:
        return self.directory.with_name(f"{self.directory.name}.coordinator.log")

    def _launch(self, arguments: Sequence[str], points: Sequence[FaultPoint]) -> None:
        variables = {env.FAULT: ";".join(map(str, points))} if points else {}
        if (shared := env.warm_directory()) is not None:
            variables[env.WARM_DIRECTORY] = str(shared)
        environment = env.child_environment({"COLUMNS": "200", **variables})
        self._log.parent.mkdir(parents=True, exist_ok=True)
        if self._nursery is not None:
            self._coordinator = self._nursery.start_coordinator(arguments, environment, self._log, self._cwd)
            return
        with self._log.open("ab") as log:
            self._coordinator = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, *arguments],
                cwd=self._cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _born_of_run(self, pid: int) -> int:
        """The birth of a process if it belongs to this run, else 0."""
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            token = str((self.directory / "control" / "token").resolve())
            if f"{env.TOKEN_FILE}={token}".encode() in variables:
                return born(pid)
        return 0
