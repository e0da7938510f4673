"""What changes cost: starting, resizing, giving devices back, failing.

Two ways to resize. *Stop-resume*: every change stops the job, which then starts again from a checkpoint. *Stop-free*:
newcomers get ready while the job trains on, then everybody stands still for a moment; leavers finish their step. The
presets are figures of this kind of system, not of one cluster; every one can be set.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from isoscale import limits
from isoscale.errors import UserError

__all__ = ["PRESETS", "Costs", "parse_costs"]

_SECONDS = limits.Range(0.0, 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds, all of them."""

    #: a first start: devices held, nothing done
    start_s: float = 0.0
    #: starting again after a pause
    resume_s: float = 0.0
    #: standing still when devices or the batch change
    rescale_s: float = 0.0
    #: a pure growth only: training goes on as before while newcomers get ready, then `rescale_s`
    ready_s: float = 0.0
    #: devices that one decision takes from a job and gives to another come so much later: the step under way, the
    #: state that a paused job writes, the end of its processes
    handover_s: float = 0.0
    #: until a device that is wanted back is free, after the step under way
    release_s: float = 0.0
    #: a step is not waited for longer than this: it is given up, and made again by those who stay; 0: it always is
    patience_s: float = 0.0
    #: a crash or a lost device throws away the work since the last checkpoint, on average half of this; 0: nothing
    checkpoint_every_s: float = 0.0
    #: whether a job that loses a device goes on with the others; if not it stops and waits for its turn
    survives_loss: bool = True

    def in_words(self) -> str:
        """What costs anything, for people.

        >>> PRESETS["stop-free"].in_words()
        '10 s to start, 10 s to resume, 0.5 s to resize (10 s to get ready beside training), 0.5 s to give back'
        """
        parts = [
            f"{seconds:g} s to {what}"
            for seconds, what in ((self.start_s, "start"), (self.resume_s, "resume"), (self.rescale_s, "resize"))
            if seconds
        ]
        if self.ready_s:
            ready = f"({self.ready_s:g} s to get ready beside training)"
            parts = [f"{part} {ready}" if part.endswith("resize") else part for part in parts] or [ready]
        if self.release_s:
            parts.append(f"{self.release_s:g} s to give back")
        if self.checkpoint_every_s:
            parts.append(f"a checkpoint every {self.checkpoint_every_s:g} s")
        return ", ".join(parts) or "none"


PRESETS = {
    "free": Costs(),
    "stop-free": Costs(start_s=10.0, resume_s=10.0, rescale_s=0.5, ready_s=10.0, release_s=0.5, patience_s=5.0),
    "stop-resume": Costs(
        start_s=30.0,
        resume_s=30.0,
        rescale_s=30.0,
        release_s=10.0,
        checkpoint_every_s=600.0,
        survives_loss=False,
    ),
}


def parse_costs(text: str, *, field: str = "--costs") -> Costs:
    """A preset, with changes if wanted: `stop-resume`, `stop-free:rescale_s=2,start_s=20`."""
    name, _, rest = text.partition(":")
    if name not in PRESETS:
        raise UserError(field=field, value=text, problem="unknown", remedy=f"give one of {', '.join(PRESETS)}")
    names = [one.name for one in fields(Costs) if one.name != "survives_loss"]
    changes: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in names:
            raise UserError(
                field=field,
                value=text,
                problem=f"{part!r} is not COST=SECONDS",
                remedy=f"give some of {', '.join(names)}",
            )
        changes[key] = limits.decimal(value, field, _SECONDS, part_of=text)
    # Positional keywords of a frozen dataclass: mypy cannot see that the keys were checked above.
    return replace(PRESETS[name], **changes)  # type: ignore[arg-type]
