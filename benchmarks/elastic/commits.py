"""What the benchmarks read out of committed steps: gaps, steps lost, sizes, and whether targets are met.

Pure: lines of `peers/committed.py` in, numbers out. A system that goes back to a checkpoint commits some steps
twice; its gap is then the time in which nothing was committed, and `regain_s` the time until it was as far again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

WARM_UP_STEPS = 5


@dataclass(frozen=True)
class Line:
    step: int
    t: float
    writer: str
    #: as the worker saw it; 0 where a worker cannot know
    workers: int = 0


@dataclass(frozen=True)
class Commit:
    """One step, committed by all workers of the moment."""

    step: int
    t: float
    writers: frozenset[str]
    workers: int

    @property
    def size(self) -> int:
        return self.workers or len(self.writers)


def read_lines(folder: Path) -> list[Line]:
    found = []
    for path in sorted(folder.glob("commits-*.txt")):
        writer = path.stem.removeprefix("commits-")
        for text in path.read_text().splitlines():
            step, t, workers = text.split()[:3]
            found.append(Line(int(step), float(t), writer, int(workers)))
    return sorted(found, key=lambda line: line.t)


def commits_of(lines: Iterable[Line]) -> list[Commit]:
    """In order of time; the moment of a commit is that of its first worker. A step number may come again.

    A smaller step number is a way back only if its writer is new or went back itself; otherwise the line is late.
    """
    found: list[Commit] = []
    last_of: dict[str, int] = {}
    for line in sorted(lines, key=lambda line: line.t):
        own = last_of.get(line.writer)
        last_of[line.writer] = line.step
        if found and line.step <= found[-1].step:
            back = own is None or line.step <= own
            place = _same_pass(found, line.step)
            if not back or line.step == found[-1].step:
                if place is not None:
                    one = found[place]
                    found[place] = Commit(one.step, one.t, one.writers | {line.writer}, max(one.workers, line.workers))
                continue
        found.append(Commit(line.step, line.t, frozenset({line.writer}), line.workers))
    return found


def _same_pass(found: Sequence[Commit], step: int) -> int | None:
    """Where this step is since the last way back."""
    for place in range(len(found) - 1, -1, -1):
        if found[place].step == step:
            return place
        if place and found[place - 1].step >= found[place].step:
            return None
    return None


@dataclass(frozen=True)
class Disturbance:
    """What one event did to a run."""

    gap_s: float
    #: the step after which the longest gap came
    gap_after_step: int
    lost_steps: int
    regain_s: float
    step_before_s: float
    step_after_s: float
    size_before: int
    size_after: int
    #: from the event to the first commit at another size; None if the size never changed
    reaction_s: float | None

    @property
    def gap_steps(self) -> float:
        """In median steps of the slower size: what the job takes between two commits anyway."""
        return self.gap_s / max(self.step_before_s, self.step_after_s)

    @property
    def beyond_step_s(self) -> float:
        """What of the gap is not the step itself: sizes and systems differ in how long that takes."""
        return self.gap_s - max(self.step_before_s, self.step_after_s)

    @property
    def gap_fast_steps(self) -> float:
        return self.gap_s / min(self.step_before_s, self.step_after_s)


def disturbance(commits: Sequence[Commit], event_t: float) -> Disturbance:
    """The longest gap among those that end after the event, and what else changed. Needs commits on both sides."""
    before = [c for c in commits if c.t <= event_t]
    after = [c for c in commits if c.t > event_t]
    if not before or not after:
        raise ValueError(f"{len(before)} commits before the event and {len(after)} after it")
    gap, begin = max(((b.t - a.t, a) for a, b in pairwise(commits) if b.t > event_t), key=lambda pair: pair[0])
    lost = sum(a.step - b.step + 1 for a, b in pairwise(commits) if b.step <= a.step)
    regained = next((c.t for c in commits if c.t > begin.t and c.step > begin.step), after[-1].t)
    changed = next((c.t for c in after if c.size != before[-1].size), None)
    return Disturbance(
        gap_s=gap,
        gap_after_step=begin.step,
        lost_steps=lost,
        regain_s=regained - begin.t,
        step_before_s=median_step(before[WARM_UP_STEPS:] or before),
        step_after_s=median_step(after[-len(after) // 3 :]),
        size_before=before[-1].size,
        size_after=after[-1].size,
        reaction_s=None if changed is None else changed - event_t,
    )


def median_step(commits: Sequence[Commit]) -> float:
    """Seconds between commits that follow each other; nan without any."""
    spent = [b.t - a.t for a, b in pairwise(commits) if b.step == a.step + 1]
    return statistics.median(spent) if spent else float("nan")


# ---- checkpoints ----


def next_seconds(folder: Path) -> dict[int, float]:
    """By committed step: the longest that any executor waited in `next()` before it."""
    found: dict[int, float] = {}
    for path in folder.glob("commits-*.txt"):
        for text in path.read_text().splitlines():
            step, _, _, waited = text.split()
            found[int(step)] = max(found.get(int(step), 0.0), float(waited))
    return found


def excess(commits: list[Commit], begun: list[int], every: int, after: int) -> float:
    """Seconds that a checkpoint adds in the median: its step and those `after` it, over the usual step of the period.

    `begun` are the steps that follow a checkpoint; there is one every `every` steps.
    """
    took = {b.step: b.t - a.t for a, b in pairwise(commits) if b.step == a.step + 1}
    found = []
    for first in begun:
        period = [took[step] for step in range(first, first + every) if step in took]
        if len(period) == every:
            usual = statistics.median(period[after:])
            found.append(sum(seconds - usual for seconds in period[:after]))
    return statistics.median(found) if found else float("nan")


# ---- over repetitions ----


_SUMMED = (
    "gap_s",
    "gap_steps",
    "beyond_step_s",
    "lost_steps",
    "first_step_s",
    "step_before_s",
    "step_after_s",
    "reaction_s",
)


def summary(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per model, system and scenario: medians and extremes over the repetitions that came through."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["system"], row["scenario"]), []).append(row)
    found = []
    for (model, system, scenario), group in groups.items():
        whole = [row for row in group if not row.get("failed")]
        entry: dict[str, Any] = {
            "model": model,
            "system": system,
            "scenario": scenario,
            "runs": len(group),
            "failed": len(group) - len(whole),
            "same_digest": sum(bool(row.get("same_digest")) for row in whole),
        }
        for name in _SUMMED:
            values = [row[name] for row in whole if row.get(name) is not None]
            if values:
                entry[name] = {
                    "median": round(statistics.median(values), 4),
                    "min": round(min(values), 4),
                    "max": round(max(values), 4),
                }
        found.append(entry)
    return found


def table(summed: Sequence[Mapping[str, Any]]) -> str:
    """A line per model, event and system: longest gap, step time, gap less one step, committed steps lost."""
    lines = [
        f"{'model':18} {'event':10} {'system':32} {'longest gap':>22} {'a step':>8} {'gap-step':>10} {'lost':>5}  bits"
    ]
    order = sorted(summed, key=lambda entry: (entry["model"], entry["scenario"], entry["system"]))
    for entry in order:
        start = f"{entry['model']:18} {entry['scenario']:10} {entry['system']:32} "
        whole = entry["runs"] - entry["failed"]
        if "gap_s" in entry:
            gap = entry["gap_s"]
            lines.append(
                f"{start}{gap['median']:8.3f} s ({gap['min']:.2f}-{gap['max']:5.2f}) {step_seconds(entry):6.3f} s "
                f"{entry['beyond_step_s']['median']:8.3f} s {entry['lost_steps']['max']:5g}  "
                f"{entry['same_digest']} of {whole} equal"
                + (f"; {entry['failed']} of {entry['runs']} did not recover" if entry["failed"] else "")
            )
        elif entry["failed"]:
            lines.append(f"{start}{entry['failed']} of {entry['runs']} did not recover")
    return "\n".join(lines)


def step_seconds(entry: Mapping[str, Any]) -> float:
    """Of the slower of the two sizes: what lies between two commits anyway."""
    return max(entry[name]["median"] for name in ("step_before_s", "step_after_s") if name in entry)


def targets(summed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each target of the elastic runtime against what was measured: by medians, and `worst` by our longest gap."""
    found: list[dict[str, Any]] = []
    for model in dict.fromkeys(entry["model"] for entry in summed):
        of = {(e["system"], e["scenario"]): e for e in summed if e["model"] == model}
        for scenario in ("scale out", "scale in", "notice", "migrate"):
            found += _at_most_two_steps(model, scenario, of)
            found += _beyond_step(model, scenario, of, 0.05)
        found += _beyond_single(model, "notice", of, 0.05)
        found += _against(model, "scale out", of, "torchft", 1.0)
        found += _against(model, "scale out", of, "torchrun", 20.0)
        for scenario in ("scale in", "notice", "migrate"):
            # Peers know no migration: a worker that leaves is the nearest they have.
            found += _against(model, scenario, of, "torchft", 10.0, theirs="scale in")
        for scenario in ("kill", "kill first"):
            found += _kill(model, scenario, of)
            found += _beyond_single(model, scenario, of, 0.15)
            for peer in ("torchft", "torchrun"):
                found += _against(model, scenario, of, peer, 5.0, theirs="kill")
    return found


_Table = Mapping[tuple[str, str], Mapping[str, Any]]


def _at_most_two_steps(model: str, scenario: str, of: _Table) -> list[dict[str, Any]]:
    ours = of.get(("isoscale", scenario))
    if ours is None or "gap_steps" not in ours:
        return []
    gap = ours["gap_steps"]
    return [_target(model, f"{scenario}: gap in median steps", "at most", 2.0, gap["median"], gap["max"])]


def _beyond_step(model: str, scenario: str, of: _Table, limit_s: float) -> list[dict[str, Any]]:
    ours = of.get(("isoscale", scenario))
    if ours is None or "gap_s" not in ours:
        return []
    step, gap = step_seconds(ours), ours["gap_s"]
    what = f"{scenario}: gap less one step, s"
    return [_target(model, what, "at most", limit_s, gap["median"] - step, gap["max"] - step)]


def _beyond_single(model: str, scenario: str, of: _Table, limit_s: float) -> list[dict[str, Any]]:
    """Until the lost one is replaced, the other does all turns: a step of a single executor is what cannot be saved."""
    ours, single = of.get(("isoscale", scenario)), of.get(("isoscale", "scale in"))
    if ours is None or single is None or "gap_s" not in ours or "step_after_s" not in single:
        return []
    step, gap = single["step_after_s"]["median"], ours["gap_s"]
    what = f"{scenario}: gap less one step of a single executor, s"
    return [
        _target(model, what, "at most", limit_s, gap["median"] - step, gap["max"] - step) | {"for_information": True}
    ]


def _kill(model: str, scenario: str, of: _Table) -> list[dict[str, Any]]:
    ours = of.get(("isoscale", scenario))
    if ours is None or "gap_s" not in ours:
        return []
    lost = ours["lost_steps"]
    return [
        _target(model, f"{scenario}: committed steps lost", "at most", 0, lost["median"], lost["max"]),
        *_beyond_step(model, scenario, of, 0.15),
    ]


def _against(
    model: str, scenario: str, of: _Table, peer: str, factor: float, theirs: str | None = None
) -> list[dict[str, Any]]:
    """How many times shorter our gap is than a peer's; of its own variants of a scenario, the one with the shortest.

    Other set-ups of the peer than the default (named "PEER, ...") come too, for information.
    """
    ours = of.get(("isoscale", scenario))
    if ours is None or "gap_s" not in ours:
        return []
    found = []
    for name in dict.fromkeys(system for system, _ in of if system == peer or system.startswith(f"{peer},")):
        gaps = [
            entry["gap_s"]
            for (system, other), entry in of.items()
            if system == name and other.startswith(theirs or scenario) and "gap_s" in entry
        ]
        if gaps:
            best, own = min(gaps, key=lambda gap: gap["median"]), ours["gap_s"]
            ratio, worst = best["median"] / own["median"], best["min"] / own["max"]
            target = _target(model, f"{scenario}: times shorter than {name}'s", "at least", factor, ratio, worst)
            found.append(target | {"for_information": name != peer})
    return found


def _target(model: str, what: str, sense: str, limit: float, value: float, worst: float) -> dict[str, Any]:
    def met(number: float) -> bool:
        return number <= limit if sense == "at most" else number >= limit

    return {
        "model": model,
        "what": what,
        "target": f"{sense} {limit:g}",
        "value": round(value, 3),
        "meets": met(value),
        "worst": round(worst, 3),
        "worst_meets": met(worst),
        "for_information": False,
    }
