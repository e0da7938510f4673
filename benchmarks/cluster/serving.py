"""An inference server beside training on two devices: alone, with a static split, and lending what it does not need.

The server (`inference`, a process per device that it holds, each on its own core) answers a load that rises and falls
twice (`requests`, open loop, the same arrivals in every run), fixed at 60 % of its saturation on both devices at the
peak and 15 % between peaks. Alone it keeps both devices. Split: it has one, training the other. Lending: it begins with
one, and follows the load: when the requests of the last second would keep one device busy for more than 60 %, it
reclaims the other through `isoscale.cluster.Client` within 2 s; below 40 % it lends it again. Training is one endless
recipe under `isoscale serve --pin`. Runs alone and lending take turns, so that a machine that becomes slower does so
for both; runs alone against each other are the control.

Targets: every reclaim in time; p99 latency from the moment that a reclaim returned until the device is lent again
within 1.1x (plus the control's difference) of that of serving alone in the same seconds.

    python -m benchmarks.cluster.serving
"""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cluster import live
from benchmarks.cluster.inference import Server
from benchmarks.cluster.requests import Answer, Shape, drive, saturation
from benchmarks.cluster.served import steps_of
from benchmarks.cluster.workload import WORKERS, Job
from benchmarks.lib.measure import percentile, rounded
from benchmarks.lib.options import options as given_options
from benchmarks.lib.result import Row, save
from isoscale.cluster.client import Client
from isoscale.cluster.values import ENDED

RESULT, MINUTES = "serving", 11
STARTS = ("isoscale.cluster", "isoscale.runtime", "isoscale.backends", "isoscale.cli.coordinate", "isoscale.cli.serve")
HIGH, LOW, WITHIN_S, TARGET = 0.60, 0.15, 2.0, 1.1
ORDER = ("alone", "lending", "alone", "lending", "alone", "split")
#: shares of one device's saturation at which the second is fetched and given away
FETCH, GIVE = 0.60, 0.40
_NODE, _RECIPE, _BATCH = "local", "balanced_lstm", 16
_WATCH_S = 0.1


@dataclass
class Run:
    """What happened in one run; times are seconds since its load began."""

    answers: list[Answer] = field(default_factory=list)
    #: (from, until): serving had both devices, by a reclaim that had returned
    windows: list[tuple[float, float]] = field(default_factory=list)
    reclaims: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    busy_s: float = 0.0
    seconds: float = 0.0


def main() -> None:
    options = given_options(__doc__)
    shape_of = options.pick(
        smoke=lambda s: Shape(LOW * s, HIGH * s, calm_s=2, ramp_s=1, peak_s=3, peaks=1),
        quick=lambda s: Shape(LOW * s, HIGH * s, calm_s=8, ramp_s=3, peak_s=10, peaks=1),
        full=lambda s: Shape(LOW * s, HIGH * s),
    )
    cores = sorted(os.sched_getaffinity(0))[:2]
    order = options.pick(smoke=("alone", "lending", "split"), quick=("alone", "lending", "alone"), full=ORDER)
    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(2)]
        for server, core in zip(servers, [*cores, *cores], strict=False):
            server.run_on(core)
        saturated = asyncio.run(saturation(servers, options.pick(smoke=1.0, quick=4.0, full=6.0)))
        shape = shape_of(saturated)
        print(
            f"saturation on both devices: {saturated:.1f} requests/s; load {shape.low:.1f} to {shape.high:.1f}",
            flush=True,
        )
        arrivals = shape.arrivals()
        packed = live.bundles([_RECIPE, "neumf"])
        runs = []
        for name in order:
            run = _alone(servers, arrivals) if name == "alone" else _beside(name, servers, arrivals, packed, saturated)
            runs.append(run)
            _show(_row(name, run))
    alone = [run for name, run in zip(order, runs, strict=True) if name == "alone"]
    lending = [run for name, run in zip(order, runs, strict=True) if name == "lending"]
    summary = _compare(alone, lending)
    print(
        f"p99 after reclaims {summary['p99_s'] * 1e3:.1f} ms, alone in the same seconds "
        f"{summary['p99_alone_s'] * 1e3:.1f} ms: {summary['ratio']:.2f}x, control +- {summary['control']:.2f}",
        flush=True,
    )
    save(
        RESULT,
        [_row(name, run) for name, run in zip(order, runs, strict=True)],
        options,
        saturation=rounded(saturated),
        shape=asdict(shape),
        target=TARGET,
        summary=summary,
        seconds_of={name: _by_second(run) for name, run in zip(order, runs, strict=True)},
    )


def _beside(
    name: str, servers: Sequence[Server], arrivals: Sequence[float], packed: live.Bundles, saturated: float
) -> Run:
    """One run beside training, under a service of its own: what it leaves is gone before serving is alone again."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    with (
        tempfile.TemporaryDirectory(prefix="isc-") as folder,
        live.served(Path(folder) / "c", "easyscale", packed) as (service, client),
    ):
        # The first device that is reclaimed is serving's own: its server runs on that core from now on.
        mine = client.reclaim(_NODE, 1)
        servers[0].run_on(_core(mine.devices[0], cores))
        job = live.submit(client, packed, Job("training", _RECIPE, 0.0, 10**7, 2))
        directory = service.directory(job)
        _until_steps(directory, 10)
        before = len(steps_of(directory))
        run = asyncio.run(_share(servers, arrivals, client, saturated / 2, cores, name == "lending"))
        run.steps = len(steps_of(directory)) - before
        client.cancel(job)
        live.until(lambda: client.job(job).state in ENDED)
    for server, core in zip(servers, [*cores, *cores], strict=False):
        server.run_on(core)
    return run


def _core(device: str, cores: Sequence[int]) -> int:
    return cores[int(device.rpartition("/")[2])]


def _alone(servers: Sequence[Server], arrivals: Sequence[float]) -> Run:
    async def run() -> Run:
        with _Meter() as meter:
            answers = await drive(arrivals, lambda: servers)
        return Run(answers, busy_s=meter.busy_s, seconds=meter.seconds)

    return asyncio.run(run())


async def _share(
    servers: Sequence[Server],
    arrivals: Sequence[float],
    client: Client,
    one_device: float,
    cores: Sequence[int],
    lends: bool,
) -> Run:
    """One server, and the second while serving holds both devices."""
    active = [servers[0]]
    run = Run()
    with _Meter() as meter:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        driving = asyncio.create_task(drive(arrivals, lambda: active))
        following = asyncio.create_task(_follow(run, servers, active, arrivals, client, one_device, cores, begun))
        if not lends:
            following.cancel()
        run.answers = await driving
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    if len(active) == 2:
        run.windows[-1] = (run.windows[-1][0], meter.seconds)
        await asyncio.to_thread(client.lend, _NODE, 1)
    run.busy_s, run.seconds = meter.busy_s, meter.seconds
    return run


async def _follow(
    run: Run,
    servers: Sequence[Server],
    active: list[Server],
    arrivals: Sequence[float],
    client: Client,
    one_device: float,
    cores: Sequence[int],
    begun: float,
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_WATCH_S)
        now = loop.time() - begun
        rate = sum(now - 1.0 <= due < now for due in arrivals)
        if len(active) == 1 and rate > FETCH * one_device:
            done = await asyncio.to_thread(client.reclaim, _NODE, 1, WITHIN_S)
            servers[1].run_on(_core(done.devices[0], cores))
            active.append(servers[1])
            at = loop.time() - begun
            run.windows.append((at, at))
            run.reclaims.append(
                {"at_s": round(now, 2), "seconds": done.seconds, "abandoned_s": done.abandoned_s, "late": done.late}
            )
        elif len(active) == 2 and rate < GIVE * one_device:
            active.remove(servers[1])
            run.windows[-1] = (run.windows[-1][0], now)
            while servers[1].outstanding:
                await asyncio.sleep(0.01)
            shown = await asyncio.to_thread(client.lend, _NODE, 1)
            # The service chooses which of the two it takes: serving goes on on the other one.
            kept = next(device.id for device in shown.devices if device.state == "away")
            servers[0].run_on(_core(kept, cores))


class _Meter:
    """Seconds that all cores were busy, but for this process, which only asks."""

    def __enter__(self) -> _Meter:
        self._begun, self._busy, self._own = time.monotonic(), _machine_s(), _own_s()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.monotonic() - self._begun
        self.busy_s = _machine_s() - self._busy - (_own_s() - self._own)


def _machine_s() -> float:
    """User, nice and system time of all cores."""
    first = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(map(int, first[1:4])) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _until_steps(directory: Path, steps: int) -> None:
    deadline = time.monotonic() + 120
    while not (directory / "events.jsonl").exists() or len(steps_of(directory)) < steps:
        if time.monotonic() > deadline:
            raise live.JobFailedError("it does not train")
        time.sleep(0.1)


def _row(name: str, run: Run) -> Row:
    return {
        "run": name,
        "requests": len(run.answers),
        "lost": sum(answer.latency_s == float("inf") for answer in run.answers),
        "p50_s": _latency(run.answers, 50),
        "p99_s": _latency(run.answers, 99),
        "utilisation": rounded(run.busy_s / (2 * run.seconds)),
        "seconds": rounded(run.seconds),
        "steps": run.steps,
        "samples": run.steps * WORKERS * _BATCH,
        "reclaims": run.reclaims,
        "windows": [list(map(rounded, window)) for window in run.windows],
    }


def _compare(alone: Sequence[Run], lending: Sequence[Run]) -> Row:
    """Answers while serving held both devices by a reclaim, against those of serving alone in the same seconds."""
    after = [answer for run in lending for answer in _within(run.answers, run.windows)]
    windows = [window for run in lending for window in run.windows]
    by_run = [_latency(_within(run.answers, windows), 99) for run in alone]
    of_alone = _latency([answer for run in alone for answer in _within(run.answers, windows)], 99)
    return {
        "requests": len(after),
        "p50_s": _latency(after, 50),
        "p99_s": _latency(after, 99),
        "p50_alone_s": _latency([answer for run in alone for answer in _within(run.answers, windows)], 50),
        "p99_alone_s": of_alone,
        "ratio": rounded(_latency(after, 99) / of_alone),
        "control": rounded(max(abs(one / of_alone - 1) for one in by_run)),
    }


def _by_second(run: Run) -> list[list[float]]:
    """[second, requests, p50, p99] of every second in which requests were due."""
    seconds: dict[int, list[Answer]] = {}
    for answer in run.answers:
        seconds.setdefault(int(answer.due_s), []).append(answer)
    return [[at, len(due), _latency(due, 50), _latency(due, 99)] for at, due in sorted(seconds.items())]


def _within(answers: Sequence[Answer], windows: Sequence[tuple[float, float]]) -> list[Answer]:
    return [answer for answer in answers if any(begin <= answer.due_s < end for begin, end in windows)]


def _latency(answers: Sequence[Answer], percent: float) -> float:
    return float(rounded(percentile([answer.latency_s for answer in answers], percent)) or 0.0) if answers else 1e-9


def _show(row: Row) -> None:
    times = ", ".join(
        f"{one['seconds']:.2f} s ({one['abandoned_s']:.2f} s of work given up)" for one in row["reclaims"]
    )
    print(
        f"{row['run']:8} p50 {row['p50_s'] * 1e3:6.1f} ms, p99 {row['p99_s'] * 1e3:7.1f} ms; busy "
        f"{row['utilisation']:.3f}; "
        f"{row['samples']} samples trained{f'; reclaimed in {times}' if times else ''}",
        flush=True,
    )


if __name__ == "__main__":
    main()
