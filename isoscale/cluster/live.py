"""What the engine keeps of a job that is not over, beside its row and its place in the driver's book."""

from __future__ import annotations

from dataclasses import dataclass, field

from isoscale.cluster.batches import Batches
from isoscale.cluster.learning import Learner
from isoscale.cluster.outcome import Outcome
from isoscale.cluster.retrying import Verdict
from isoscale.cluster.values import JobRecord
from isoscale.protocol.status import JobStatus

__all__ = ["Live"]


@dataclass(slots=True)
class Live:
    """Changed by the engine's thread only."""

    record: JobRecord
    learner: Learner
    status: JobStatus | None = None
    #: jobs that it waits for
    waits_for: tuple[str, ...] = ()
    #: the driver was told of it, or is about to be
    is_offered: bool = False
    #: how its last coordinator ended
    outcome: Outcome = field(default_factory=lambda: Outcome(kind="died"))
    #: what was decided when it last failed, and why
    verdict: Verdict | None = None
    #: that counted by then
    failures: int = 0
    #: the furthest step that any attempt had committed when it began
    reached: int = 0
    #: sizes that the service may choose for it; None: it has not said, or there are none
    batches: Batches | None = None
    #: when the size that it shall have was last asked for again
    rebatched_s: float = 0.0
    #: read in committed steps, as it last said
    samples: int | None = None
    #: when its coordinator was last started
    launched_s: float = 0.0
    #: it has not shown yet that it trains, and gets as few devices as it can do with until it has
    is_on_trial: bool = False
    #: seconds that it was seen training in, and when it was last seen; 0: not by this coordinator
    trained_s: float = 0.0
    seen_s: float = 0.0
    #: seconds that it stands still when its devices change, as it has shown; None: it has not
    restart_s: float | None = None
