"""Every recipe against stock DDP, bit for bit, by one command.

    python -m benchmarks.recipes.proof [--only NAME] [--again]

For each recipe of the catalogue and each of its variants, with 4 logical workers and its short `proof` arguments:

    elastic        `isoscale verify` while the job goes through 1, 3, 2 and 4 executors
    heterogeneous  the same on mixed kinds: cpu, cpu-avx2 and cpu-sse
    chaos          kill -9 of two executors, one of them inside a backward pass: the result is the undisturbed one

Where a recipe has state of its own (it merges counts, or prunes), executors change just before, at and just after a
step that changes it. A proof holds only if everything planned has happened. Results are kept as they come (`--again`
to prove anew what is known); what did not hold is tried again by the next run. Exit code 1 if anything differs.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lib.options import parsed
from benchmarks.recipes.kept import (
    PARTS,
    SMALLEST,
    Kept,
    Row,
    chosen,
    code_of,
    kept_rows,
    parts_of,
    processor_s,
    recipes_parser,
)
from benchmarks.recipes.page import write as write_page
from isoscale.kinds import host_capability
from isoscale.protocol.events import read_events
from isoscale.recipes.catalogue import Recipe, find, path_of
from isoscale.testing import faults
from isoscale.testing.chaos import Story, Target, run_story, undisturbed

RESULT, MINUTES = "recipes_proof", 30
WORKERS = 4
LIMIT_S = 60 * 60
#: committed steps at which the set of executors changes; proof runs have at least 8
CHANGES = (0, 2, 4, 6)
SIZES = (1, 3, 2, 4)
MIXED = ("cpu*1", "cpu*1+cpu-avx2*1+cpu-sse*1", "cpu-avx2*1+cpu-sse*1", "cpu*1+cpu-avx2*2+cpu-sse*1")
_TIMEOUT_S = 900


@dataclass(frozen=True)
class Proof:
    """What is shown of a recipe, and how."""

    part: str
    #: what decides whether a kept result still counts, beside the recipe's code
    asked: tuple[str, ...]
    #: into a directory of its own; gives what was found, with `equal` and, if not, `problem`
    run: Callable[[Path], Row]


def smoke_proof(recipe: Recipe) -> Proof:
    """The shortest: two logical workers on one executor and then on two, against two processes of stock DDP."""
    return _verified(recipe, "elastic", plan_of((0, 2), (1, 2)), workers=2)


def proofs(recipe: Recipe) -> list[Proof]:
    changes = (0, *around(recipe.own_state_at)) if recipe.own_state_at else CHANGES
    elastic, mixed = plan_of(changes, SIZES), plan_of(changes, MIXED)
    found = []
    for variant in ((), *recipe.variants):
        one = replace(recipe, proof=recipe.proof + variant)
        elastic_part, mixed_part, chaos_part = parts_of(variant)
        found += [
            _verified(one, elastic_part, elastic),
            _verified(one, mixed_part, mixed, "--determinism", "heterogeneous"),
            Proof(chaos_part, one.proof, partial(killed, one)),
        ]
    return found


def plan_of(steps: Sequence[int], devices: Sequence[int | str]) -> str:
    return ",".join(f"{step}:{wanted}" for step, wanted in zip(steps, devices, strict=True))


def around(step: int) -> tuple[int, int, int]:
    """A change takes effect between steps: with so many committed, the next one is done by others.

    The recipe's own state changes after step S, before step S + 1 begins. So S - 1 is before it (the new ones do the
    step that changes it), S at it (it is the first thing that they are given) and S + 1 right after.
    """
    if step < 2:
        raise ValueError(f"own_state_at={step}: there is no room for a change before it")
    return step - 1, step, step + 1


def _verified(recipe: Recipe, part: str, plan: str, *options: str, workers: int = WORKERS) -> Proof:
    arguments = ["--workers", str(workers), "--plan", plan, *options, "--", *recipe.proof]
    sizes = SIZES if workers == WORKERS else (*SIZES[:1], workers)
    return Proof(part, tuple(arguments), partial(verified, recipe, arguments, sizes=sizes))


# ---- one proof ----


def verified(recipe: Recipe, arguments: Sequence[str], out: Path, sizes: Sequence[int] = SIZES) -> Row:
    program = str(Path(sys.executable).with_name("isoscale"))
    shown = shlex.join(["isoscale", "verify", f"recipe:{recipe.name}", *arguments])
    try:
        done = subprocess.run(
            [program, "verify", str(path_of(recipe)), "--out", str(out), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return {"command": shown, "equal": False, "problem": f"not done within {_TIMEOUT_S} s"}
    found = _seen(out / "events.jsonl")
    row: Row = {"command": shown, **found, "equal": done.returncode == 0}
    if done.returncode != 0:
        row["problem"] = _end_of(done.stdout + done.stderr)
    elif found["executors"] != list(sizes):
        row |= {"equal": False, "problem": f"went through {found['executors']} executors, not {list(sizes)}"}
    return row


def killed(recipe: Recipe, out: Path) -> Row:
    target = Target(script=path_of(recipe), arguments=recipe.proof, steps=CHANGES[-1] + 2)
    story = Story(
        seed=0,
        executors=3,
        spares=0,
        checkpoint_every=0,
        faults=(faults.kill(member=0, step=4),),
        points=(faults.at("backward", executor=1, step=3),),
    )
    row: Row = {"command": f"testing.chaos: 3 executors; {'; '.join(story.lines())}"}
    out.mkdir(parents=True)
    try:
        expected = undisturbed(out / "undisturbed", target=target)
    except (RuntimeError, TimeoutError) as error:
        return {**row, "equal": False, "problem": _end_of(str(error))}
    outcome = run_story(story, expected, out / "story", target=target)
    row |= _seen(out / "story" / "events.jsonl") | {"lost": outcome.lost, "equal": outcome.verdict == "equal"}
    if outcome.verdict != "equal":
        row["problem"] = f"{outcome.verdict}: {_end_of(outcome.problem)}"
    elif outcome.lost < 2:
        row |= {"equal": False, "problem": f"only {outcome.lost} of 2 executors were lost: {outcome.story}"}
    return row


def _seen(log: Path) -> Row:
    """Sizes, steps and digest by the event log."""
    events = list(read_events(log)) if log.exists() else []
    finished = [event for event in events if event["event"] == "finished"]
    return {
        "executors": [len(event["members"]) for event in events if event["event"] == "generation"],
        "steps": max((event["step"] for event in events if event["event"] == "step"), default=0),
        "digest": finished[-1]["digest"] if finished else "",
    }


def _end_of(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-12:])[-1500:]


# ---- all of them ----


def prove(recipe: Recipe, kept: Kept, wanted: Sequence[Proof], *, again: bool) -> None:
    for proof in wanted:
        code = code_of(recipe, proof.asked)
        row = kept.find(recipe.name, proof.part, code)
        if row is not None and row["equal"] and not again:
            print(f"{recipe.name:14} {proof.part:14} known: equal, {row['seconds']:.0f} s", flush=True)
            continue
        print(f"{recipe.name:14} {proof.part:14} ...", end=" ", flush=True)
        begun, used = time.monotonic(), processor_s()
        with tempfile.TemporaryDirectory(prefix="proof-") as directory:
            row = proof.run(Path(directory) / "run")
        seconds = round(time.monotonic() - begun, 1)
        took = {"seconds": seconds, "processor_s": round(processor_s() - used, 1)}
        kept.put({"recipe": recipe.name, "part": proof.part, "code": code, **took, **row})
        verdict = "equal" if row["equal"] else f"NOT PROVEN\n{row['problem']}"
        print(
            f"{verdict} {seconds:.0f} s, {row.get('steps', 0)} steps, executors {row.get('executors', [])}", flush=True
        )


def table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """A line per recipe, a column per proof, the digest of the elastic one."""
    lines = [f"{'recipe':25} {'  '.join(f'{part:>14}' for part in PARTS)}   steps  digest"]
    for name in names:
        mine = {row["part"]: row for row in rows if row["recipe"] == name}
        for variant in ((), *find(name).variants):
            found = [mine.get(part) for part in parts_of(variant)]
            first: Any = found[0] or {}
            lines.append(
                f"{' '.join((name, *variant)):25} {'  '.join(f'{_cell(row):>14}' for row in found)}   "
                f"{first.get('steps', 0):5}  {str(first.get('digest', ''))[:16]}"
            )
    return "\n".join(lines)


def not_proven(rows: Sequence[Row]) -> list[str]:
    """Names of what does not hold. What was killed must end where stock DDP ended, not only where we do undisturbed."""
    wrong = [f"{row['recipe']} ({row['part']})" for row in rows if not row["equal"]]
    digests: dict[str, set[str]] = {}
    for row in rows:
        part, _, variant = row["part"].partition(" ")
        if part in ("elastic", "chaos") and row["equal"]:
            digests.setdefault(f"{row['recipe']} {variant}".strip(), set()).add(row["digest"])
    return wrong + [f"{name} (chaos is not stock DDP)" for name, found in digests.items() if len(found) > 1]


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    return f"equal {row['seconds']:.0f} s" if row["equal"] else "NOT PROVEN"


def main() -> None:
    made = recipes_parser(__doc__)
    made.add_argument("--part", action="append", help="elastic, heterogeneous or chaos (may be repeated)")
    options = parsed(made)
    if host_capability().isa not in ("avx2", "avx512"):
        sys.exit("this CPU has no AVX2, so there is only one kind to mix")
    recipes = chosen(options.only or ([SMALLEST] if options.length != "full" else None))
    wanted = {
        recipe.name: [smoke_proof(recipe)]
        if options.smoke
        else [one for one in proofs(recipe) if not options.part or one.part.split()[0] in options.part]
        for recipe in recipes
    }
    with kept_rows(RESULT, options, workers=WORKERS, executors=SIZES, kinds=MIXED) as kept:
        for recipe in recipes:
            prove(recipe, kept, wanted[recipe.name], again=options.again)
        if options.length == "full" and not (options.only or options.part):
            kept.finish({(r.name, one.part): code_of(r, one.asked) for r in recipes for one in wanted[r.name]})
        names = [recipe.name for recipe in recipes]
        rows = [row for row in kept.rows() if row["recipe"] in names]
    print(f"\n{table(rows, names)}")
    if options.length == "full" and options.out is None:
        write_page()
    wrong = not_proven(rows)
    spent = sum(row["seconds"] for row in rows)
    busy = sum(row.get("processor_s", 0.0) for row in rows)
    print(f"{sum(row['equal'] for row in rows)} of {len(rows)} proofs hold")
    print(f"together they took {spent / 60:.1f} minutes, {busy / 60:.1f} minutes of processor time")
    if spent > LIMIT_S:
        print(f"that is more than {LIMIT_S // 60} minutes")
    sys.exit(f"not proven: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
