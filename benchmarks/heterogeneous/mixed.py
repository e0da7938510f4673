"""One cpu-avx2 and one cpu-sse executor in one job at `heterogeneous`, over the sum of both kinds alone at `elastic`.

Two logical workers. Alone, an executor hosts both, at its kind's own best; together, each hosts one, both at the
common profile, so the bits are those of any other set of these kinds. The ratio is of turns per second:

    ratio = (2 / t_pair) / (2 / t_avx2 + 2 / t_sse)

with t_avx2 and t_sse measured while nothing else of ours runs. `ratio_at_once` has both kinds train separate jobs at
the same time instead, on as many cores as the pair has: what cores lose by sharing caches, memory and clock (or a
machine with other load) is then on both sides. If r is the speed of the common profile over cpu-avx2's best, and the
exchange of gradients were free, the ratio would be 2 r / (1 + r): a target T needs r >= T / (2 - T).

Also what `elastic` costs over `off` on cpu-avx2. Every configuration is a set of processes that lives through the whole
measurement and waits while others run; blocks of steps come in random order. The first step after a wait is not timed.

    python -m benchmarks.heterogeneous.mixed
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lib.measure import Ratio, percentile, ratio_of
from benchmarks.lib.models import TINY
from benchmarks.lib.options import parsed, parser
from benchmarks.lib.processes import run_module
from benchmarks.lib.result import save
from isoscale.kinds import common_profile, executor_environment, profile_named, profile_of
from isoscale.types import Level, Placement

RESULT, MINUTES = "heterogeneous", 7
WORKERS = 2
KINDS = ("cpu-avx2", "cpu-sse")
#: by workload: the share of both kinds' own throughput that a mixed job should keep
TARGETS = {"convnet 6.5 MB": 0.5, "transformer 26 MB": 0.8}
SMOKE = {"tiny": 0.0}
STEPS, BLOCKS = 5, 5


@dataclass(frozen=True)
class Configuration:
    """Processes that train together: level, and the profile of each."""

    name: str
    level: Level
    profiles: tuple[str, ...]


def configurations() -> list[Configuration]:
    fast, slow = (profile_of(kind).name for kind in KINDS)
    common = common_profile(KINDS).name
    return [
        Configuration("a", "elastic", (fast,)),
        Configuration("slow", "elastic", (slow,)),
        Configuration("pair", "heterogeneous", (common, common)),
        Configuration("off", "off", (fast,)),
    ]


# ---- one process ----


def worker(workload: int, level: Level, profile: str, index: int, members: int, store: str) -> None:
    """Serves commands from standard input, one a line: `run STEPS`, `run_ms MILLISECONDS`, `digest`, `gemm`."""
    import torch

    from benchmarks.lib import models
    from isoscale.core.numerics import determinism

    determinism.apply(level, 1, profile)
    load = models.workload(workload)
    step, loop = executor_side(load, index, members, store)
    commands: dict[str, Callable[[int], Any]] = {
        "run": lambda count: [timed(step) for _ in range(count)],
        "run_ms": lambda milliseconds: list(timed_for(step, milliseconds / 1e3)),
        "digest": lambda _: loop.state.digest(),
        "gemm": lambda _: gemm_gflops(torch),
    }
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        name, _, count = line.partition(" ")
        print(json.dumps(commands[name.strip()](int(count or 0))), flush=True)


def executor_side(load: Any, index: int, members: int, store: str) -> tuple[Callable[[], None], Any]:
    import torch

    from benchmarks.lib.sides import Quiet, endless
    from isoscale.core.reduction.exchange import LocalExchange
    from isoscale.runtime.training.guards import guarded
    from isoscale.runtime.training.job import Job
    from isoscale.runtime.training.loop import TrainingLoop
    from isoscale.runtime.transport.gloo import connect
    from isoscale.types import JobSpec

    torch.manual_seed(0)
    exchange = connect(store, Placement.even(WORKERS, members), index) if members > 1 else LocalExchange(WORKERS)
    loop = TrainingLoop(JobSpec(workers=WORKERS), exchange, Quiet())
    job = Job(loop)
    model = job.model(load.make())
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    loader = job.loader(load.data, batch_size=load.batch, shuffle=True)
    steps = endless(lambda: loader)

    def step() -> None:
        with guarded(loop.engine):
            for x, y in next(steps):
                load.loss(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()

    return step, loop


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def timed_for(work: Callable[[], None], seconds: float) -> Iterator[float]:
    """For about so long, and at least twice."""
    end, done = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or done < 2:
        yield timed(work)
        done += 1


def gemm_gflops(torch: Any) -> float:
    """Billions of operations a second of a matrix product in the transformer's shape; the 10th percentile of times."""
    x, weight = torch.ones(256, 256), torch.ones(1024, 256)
    spent = percentile([timed(lambda: torch.nn.functional.linear(x, weight)) for _ in range(40)], 10)
    return round(2 * 256 * 256 * 1024 / spent / 1e9, 1)


# ---- all processes ----


class Members:
    """The processes of a configuration."""

    def __init__(self, workload: int, configuration: Configuration, store: Path) -> None:
        count = len(configuration.profiles)
        self._processes = []
        for index, profile in enumerate(configuration.profiles):
            arguments = [str(workload), configuration.level, profile, str(index), str(count), str(store)]
            environment = executor_environment({**os.environ, "GLOO_SOCKET_IFNAME": "lo"}, profile_named(profile), 1)
            process = subprocess.Popen(
                run_module(__spec__.name, "--worker", *arguments),
                env=environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._processes.append(process)

    def wait_ready(self) -> None:
        assert self.answers() == ["ready"] * len(self._processes)

    def send(self, command: str) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(command + "\n")
            process.stdin.flush()

    def answers(self) -> list[Any]:
        found = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"a worker ended with exit code {process.wait()}"
            found.append(json.loads(line))
        return found

    def ask(self, command: str) -> list[Any]:
        """The answers of all, which work at the same time."""
        self.send(command)
        return self.answers()

    def run(self, steps: int) -> list[float]:
        """Step times as the slower of all members saw them."""
        return [max(times) for times in zip(*self.ask(f"run {steps}"), strict=True)]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@contextmanager
def started(workload: int) -> Iterator[dict[str, Members]]:
    with tempfile.TemporaryDirectory() as directory:
        found: dict[str, Members] = {}
        try:
            for configuration in configurations():
                found[configuration.name] = Members(workload, configuration, Path(directory) / configuration.name)
            for members in found.values():
                members.wait_ready()
            yield found
        finally:
            for members in found.values():
                members.end()


def interleaved(members: dict[str, Members], rounds: int) -> dict[str, list[list[float]]]:
    """Blocks in random order; `control` is `a` once more. Rounds are dealt out to a few groups for the control."""
    order, groups = random.Random(1), min(BLOCKS, rounds)
    for one in members.values():
        one.run(3)
    block_s = sum(members["slow"].run(STEPS))
    blocks: dict[str, Callable[[], dict[str, list[float]]]] = {
        name: lambda name=name, one=one: {name: one.run(STEPS + 1)[1:]}  # type: ignore[misc]
        for name, one in {**members, "control": members["a"]}.items()
    }
    blocks["at once"] = lambda: at_once(members["a"], members["slow"], block_s)
    times: dict[str, list[list[float]]] = {}
    for number in range(rounds):
        for name in order.sample(list(blocks), len(blocks)):
            for what, spent in blocks[name]().items():
                times.setdefault(what, [[] for _ in range(groups)])[number % groups] += spent
    return times


def at_once(fast: Members, slow: Members, seconds: float) -> dict[str, list[float]]:
    """Two jobs that have nothing to do with each other, for the same time."""
    for one in (fast, slow):
        one.send(f"run_ms {round(seconds * 1e3)}")
    return {"a at once": fast.answers()[0][1:], "slow at once": slow.answers()[0][1:]}


# ---- results ----


def bits_are_equal(members: dict[str, Members]) -> bool:
    """After the same steps: the pair holds the bits of the slow kind alone, whose own profile is the common one."""
    for one in members.values():
        one.run(2)
    digests = {name: one.ask("digest") for name, one in members.items()}
    assert digests["a"][0] != digests["slow"][0], "the kinds do not differ"
    return set(digests["pair"]) == set(digests["slow"])


def mixed_row(name: str, times: dict[str, list[list[float]]], gemm: dict[str, float]) -> dict[str, Any]:
    low = {key: percentile([t for block in blocks for t in block], 10) for key, blocks in times.items()}
    control = ratio_of({"a": times["a"], "control": times["control"], "b": times["pair"]})
    ratio = (1 / low["pair"]) / (1 / low["a"] + 1 / low["slow"])
    ratio_at_once = (1 / low["pair"]) / (1 / low["a at once"] + 1 / low["slow at once"])
    target, speed = (TARGETS | SMOKE)[name], low["a"] / low["slow"]
    meets = ratio - control.half_width >= target
    row: dict[str, Any] = {
        "what": "mixed",
        "model": name,
        "ratio": round(ratio, 4),
        "target": target,
        "meets": meets,
        "control": control.control,
        "half_width": control.half_width,
        "steps": control.pairs,
        "ratio_at_once": round(ratio_at_once, 4),
        "common_over_avx2": round(speed, 4),
        "common_over_avx2_needed": round(target / (2 - target), 4),
        "ratio_if_exchange_were_free": round(2 * speed / (1 + speed), 4),
        "ms": {key: round(value * 1e3, 2) for key, value in low.items()},
        "gemm_gflops": gemm,
    }
    if not meets:
        row["why"] = why(row)
    return row


def why(row: dict[str, Any]) -> str:
    """In words, from the numbers of this run only."""
    gemm, ms = row["gemm_gflops"], row["ms"]
    free, needed, speed = row["ratio_if_exchange_were_free"], row["common_over_avx2_needed"], row["common_over_avx2"]
    reasons = []
    if row["half_width"] > 0.1:
        reasons.append(f"measured under other load: the control strays by {row['half_width']}, so take nothing from it")
    if speed < needed:
        reasons.append(
            f"the target needs the common profile (SSE) at {needed:.2f} of cpu-avx2's speed, and it reaches "
            f"{speed:.2f}; its matrix products run at {gemm['sse'] / gemm['avx2']:.2f} of AVX2's "
            f"({gemm['sse']} and {gemm['avx2']} GFLOP/s)"
        )
    if row["ratio"] < 0.98 * free:
        reasons.append(
            f"the pair takes {ms['pair']} ms a step where half of cpu-sse's {ms['slow']} ms would do: exchange, "
            f"waiting and cores that share bring {free:.2f} down to {row['ratio']:.2f} "
            f"({row['ratio_at_once']:.2f} of both at once)"
        )
    if row["ratio"] >= row["target"]:
        reasons.append(f"the ratio itself meets it, but not by the control's half-width of {row['half_width']}")
    return "; ".join(reasons) or "within noise of the target"


def level_row(name: str, times: dict[str, list[list[float]]]) -> dict[str, Any]:
    """`elastic` over `off`; the control is `elastic` against itself."""
    found: Ratio = ratio_of({"a": times["a"], "control": times["control"], "b": times["off"]})
    return {
        "what": "elastic over off",
        "model": name,
        "ratio": round(1 / found.ratio, 4),
        "control": found.control,
        "half_width": found.half_width,
        "off_ms": found.b_ms,
        "elastic_ms": found.a_ms,
        "steps": found.pairs,
    }


def measured(workload: int, name: str, rounds: int) -> list[dict[str, Any]]:
    with started(workload) as members:
        equal = bits_are_equal(members)
        gemm = {"avx2": members["a"].ask("gemm")[0], "sse": members["slow"].ask("gemm")[0]}
        times = interleaved(members, rounds)
    mixed, level = mixed_row(name, times, gemm), level_row(name, times)
    mixed["equal_bits"] = equal
    ms = mixed["ms"]
    print(
        f"{name:18} pair {ms['pair']:.1f} ms  cpu-avx2 {ms['a']:.1f} ms  cpu-sse {ms['slow']:.1f} ms  "
        f"ratio {mixed['ratio']:.4f} ({mixed['ratio_at_once']:.4f} of both at once)  target {mixed['target']} "
        f"{'met' if mixed['meets'] else 'missed'}  control {mixed['control']:.4f} +- {mixed['half_width']:.4f}  "
        f"bits {'equal' if equal else 'DIFFER'}"
    )
    if "why" in mixed:
        print(f"{'':18} why: {mixed['why']}")
    print(
        f"{name:18} off {level['off_ms']:.1f} ms  elastic {level['elastic_ms']:.1f} ms  ratio {level['ratio']:.4f}  "
        f"control {level['control']:.4f} +- {level['half_width']:.4f}",
        flush=True,
    )
    return [mixed, level]


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        number, level, profile, index, members, store = sys.argv[2:]
        worker(int(number), level, profile, int(index), int(members), store)  # type: ignore[arg-type]
        return
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=15, help=f"blocks of {STEPS} steps of each configuration")
    options = parsed(made)
    rows = []
    wanted = dict.fromkeys(SMOKE, TINY) if options.smoke else {name: i for i, name in enumerate(TARGETS)}
    for name, workload in wanted.items():
        rows += measured(workload, name, options.pick(smoke=1, quick=3, full=options.rounds))
    save(RESULT, rows, options, workers=WORKERS, kinds=KINDS, common_profile=common_profile(KINDS).name)


if __name__ == "__main__":
    main()
