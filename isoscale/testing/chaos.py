"""Random faults at a short job, seed after seed: is the result always the one of the undisturbed run?

    python -m isoscale.testing.chaos --seeds 0:200 [--jobs 2] [--json results.json] [--keep DIR]
    python -m isoscale.testing.chaos --seeds 0:20 --data stream-processes
    python -m isoscale.testing.chaos --seeds 0:1000 --data all --json results.json --resume
    python -m isoscale.testing.chaos --seeds 0:5 --script train.py --steps 60 -- --epochs 3

A seed fixes the whole story: executors, spares, checkpoints, what happens to whom after which step, also faults at
precise points inside executors. When things then happen to the millisecond is the machine's business, so a seed that
failed is tried again by the same story, not by the same instants. Compared are the digest, every tensor and
value of final.pt, every committed step's loss, every logged value, and what the job's tracker was told, bit for bit.
Then the run's history is held against what was done to it (`isoscale.analysis.promises`): equal bits cannot show work
that was lost and done again.

With `--data all` seeds take the ways to read in turn. With `--resume` seeds whose outcome is in the JSON file already
are not run again, whatever it was; each outcome says by a hash which code it is of.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from isoscale.testing import faults
from isoscale.testing.drawing import DATA, SHORT_JOB, WORKERS, Story, Target, story_of
from isoscale.testing.looking import read_json, write_atomic
from isoscale.testing.nursery import Nursery
from isoscale.testing.running import PATIENCE_S, JobEndedError, RunningJob, start

__all__ = [
    "DATA",
    "SHORT_JOB",
    "Outcome",
    "Result",
    "Story",
    "Target",
    "compare",
    "main",
    "repeated",
    "result_of",
    "run_story",
    "story_of",
    "undisturbed",
]

#: a job whose executors were all told to go ends with a checkpoint, and is resumed, but not for ever
_MAX_RESUMES = 4


#: of `--data`: the seeds take all ways to read in turn
_ALL = "all"


@dataclass(slots=True, kw_only=True)
class Outcome:
    seed: int
    #: how the short job read; "" with a script of one's own
    data: str = ""
    #: the first digits of a hash of isoscale's files
    code: str = ""
    #: equal, broken promise (with equal bits), differs, failed (the job ended with an error) or hung
    verdict: str
    problem: str = ""
    #: every promise that was broken, and how
    promises: list[str] = field(default_factory=list)
    seconds: float = 0.0
    rescales: int = 0
    lost: int = 0
    story: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All that must not depend on what happened."""

    digest: str
    state: str
    losses: dict[int, float]
    logged: dict[tuple[int, int], dict[str, Any]]
    #: what a tracker of the job was told, by step and name; empty if it has none
    curves: dict[tuple[int, str], float]


def undisturbed(out: Path, nursery: Nursery | None = None, target: Target = SHORT_JOB) -> Result:
    """The run that all others must agree with."""
    with start(
        target.script, out=out, workers=WORKERS, executors=1, script_args=target.arguments, nursery=nursery
    ) as job:
        code = job.wait(PATIENCE_S)
        if code:
            raise RuntimeError(f"the undisturbed run ended with exit code {code}:\n{job.output()}")
        return result_of(job)


def run_story(
    story: Story,
    expected: Result,
    out: Path,
    nursery: Nursery | None = None,
    target: Target = SHORT_JOB,
    *,
    patience_s: float = PATIENCE_S,
) -> Outcome:
    begun = time.monotonic()
    outcome = Outcome(seed=story.seed, verdict="equal", story=story.lines())
    job = start(
        _own_script(target, out),
        out=out,
        workers=WORKERS,
        executors=story.executors,
        spares=story.spares,
        checkpoint_every=story.checkpoint_every,
        lost_after_s=target.lost_after_s,
        script_args=target.arguments,
        points=story.points,
        edits=target.edits,
        nursery=nursery,
    )
    job.record.is_sound = True
    with contextlib.closing(job):
        try:
            outcome.story = [
                *faults.play(job, story.faults, strict=False, resume=True, patience_s=patience_s),
                *map(str, story.points),
            ]
            code = _until_done(job, patience_s)
            if code:
                outcome.verdict, outcome.problem = "failed", _last_line(job.output())
            else:
                if target.batch_sizes:
                    expected = repeated(job, nursery)
                different = compare(expected, result_of(job))
                outcome.verdict, outcome.problem = ("differs", different) if different else ("equal", "")
        except (JobEndedError, AssertionError) as error:
            outcome.verdict, outcome.problem = "differs", str(error)[-300:]
        except TimeoutError as error:
            outcome.verdict, outcome.problem = "hung", str(error)[:300]
        outcome.rescales, outcome.lost = len(job.events("rescale")), len(job.events("executor_lost"))
        outcome.promises = [str(finding) for finding in job.promises().findings]
        if outcome.promises and outcome.verdict == "equal":
            outcome.verdict, outcome.problem = "broken promise", outcome.promises[0]
        if outcome.verdict != "equal":
            record = json.dumps(job.record.as_json(), indent=1)
            out.with_name(f"{out.name}.record.json").write_text(record)
    outcome.seconds = round(time.monotonic() - begun, 1)
    return outcome


def repeated(job: RunningJob, nursery: Nursery | None = None) -> Result:
    """A run of the same job with the batch sizes that this one had, on one executor: `isoscale run --like`."""
    out = job.directory.with_name(f"{job.directory.name}.like")
    shutil.rmtree(out, ignore_errors=True)
    with start(
        job.script, out=out, workers=WORKERS, executors=1, options=["--like", str(job.directory)], nursery=nursery
    ) as again:
        again.hurry()
        code = again.wait(PATIENCE_S)
        if code:
            raise AssertionError(f"run --like ended with exit code {code}:\n{again.output()}")
        return result_of(again)


def _own_script(target: Target, out: Path) -> Path:
    """A copy, if somebody may edit it."""
    if target.edits is None:
        return target.script
    folder = out.with_name(f"{out.name}.code")
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(target.script, folder))


def _until_done(job: RunningJob, patience_s: float) -> int:
    """The exit code in the end; a job that ended because all its executors were told to go is resumed."""
    for _ in range(_MAX_RESUMES):
        code = job.wait(patience_s)
        if code == 0 or not job.was_stopped:
            break
        job.resume()
    return code


def result_of(job: RunningJob) -> Result:
    import torch

    from isoscale.core.encoding.digest import flat_state, tensor_digest

    state = torch.load(job.directory / "final.pt", weights_only=True)
    total = hashlib.sha256()
    for name, leaf in flat_state(state):
        total.update(f"{name}={tensor_digest(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)}\n".encode())
    logged: dict[tuple[int, int], dict[str, Any]] = {}
    for event in job.events("log"):
        values = {key: value for key, value in event.items() if key not in ("t", "event")}
        assert logged.setdefault((event["epoch"], event["step"]), values) == values, f"{values} was logged differently"
    return Result(
        digest=job.digest(),
        state=total.hexdigest(),
        losses=job.losses(),
        logged=logged,
        curves=curves_of(job.directory),
    )


def curves_of(directory: Path) -> dict[tuple[int, str], float]:
    """Of the short job's tracker. What was told twice was told alike, and all files are of one run."""
    curves: dict[tuple[int, str], float] = {}
    files = sorted((directory / "curves").glob("*.jsonl"))
    assert len({path.name.split("-")[0] for path in files}) <= 1, f"one run, several ids: {files}"
    for line in (line for path in files for line in path.read_text().splitlines()):
        with contextlib.suppress(ValueError):  # cut off by a kill
            told = json.loads(line)
            for name in sorted(set(told) - {"step", "drawn", "closed"}):
                value = curves.setdefault((told["step"], name), told[name])
                assert value == told[name], f"{name} of step {told['step']} was told differently: {value}, {told[name]}"
    return curves


def compare(expected: Result, found: Result) -> str:
    """What differs first, or nothing."""
    if found.digest != expected.digest:
        at = next((s for s in sorted(expected.losses) if found.losses.get(s) != expected.losses[s]), None)
        return f"digest {found.digest[:16]} is not {expected.digest[:16]}; the first other loss is of step {at}"
    if found.state != expected.state:
        return "final.pt holds other values"
    if found.losses != expected.losses:
        missing = sorted(set(expected.losses) - set(found.losses))
        return f"events lack steps {missing[:5]}" if missing else "losses differ"
    if found.curves and found.curves != expected.curves:
        return (
            f"the tracker was told other values: {sorted(set(found.curves.items()) ^ set(expected.curves.items()))[:5]}"
        )
    return "" if found.logged == expected.logged else f"logged values differ: {found.logged} not {expected.logged}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m isoscale.testing.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:10", help="FIRST:END, or seeds separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--json", type=Path, help="write all outcomes here")
    parser.add_argument("--keep", type=Path, help="keep the directories of runs that went wrong here")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds after which a run counts as hung")
    parser.add_argument("--fresh", action="store_true", help="start every process from nothing, which takes longer")
    parser.add_argument("--data", choices=[*DATA, _ALL], default="loader", help="how the short job reads")
    parser.add_argument("--resume", action="store_true", help="only seeds that --json does not have yet")
    parser.add_argument("--script", type=Path, help="instead of the short job, with the arguments after --")
    parser.add_argument("--steps", type=int, help="committed steps of the script's whole job")
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.script is None) != (options.steps is None):
        parser.error("--script and --steps go together: faults are dealt out over so many steps")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that started this in the background has it ignore Ctrl-C, and so would every coordinator.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if options.resume and options.json is None:
        parser.error("--resume goes on with what --json FILE has")
    targets = {name: DATA[name] for name in (DATA if options.data == _ALL else [options.data])}
    if options.script is not None:
        targets = {"": Target(script=options.script, arguments=tuple(options.arguments), steps=options.steps)}
    outcomes = _known(options.json) if options.resume else {}
    seeds = [seed for seed in _seeds(options.seeds) if seed not in outcomes]
    if options.resume:
        print(f"{len(outcomes)} known, {len(seeds)} to run", flush=True)
    if seeds:
        _run_all(seeds, targets, outcomes, options)
    wrong = sorted(outcome.seed for outcome in outcomes.values() if outcome.verdict != "equal")
    print(f"{len(outcomes) - len(wrong)} of {len(outcomes)} equal" + (f"; not: {wrong}" if wrong else ""))
    sys.exit(1 if wrong else 0)


def _run_all(
    seeds: list[int], targets: dict[str, Target], outcomes: dict[int, Outcome], options: argparse.Namespace
) -> None:
    """Adds to `outcomes`, and writes them down, as they come."""
    code = _code()
    with _directory(options.keep) as root, contextlib.nullcontext() if options.fresh else Nursery() as nursery:
        expected = {}
        for name, target in targets.items():
            shutil.rmtree(root / "undisturbed", ignore_errors=True)
            expected[name] = undisturbed(root / "undisturbed", nursery, target)
            steps, digest = len(expected[name].losses), expected[name].digest
            print(f"undisturbed{f', {name}' if name else ''}: {steps} steps, digest {digest}", flush=True)

        def one(seed: int) -> Outcome:
            out = root / f"seed-{seed}"
            shutil.rmtree(out, ignore_errors=True)
            name = list(targets)[seed % len(targets)]
            story = story_of(seed, targets[name])
            outcome = run_story(story, expected[name], out, nursery, targets[name], patience_s=options.patience)
            outcome.data, outcome.code = name, code
            if outcome.verdict == "equal" or options.keep is None:
                shutil.rmtree(out, ignore_errors=True)
                shutil.rmtree(out.with_name(f"{out.name}.code"), ignore_errors=True)
                shutil.rmtree(out.with_name(f"{out.name}.like"), ignore_errors=True)
                for left in out.parent.glob(f"{out.name}.*"):
                    left.unlink()
            return outcome

        with ThreadPoolExecutor(options.jobs) as pool:
            for done in as_completed([pool.submit(one, seed) for seed in seeds]):
                outcome = done.result()
                outcomes[outcome.seed] = outcome
                print(_line(outcome), flush=True)
                if options.json is not None:
                    _write(options.json, {name: result.digest for name, result in expected.items()}, outcomes)


def _line(outcome: Outcome) -> str:
    text = f"seed {outcome.seed}: {outcome.verdict} in {outcome.seconds} s, "
    text += f"{outcome.rescales} rescales, {outcome.lost} lost: {'; '.join(outcome.story)}"
    found = [one for one in outcome.promises if one != outcome.problem]
    return "\n    ".join([text, *([outcome.problem] if outcome.problem else []), *found[:4]])


def _write(path: Path, digests: dict[str, str], outcomes: dict[int, Outcome]) -> None:
    ordered = [outcomes[seed] for seed in sorted(outcomes)]
    content = {
        "command": " ".join(["python -m isoscale.testing.chaos", *sys.argv[1:]]),
        "digests": digests,
        "runs": len(ordered),
        **{f"{what}s": Counter(getattr(one, what) for one in ordered) for what in ("verdict", "data", "code")},
        "outcomes": [asdict(one) for one in ordered],
    }
    write_atomic(path, json.dumps(content, indent=1) + "\n")


def _known(path: Path) -> dict[int, Outcome]:
    """Outcomes of an earlier call that was broken off."""
    return {one["seed"]: Outcome(**one) for one in read_json(path).get("outcomes", [])}


def _code() -> str:
    package = Path(__file__).parents[1]
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        total.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return total.hexdigest()[:12]


def _seeds(text: str) -> list[int]:
    first, colon, end = text.partition(":")
    return list(range(int(first), int(end))) if colon else [int(part) for part in text.split(",")]


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.startswith("isoscale:")), text[-300:])


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
    else:
        with tempfile.TemporaryDirectory(prefix="chaos-") as name:
            yield Path(name)


if __name__ == "__main__":
    main()
