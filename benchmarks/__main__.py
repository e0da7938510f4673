"""Measures what is stale, one benchmark after another, and writes docs/claims.md.

    python -m benchmarks --list                      # every benchmark: its state, how long it takes
    python -m benchmarks --under CMD                 # what is not fresh, each through CMD
    python -m benchmarks --only elastic --stale      # of these, what is not fresh; without --stale, all of them
    python -m benchmarks --only gaps start overhead  # in this order
    python -m benchmarks --smoke                     # does every one of them run? Seconds each

Without --only the shortest comes first. Pages are written after each, so a break costs little: the same command goes
on, in many benchmarks even with the next row. One that fails is told at the end; exit code 1.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import claims, smoke
from benchmarks.index import Benchmark, benchmarks
from benchmarks.lib.processes import ROOT, run_module
from benchmarks.recipes import page as recipes_page
from benchmarks.state import State, state_of

#: what stands in a command for something that a user has to give -> the option that gives it
_GIVEN = {"DATA": "data", "package/data": "speeches"}


def main() -> int:
    options = _options()
    chosen = [one for one in benchmarks() if _is_asked(one, options.only)]
    if not chosen:
        print(f"--only {' '.join(options.only)}: no such benchmark; --list shows them", file=sys.stderr)
        return 2
    if options.smoke:
        return _smoke(chosen, options.out)
    states = {one.name: state_of(one) for one in chosen}
    if options.list:
        print(table(chosen, states, options))
        return 0
    wants_all = options.all or (options.only and not options.stale)
    due = [one for one in chosen if wants_all or states[one.name].word != "fresh"]
    return _measure(in_order(due, states, options.only), states, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="show every benchmark with its state and duration")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these: a folder, a module or a result")
    parser.add_argument("--stale", action="store_true", help="with --only: those of them that are not fresh")
    parser.add_argument("--all", action="store_true", help="also what is fresh")
    parser.add_argument("--quick", action="store_true", help="a minute or two each; keeps nothing")
    parser.add_argument("--smoke", action="store_true", help="seconds each; keeps nothing")
    parser.add_argument("--under", default="", metavar="CMD", help="put before the command of each measurement")
    parser.add_argument("--data", type=Path, metavar="DIR", help="public traces, for some of simulate/")
    parser.add_argument("--speeches", type=Path, metavar="DIR", help="State of the Union addresses, for recipes/mcmisp")
    parser.add_argument("--out", type=Path, metavar="FILE", help="with --smoke: how each fared, as JSON")
    return parser.parse_args()


def _is_asked(one: Benchmark, only: list[str]) -> bool:
    return not only or any(_is_named(one, word) for word in only)


def _is_named(one: Benchmark, word: str) -> bool:
    names = {one.module, one.name, one.name.rpartition(".")[2], one.name.partition(".")[0], one.result}
    return word.replace("/", ".").removesuffix(".py") in names


def in_order(due: list[Benchmark], states: dict[str, State], only: list[str]) -> list[Benchmark]:
    """As they were named; of those that one word names, and without any word, the shortest first."""

    def key(one: Benchmark) -> tuple[int, float]:
        named = next((number for number, word in enumerate(only) if _is_named(one, word)), len(only))
        return named, expected_s(one, states[one.name])

    return sorted(due, key=key)


def expected_s(one: Benchmark, state: State) -> float:
    """What the last measurement took, or what its author says."""
    return state.seconds or one.minutes * 60


def command(one: Benchmark, options: argparse.Namespace) -> list[str] | str:
    """The command of one measurement, or what it lacks."""
    words = []
    for word in one.arguments:
        given = getattr(options, _GIVEN[word]) if word in _GIVEN else word
        if given is None:
            return f"--{_GIVEN[word]} DIR"
        words.append(str(given))
    return [*shlex.split(options.under), *run_module(one.module, *words, *(["--quick"] if options.quick else []))]


# ---- what a person sees ----


def table(chosen: list[Benchmark], states: dict[str, State], options: argparse.Namespace) -> str:
    lines = [f"{'benchmark':26} {'state':15} {'takes':>8}  {'measured':10}  why"]
    for one in chosen:
        state, how = states[one.name], command(one, options)
        notes = [state.why, f"needs {how}" if isinstance(how, str) else ""]
        lines.append(
            f"{one.name:26} {state.word:15} {duration(expected_s(one, state)):>8}  {state.date:10}  "
            f"{'; '.join(note for note in notes if note)}".rstrip()
        )
    due = [one for one in chosen if states[one.name].word != "fresh"]
    total = sum(expected_s(one, states[one.name]) for one in due)
    lines.append(f"{len(due)} of {len(chosen)} are not fresh; measuring them takes about {duration(total)}")
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """In words, rounded; "?" if nobody knows."""
    if seconds <= 0:
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02}"


# ---- measuring ----


def _measure(due: list[Benchmark], states: dict[str, State], options: argparse.Namespace) -> int:
    ready = [(one, how) for one in due if not isinstance(how := command(one, options), str)]
    for one in due:
        if isinstance(how := command(one, options), str):
            print(f"left out: {one.name}, which needs {how}")
    left = sum(expected_s(one, states[one.name]) for one, _ in ready)
    print(f"{len(ready)} to measure" + (f", about {duration(left)} at full length" if ready else ""), flush=True)
    failed: dict[str, int] = {}
    for number, (one, how) in enumerate(ready, 1):
        at, expected = f"[{number}/{len(ready)}] {one.name}", expected_s(one, states[one.name])
        print(f"\n{at}, about {duration(expected)}; all that is left about {duration(left)}")
        print(f"$ {shlex.join(how)}".replace(sys.executable, "python"), flush=True)
        begun = time.monotonic()
        try:
            code = subprocess.run(how, cwd=ROOT, check=False).returncode
        except KeyboardInterrupt:
            print("\nbroken off; the same command goes on from here")
            return 130
        left -= expected
        took = duration(time.monotonic() - begun)
        print(f"{at}: {'done' if code == 0 else f'FAILED, exit code {code},'} in {took}", flush=True)
        if code != 0:
            failed[one.name] = code
        if not options.quick:
            claims.PAGE.write_text(claims.page())
            recipes_page.write()
    for name, code in failed.items():
        print(f"failed: {name} (exit code {code})")
    return int(bool(failed))


def _smoke(chosen: list[Benchmark], out: Path | None) -> int:
    smoke.warm_up()
    found = []
    for one in chosen:
        found.append(smoke.run(one))
        print(smoke.line(found[-1]), flush=True)
        if found[-1].code != 0:
            print("\n".join(f"    {line}" for line in found[-1].output.splitlines()[-15:]), flush=True)
    if out is not None:
        smoke.write(out, found)
    bad = sum(one.code != 0 for one in found)
    spent = sum(one.processor_s for one in found)
    print(f"{len(found) - bad} of {len(found)} run; {spent:.0f} s of processor time")
    return int(bad > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
