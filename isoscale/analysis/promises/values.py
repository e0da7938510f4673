"""What the checker of histories is given, beside a log, and what it says. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from isoscale.timelines.fields import seconds

__all__ = ["Asked", "Deed", "Finding", "Judgement", "Limits", "Opinion", "Record", "Said", "Verdict"]

Said = Literal["kept", "broken", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A promise that was broken, once."""

    promise: str
    #: of the event in the log at which it shows, and its time; None if it shows in what is missing
    index: int | None
    t: float | None
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.what} ({self.why})"


@dataclass(slots=True)
class Opinion:
    """What one judge thinks of one history."""

    promise: str
    findings: list[Finding] = field(default_factory=list)
    #: why part of the promise, or all of it, could not be judged
    unknown: list[str] = field(default_factory=list)
    #: what was looked at, in numbers
    seen: str = ""

    def find(self, what: str, why: str, *, index: int | None = None, t: float | None = None) -> None:
        self.findings.append(Finding(promise=self.promise, index=index, t=t, what=what, why=why))

    def cannot_tell(self, why: str) -> None:
        if why not in self.unknown:
            self.unknown.append(why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One promise, and whether a history kept it."""

    promise: str
    statement: str
    said: Said
    findings: tuple[Finding, ...]
    #: why it could not be judged wholly
    unknown: tuple[str, ...]
    #: what was looked at
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    judgements: tuple[Judgement, ...]

    @property
    def findings(self) -> list[Finding]:
        return [finding for judgement in self.judgements for finding in judgement.findings]

    @property
    def broken(self) -> list[str]:
        return [judgement.promise for judgement in self.judgements if judgement.said == "broken"]

    def of(self, promise: str) -> Judgement:
        return next(judgement for judgement in self.judgements if judgement.promise == promise)

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(judgement) for judgement in self.judgements]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The protocol's own timers, as far as they are known: everything that waits waits for one of these."""

    lost_after_s: float | None = None
    heartbeat_s: float | None = None
    stalled_after_s: float = 1800.0
    #: how long an exchange that broke waits for news of a loss
    grace_s: float = 3.0
    #: how long a new coordinator waits for executors of the old one
    adoption_s: float = 15.0

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Limits:
        """From the settings of a job, as events or its control directory have them."""
        stalled = seconds(settings, "stalled_after_s")
        return cls(
            lost_after_s=seconds(settings, "lost_after_s"),
            heartbeat_s=seconds(settings, "heartbeat_s"),
            **({} if stalled is None else {"stalled_after_s": stalled}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Something that was done to a job from outside, by the clock of its log."""

    t: float
    #: kill, stop, continue, notice, slow, kill_loaders; kill_coordinator, stop_coordinator, continue_coordinator,
    #: interrupt; resume, edit, flood
    what: str
    executor: int | None = None
    pid: int | None = None
    #: how long it lasted, where it did
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that somebody made, and what came back."""

    t: float
    #: scale, migrate, checkpoint, stop
    request: str
    target: str = ""
    #: it must be refused: no job can do it
    absurd: bool = False
    #: None if no answer came: the connection broke, or there was nobody
    ok: bool | None = None
    error: str = ""
    #: until the answer, or until it was not waited for any longer
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Record:
    """All that was done to a job, and nothing else was: without one, a log is judged by itself."""

    deeds: list[Deed] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    #: executors with a fault inside (`testing.faults.at`)
    faulty: set[int] = field(default_factory=set)
    #: the script is known to be sound: an executor that ends by itself, with an exit code, has no excuse
    is_sound: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "format": 1,
            "deeds": [asdict(deed) for deed in self.deeds],
            "asked": [asdict(asked) for asked in self.asked],
            "faulty": sorted(self.faulty),
            "is_sound": self.is_sound,
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Record:
        """What `as_json` gave."""
        return cls(
            deeds=[Deed(**deed) for deed in value["deeds"]],
            asked=[Asked(**asked) for asked in value["asked"]],
            faulty=set(value["faulty"]),
            is_sound=value.get("is_sound", False),
        )

    def pauses(self) -> list[tuple[float, float]]:
        """When the coordinator was stopped, from and until."""
        found: list[tuple[float, float]] = []
        since: float | None = None
        for deed in sorted(self.deeds, key=lambda deed: deed.t):
            if deed.what == "stop_coordinator":
                since = deed.t
            elif since is not None and deed.what in ("continue_coordinator", "kill_coordinator"):
                found.append((since, deed.t))
                since = None
        return found
