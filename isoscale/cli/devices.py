"""`--executors`, `--devices` and `--plan`, checked into sets of devices. Starts nothing."""

from __future__ import annotations

from isoscale import limits
from isoscale.errors import UserError, shortened
from isoscale.kinds import DeviceSet, check_kind
from isoscale.types import JobSpec

__all__ = ["device_set", "devices_and_plan", "devices_to_go_on_with", "parse_plan"]


def device_set(executors: int | None, devices: str | None, workers: int) -> DeviceSet:
    limits.within(workers, "--workers", limits.LOGICAL_WORKERS)
    if devices is not None:
        found = DeviceSet.parse(devices)
        if executors is not None and executors != found.total:
            raise UserError(
                field="--executors",
                value=executors,
                problem=f"--devices {devices} has {found.total}",
                remedy="give one of the two",
            )
    else:
        executors = 1 if executors is None else executors
        limits.within(executors, "--executors", limits.EXECUTORS)
        found = DeviceSet((("cpu", executors),))
    if found.total > workers:
        raise UserError(
            field="--executors" if devices is None else "--devices",
            value=found.total if devices is None else devices,
            problem=f"more than the {workers} logical workers of the job",
            remedy=f"give --workers {found.total} or fewer executors",
        )
    for kind in found.kinds:
        check_kind(kind)
    return found


def parse_plan(plan: str | None, workers: int, until: int | None) -> list[tuple[int, DeviceSet]]:
    """Entries `step:executors` or `step:DEVICES`, in ascending order of steps."""
    if plan is None:
        return []
    if len(plan) > limits.MAX_PLAN_CHARS or plan.count(",") >= limits.MAX_PLAN_ENTRIES:
        raise _plan_error(plan, "has too many entries", f"give at most {limits.MAX_PLAN_ENTRIES}")
    entries: list[tuple[int, DeviceSet]] = []
    for part in plan.split(","):
        step, found = _plan_entry(plan, part.strip())
        if entries and step <= entries[-1][0]:
            raise _plan_error(
                plan, f"step {step} does not come after {entries[-1][0]}", "give steps in ascending order"
            )
        if found.total > workers:
            raise _plan_error(
                plan, f"{found.total} executors at step {step} for {workers} logical workers", f"give at most {workers}"
            )
        entries.append((step, found))
    for kind in dict.fromkeys(kind for _, found in entries for kind in found.kinds):
        check_kind(kind, field="--plan")
    return [(step, found) for step, found in entries if not until or step < until]


def _plan_entry(plan: str, part: str) -> tuple[int, DeviceSet]:
    step, colon, devices = (text.strip() for text in part.partition(":"))
    if not colon or not (step.isascii() and step.isdigit()) or not devices:
        shown = shortened(part, 60)
        raise _plan_error(plan, f"{shown!r} is not STEP:EXECUTORS", 'give, for example, "0:2,40:4,80:1"')
    at = limits.whole(step, "--plan", limits.STEP, part_of=plan)
    if not limits.is_whole(devices):
        return at, DeviceSet.parse(devices, field="--plan")
    if int(devices) < 1:
        raise _plan_error(plan, f"{shortened(part, 60)!r} leaves the job without executors", "give 1 or more")
    return at, DeviceSet((("cpu", limits.whole(devices, "--plan", limits.EXECUTORS, part_of=plan)),))


def devices_and_plan(
    executors: int | None, devices: str | None, plan: str | None, workers: int, until: int | None
) -> tuple[DeviceSet, list[tuple[int, DeviceSet]]]:
    """The devices to begin with, and the changes that a plan makes later."""
    entries = parse_plan(plan, workers, until)
    if not entries or entries[0][0] != 0:
        return device_set(executors, devices, workers), entries
    first, later = entries[0][1], entries[1:]
    if executors is not None or devices is not None:
        given = device_set(executors, devices, workers)
        # A number says nothing of kinds, so the plan's own are meant.
        if given.total != first.total or (devices is not None and given.counts() != first.counts()):
            option, value = ("--devices", devices) if devices is not None else ("--executors", executors)
            raise _plan_error(plan, f"begins with {first}, but {option} is {value}", "give one of them, or both alike")
    return first, later


def devices_to_go_on_with(
    spec: JobSpec, executors: int | None, devices: str | None, plan: str | None
) -> tuple[DeviceSet | None, list[tuple[int, DeviceSet]] | None]:
    """Of a job that goes on: what takes the place of the devices and the plan that it has; None leaves them."""
    if executors is None and devices is None and plan is None:
        return None, None
    if executors is not None and devices is None and "cpu" not in spec.kinds and len(spec.kinds) == 1:
        devices, executors = f"{spec.kinds[0]}*{executors}", None
    entries = parse_plan(plan, spec.workers, spec.until)
    begins = bool(entries) and entries[0][0] == 0
    found: DeviceSet | None = None
    if begins or executors is not None or devices is not None:
        found, entries = devices_and_plan(executors, devices, plan, spec.workers, spec.until)
    for one in (*([found] if found is not None else []), *(later for _, later in entries)):
        foreign = [kind for kind in one.kinds if kind not in spec.kinds]
        if foreign:
            raise UserError(
                field="--devices" if devices is not None else "--plan" if plan is not None else "--executors",
                value=one,
                problem=f"{', '.join(foreign)} was not declared when the job began ({', '.join(spec.kinds)})",
                remedy="use the declared kinds",
            )
    return found, entries if plan is not None else None


def _plan_error(plan: object, problem: str, remedy: str) -> UserError:
    return UserError(field="--plan", value=plan, problem=problem, remedy=remedy)
