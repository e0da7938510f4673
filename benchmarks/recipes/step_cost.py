"""What each recipe's step costs: context switches on one executor, and determinism levels.

    python -m benchmarks.recipes.step_cost [--only NAME] [--again]

switch: k = 1, 2, 4, 8 logical workers on one executor over gradient accumulation of k micro-batches in plain PyTorch,
    by the recipe's own script (`sides`). Both sides and a second plain one, the control, are built anew in
    every block and take turns in random order in one process.
levels: a step of one logical worker at `off`, at `elastic` and at `heterogeneous`, for the profile that cpu and
    cpu-avx2 have in common and for the one that cpu-sse has in common with them. Each is a process of its own with the
    environment of an executor of that level, a second one at `off` is the control; blocks come in random order.

Ratios are of 10th percentiles. Each recipe is given about a minute; results are kept as they come. Then the tables of
docs/recipes.md are written (`page`).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.lib.measure import interleave, ratio_of
from benchmarks.lib.options import parsed
from benchmarks.lib.processes import run_module
from benchmarks.recipes.kept import SMALLEST, Kept, Row, chosen, code_of, kept_rows, recipes_parser
from benchmarks.recipes.page import write as write_page
from isoscale.backends.local import ALLOCATOR
from isoscale.kinds import common_profile, executor_environment, profile_named, profile_of
from isoscale.recipes.catalogue import Recipe, find
from isoscale.types import Level

RESULT, MINUTES = "recipes_table", 6
WORKERS = (1, 2, 4, 8)
#: seconds for each number of logical workers, and for all levels together
SWITCH_S, LEVELS_S = 6.0, 12.0
#: EasyScale's bound, and from which step time on it is asked for here
LIMIT, FROM_MS = 1.02, 50.0
#: of each side in a block, beside two steps to warm up
_BLOCK_S = 1.0
_GROUPS = 5
#: trainings run in threads here and in the main thread of an executor: one arena gives them the same memory
_MEMORY = {**ALLOCATOR, "MALLOC_ARENA_MAX": "1"}


# ---- context switch ----


def switch_process(name: str, seconds: float, most: int) -> None:
    """In a process of its own: prints a row for every k."""
    from benchmarks.recipes.sides import accumulating, training_function, under_isoscale
    from isoscale.core.numerics import determinism

    determinism.apply("elastic", 1)
    train = training_function(find(name))
    pilot = accumulating(train, 1)
    pilot()
    turn_s = min(_timed(pilot) for _ in range(4))
    pilot.close()
    for k in [k for k in WORKERS if k <= most]:
        pairs = min(50, max(1, round(min(_BLOCK_S, 2 * seconds) / (k * turn_s))))
        block_s = 3 * (pairs + 2) * k * turn_s
        blocks = min(12, max(1 if seconds < 0.1 else 2, round(seconds / block_s)))
        found = interleave(
            partial(accumulating, train, k), partial(under_isoscale, train, k), blocks=blocks, pairs=pairs
        )
        print(json.dumps({"k": k, **vars(found)}), flush=True)


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def switch(recipe: Recipe, seconds: float, most: int = max(WORKERS)) -> Row:
    environment = executor_environment({**os.environ, **_MEMORY}, profile_of("cpu"), 1)
    command = run_module(__spec__.name, "--process", "switch", recipe.name, seconds, most)
    rows = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            row = json.loads(line)
            rows.append(row)
            print(
                f"{recipe.name:14} k={row['k']} {row['a_ms']:8.1f} -> {row['b_ms']:8.1f} ms  "
                f"ratio {row['ratio']:.4f}  control {row['control']:.4f} +- {row['half_width']:.4f}",
                flush=True,
            )
    if process.returncode != 0:
        sys.exit(f"{recipe.name}: the process that measures switches ended with exit code {process.returncode}")
    is_due = rows[0]["a_ms"] >= FROM_MS  # a step of one logical worker
    meets = all(row["ratio"] - row["half_width"] <= LIMIT for row in rows) if is_due else None
    return {"switch": rows, "meets": meets}


# ---- levels ----


@dataclass(frozen=True)
class Configuration:
    name: str
    level: Level
    profile: str


def configurations() -> list[Configuration]:
    native = profile_of("cpu").name
    return [
        Configuration("a", "off", native),
        Configuration("control", "off", native),
        Configuration("elastic", "elastic", native),
        Configuration("avx2", "heterogeneous", common_profile(("cpu", "cpu-avx2")).name),
        Configuration("sse", "heterogeneous", common_profile(("cpu", "cpu-avx2", "cpu-sse")).name),
    ]


def level_process(name: str, level: Level, profile: str) -> None:
    """Serves counts of steps from standard input, one a line, with the seconds of each step."""
    from benchmarks.recipes.sides import training_function, under_isoscale
    from isoscale.core.numerics import determinism

    determinism.apply(level, 1, profile)
    step = under_isoscale(training_function(find(name)), 1)
    for _ in range(3):
        step()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps([_timed(step) for _ in range(int(line))]), flush=True)


@contextmanager
def level_processes(recipe: Recipe, wanted: list[Configuration]) -> Iterator[dict[str, Callable[[int], list[float]]]]:
    """By configuration: what does so many steps."""
    processes: dict[str, subprocess.Popen[str]] = {}

    def answer(name: str) -> Any:
        stdout = processes[name].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            sys.exit(f"{recipe.name}: the process at {name} ended with exit code {processes[name].wait()}")
        return json.loads(line)

    def ask(name: str, count: int) -> list[float]:
        stdin = processes[name].stdin
        assert stdin is not None
        stdin.write(f"{count}\n")
        stdin.flush()
        return list(answer(name))

    try:
        for one in wanted:
            environment = executor_environment({**os.environ, **_MEMORY}, profile_named(one.profile), 1)
            command = run_module(__spec__.name, "--process", "level", recipe.name, one.level, one.profile)
            pipe = subprocess.PIPE
            processes[one.name] = subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe)
        for name in processes:
            assert answer(name) == "ready"
        yield {name: partial(ask, name) for name in processes}
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def levels(recipe: Recipe, seconds: float, wanted: list[Configuration] | None = None) -> Row:
    order, wanted = random.Random(0), wanted or configurations()
    with level_processes(recipe, wanted) as ask:
        step_s = {name: min(one(3)) for name, one in ask.items()}
        steps = max(1, round(0.2 / step_s["a"]))
        rounds = max(2 * _GROUPS, round(seconds / ((steps + 1) * sum(step_s.values()))))
        times: dict[str, list[list[float]]] = {name: [[] for _ in range(_GROUPS)] for name in ask}
        for number in range(rounds):
            for name in order.sample(list(ask), len(ask)):
                # The first step after a rest finds the caches full of others' data.
                times[name][number % _GROUPS] += ask[name](steps + 1)[1:]
    row: Row = {"profiles": {one.name: one.profile for one in configurations()}}
    judged = [one.name for one in wanted if one.name not in ("a", "control")]
    for name in judged:
        # A smoke run has no second process for the control.
        found = ratio_of({"a": times["a"], "control": times.get("control", times["a"]), "b": times[name]})
        row[name] = {"ratio": found.ratio, "ms": found.b_ms}
        row |= {"off_ms": found.a_ms, "control": found.control, "half_width": found.half_width, "steps": found.pairs}
    print(
        f"{recipe.name:14} off {row['off_ms']:.1f} ms  "
        + "  ".join(f"{name} {row[name]['ratio']:.3f}x" for name in judged)
        + f"  control {row['control']:.4f} +- {row['half_width']:.4f}",
        flush=True,
    )
    return row


# ---- all recipes ----


def smoke(recipe: Recipe) -> None:
    """Both parts with the fewest logical workers and levels."""
    switch(recipe, 0.01, most=2)
    levels(recipe, 0.01, [one for one in configurations() if one.name in ("a", "sse")])


def measure(recipe: Recipe, kept: Kept, wanted: str | None, *, again: bool, effort: float) -> None:
    code = code_of(recipe)
    parts = {"switch": partial(switch, recipe, effort * SWITCH_S), "levels": partial(levels, recipe, effort * LEVELS_S)}
    for part, run in parts.items():
        if wanted not in (None, part):
            continue
        if not again and kept.find(recipe.name, part, code) is not None:
            print(f"{recipe.name:14} {part} known", flush=True)
            continue
        begun = time.monotonic()
        row = {"recipe": recipe.name, "part": part, "code": code, **run()}
        kept.put({**row, "seconds": round(time.monotonic() - begun, 1)})


def main() -> None:
    if sys.argv[1:2] == ["--process"]:
        kind, name, *rest = sys.argv[2:]
        if kind == "switch":
            switch_process(name, float(rest[0]), int(rest[1]))
        else:
            level_process(name, *rest)  # type: ignore[arg-type]
        return
    made = recipes_parser(__doc__)
    made.add_argument("--part", choices=["switch", "levels"], help="only this")
    made.add_argument("--effort", type=float, default=0.35, help="about so many minutes for each recipe")
    options = parsed(made)
    recipes = chosen(options.only or options.pick(smoke=[SMALLEST], quick=["digits", "resnet", "gpt"], full=None))
    begun = time.monotonic()
    if options.smoke:
        smoke(recipes[0])
        return
    with kept_rows(RESULT, options, workers=WORKERS) as kept:
        for recipe in recipes:
            effort = options.pick(smoke=0.0, quick=0.1, full=options.effort)
            measure(recipe, kept, options.part, again=options.again, effort=effort)
        if options.length == "full" and not (options.only or options.part):
            kept.finish({(one.name, part): code_of(one) for one in recipes for part in ("switch", "levels")})
    print(f"measured for {(time.monotonic() - begun) / 60:.1f} minutes")
    if options.length == "full" and options.out is None:
        write_page()


if __name__ == "__main__":
    main()
