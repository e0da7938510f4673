"""What became of a run's promises, as rows of text for pages and terminals."""

from __future__ import annotations

from dataclasses import dataclass

from isoscale.analysis.promises import Finding, Judgement, Verdict
from isoscale.analysis.promises.values import Said
from isoscale.analysis.words import count, duration

__all__ = ["SAID", "PromiseRow", "heading", "rows", "short"]

SAID: dict[Said, str] = {"kept": "kept", "broken": "broken", "unknown": "cannot tell"}
_MAX_FINDINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseRow:
    said: Said
    statement: str
    #: one line each: what was found and when, why it cannot be told, or what was looked at
    lines: tuple[str, ...]


def heading(verdict: Verdict) -> str:
    return "Kept its promises" if not verdict.broken else "Did not keep its promises"


def short(verdict: Verdict) -> str:
    """In a few words: "all 8 kept", "5 of 8 kept", "1 of 8 broken"."""
    number, broken = len(verdict.judgements), len(verdict.broken)
    kept = sum(judgement.said == "kept" for judgement in verdict.judgements)
    if broken:
        return f"{broken} of {number} broken"
    return f"all {number} kept" if kept == number else f"{kept} of {number} kept"


def rows(verdict: Verdict, start: float) -> list[PromiseRow]:
    """One per promise; times count from `start`."""
    return [PromiseRow(said=one.said, statement=one.statement, lines=_lines(one, start)) for one in verdict.judgements]


def _lines(one: Judgement, start: float) -> tuple[str, ...]:
    if one.said == "broken":
        found = [_finding(finding, start) for finding in one.findings[:_MAX_FINDINGS]]
        more = len(one.findings) - len(found)
        return (*found, *([f"and {count(more, 'more finding')}"] if more else []))
    return one.unknown if one.said == "unknown" else (one.seen,)


def _finding(finding: Finding, start: float) -> str:
    when = "" if finding.t is None else f"after {duration(max(0.0, finding.t - start))}: "
    return f"{when}{finding.what}: {finding.why}"
