"""Which devices a job should have: now, and at the later steps that a plan names. Pure bookkeeping."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from isoscale.kinds import DeviceSet

__all__ = ["Aside", "Goal", "PlanEntry"]

#: newcomers for a planned change are started when it is due in less than this
_LEAD_S = 30.0
_LEAD_STEPS = 20


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """From `step` committed steps on the job has these devices."""

    step: int
    devices: DeviceSet


@dataclass(frozen=True, slots=True)
class Aside:
    """A device that the target names and the job does better without."""

    executor: int
    kind: str
    #: how many times as fast a step is without it
    gain: float


@dataclass(slots=True)
class Goal:
    target: DeviceSet
    #: in the order of their steps
    plan: list[PlanEntry] = field(default_factory=list)
    #: why an earlier target was given up; "" if none was since the last request
    refused: str = ""
    #: what of the target is left out, until another one is asked for
    aside: list[Aside] = field(default_factory=list)
    #: executors know of a step at which they will wait for a change that will not come
    holds_for_nothing: bool = False

    @property
    def devices(self) -> DeviceSet:
        """The target, less what is set aside."""
        left = Counter(self.target) - Counter(one.kind for one in self.aside)
        kinds = [kind for kind in self.target.kinds for _ in range(left[kind])]
        return DeviceSet(tuple((kind, 1) for kind in kinds)) if self.aside and kinds else self.target

    def ask(self, target: DeviceSet, *, moves_only: bool = False) -> list[Aside]:
        """The newest request counts, until the plan's next change. It takes back what was set aside, which it gives,
        unless it only wants executors elsewhere."""
        taken_back: list[Aside] = []
        if not moves_only or target != self.target:
            taken_back, self.aside = self.aside, []
        self.target, self.refused = target, ""
        return taken_back

    def reach(self, step: int) -> None:
        """The plan's changes up to this step have been made, or are overtaken."""
        while self.plan and self.plan[0].step <= step:
            self.target, self.aside = self.plan.pop(0).devices, []

    def give_up(self, why: str, kinds: list[str]) -> None:
        """Stay with what there is: executors of these `kinds`. Without any, the target remains what it was."""
        self.holds_for_nothing |= bool(self.plan)
        self.refused, self.plan = why, []
        if kinds:
            self.target, self.aside = DeviceSet(tuple((kind, 1) for kind in kinds)), []

    def told_anew(self) -> None:
        """All executors have a new order, which names the plan's next step, if there is one."""
        self.holds_for_nothing &= bool(self.plan)

    def next(self, step: int, step_s: float) -> tuple[DeviceSet, int | None]:
        """The devices to work towards, and the step at which a plan wants them. A step takes `step_s`, 0 if unknown."""
        if not self.plan:
            return self.devices, None
        entry = self.plan[0]
        steps = entry.step - step
        near = steps <= _LEAD_STEPS or (step_s > 0 and steps * step_s <= _LEAD_S)
        return (entry.devices, entry.step) if near else (self.devices, None)

    def hold_at(self, beyond: int | None = None) -> int | None:
        """The next step at which the plan changes the devices, after the change that is being made."""
        return next((e.step for e in self.plan if beyond is None or e.step > beyond), None)
