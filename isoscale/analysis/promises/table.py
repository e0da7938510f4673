"""The promises of a job, and the judge of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from isoscale.analysis.promises import answered, killed, order, pauses, progress, samples, sealed, target
from isoscale.analysis.promises.history import History
from isoscale.analysis.promises.values import Judgement, Opinion, Record, Said, Verdict
from isoscale.timelines.fields import Event

__all__ = ["PROMISES", "Promise", "check"]

Judge = Callable[[History, Record | None], Opinion]


@dataclass(frozen=True, slots=True)
class Promise:
    name: str
    statement: str
    judge: Judge


PROMISES = (
    Promise("sealed", "no sealed step is done again while an executor that saw it sealed is alive", sealed.judge),
    Promise("killed", "nobody is killed who answers in time, and nobody is lost without a cause", killed.judge),
    Promise("answered", "every request is answered, and no checkpoint is asked for and forgotten", answered.judge),
    Promise("pauses", "training pauses no longer than what happened explains", pauses.judge),
    Promise("samples", "every sample is used once, and a step that is done again is the same", samples.judge),
    Promise("order", "generations and terms grow, nobody comes back, and a job ends once", order.judge),
    Promise("target", "the job has the executors that were asked for, or says why not", target.judge),
    Promise("progress", "a job that gets nowhere is given up", progress.judge),
)


def check(
    events: Iterable[Event],
    *,
    record: Record | None = None,
    settings: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
) -> Verdict:
    """What became of every promise in a run, by its log.

    `record` is all that was done to it, if somebody kept one. `settings` (as in `control/job.json`) and `summary` are
    used where the log does not tell.
    """
    history = History(events, settings=settings, summary=summary)
    return Verdict(judgements=tuple(_judged(promise, promise.judge(history, record)) for promise in PROMISES))


def _judged(promise: Promise, opinion: Opinion) -> Judgement:
    said: Said = "broken" if opinion.findings else "unknown" if opinion.unknown else "kept"
    return Judgement(
        promise=promise.name,
        statement=promise.statement,
        said=said,
        findings=tuple(opinion.findings),
        unknown=tuple(opinion.unknown),
        seen=opinion.seen,
    )
