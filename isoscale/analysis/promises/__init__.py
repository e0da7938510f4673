"""The checker of histories: did a run keep what isoscale promises? Pure: events in, findings out.

    verdict = check(read_events(directory / "events.jsonl"))
    for finding in verdict.findings:
        print(finding)

Equal digests cannot show work that was lost and done again, executors that were killed without need, or a request that
nobody answered: this can. A log of an older version lacks events; then a promise is not kept but unknown.
"""

from __future__ import annotations

from isoscale.analysis.promises.table import PROMISES, Promise, check
from isoscale.analysis.promises.values import Asked, Deed, Finding, Judgement, Limits, Record, Verdict

__all__ = [
    "PROMISES",
    "Asked",
    "Deed",
    "Finding",
    "Judgement",
    "Limits",
    "Promise",
    "Record",
    "Verdict",
    "check",
]
