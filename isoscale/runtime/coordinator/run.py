"""Run a job, or take one over: what is decided before a coordinator begins, about its directory and its code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from isoscale.backends.local import born
from isoscale.clock import Clock, WallClock
from isoscale.kinds import DeviceSet
from isoscale.runtime.code.collect import Snapshot
from isoscale.runtime.code.freezing import Frozen, freeze_anew, go_on_with, still_alive
from isoscale.runtime.control.directory import Control, closed_on_error
from isoscale.runtime.control.host_id import machine_id
from isoscale.runtime.control.server import Security
from isoscale.runtime.coordinator.adoption import survivors
from isoscale.runtime.coordinator.journal import Observer, RunResult
from isoscale.runtime.coordinator.shell import Coordinator
from isoscale.runtime.membership.target import Aside
from isoscale.types import JobSpec, Placement, Settings

__all__ = ["Observer", "RunResult", "resume_job", "run_job"]


async def run_job(
    spec: JobSpec,
    devices: DeviceSet,
    observer: Observer,
    *,
    placement: Placement | None = None,
    settings: Settings | None = None,
    plan: Sequence[tuple[int, DeviceSet]] = (),
    security: Security | None = None,
    resume: bool = False,
    heed_signals: bool = False,
    new_code: bool = False,
    code: Snapshot | Frozen | None = None,
    clock: Clock | None = None,
) -> RunResult:
    """Run a job to its end. Cancelling the task ends all its processes.

    `spec.out` must be a directory that this run has for itself (see `cli.job.claim_directory`); with `resume` it
    goes on there from the newest whole checkpoint, with the code that it began with unless `new_code`. `code` was
    collected, or kept for several runs, before. With `heed_signals` Ctrl-C and SIGTERM stop it after a checkpoint.
    """
    settings = settings or Settings()
    control = Control(Path(spec.out))
    with closed_on_error(control):
        snapshot = code if isinstance(code, Snapshot) else None
        if isinstance(code, Frozen):
            frozen = code
        elif resume:
            frozen = go_on_with(spec, new_code=new_code, snapshot=snapshot)
        else:
            frozen = freeze_anew(spec, snapshot)
    spec = frozen.of(spec)
    coordinator = Coordinator(spec, settings, devices, plan, control, observer, security, clock or WallClock())
    coordinator.reception.use_code(frozen)
    if resume:
        coordinator.reception.provenance.begin_again()
    if placement is not None:
        coordinator.membership.first_shares = placement.shares
    begin = coordinator.begin_from_checkpoint if resume else coordinator.begin
    return await coordinator.run(begin, heed_signals=heed_signals)


async def resume_job(
    directory: Path,
    observer: Observer,
    *,
    security: Security | None = None,
    heed_signals: bool = False,
    new_code: bool = False,
    clock: Clock | None = None,
) -> RunResult:
    """Take over a job whose coordinator is gone: with the executors that are alive, else from a checkpoint.

    With `new_code` from a checkpoint only, and with the script as it is now. Raises UserError.
    """
    control = Control(directory, field="DIR")
    with closed_on_error(control):
        job = control.load_job()
        spec = replace(job.spec, out=str(directory.resolve()))  # it may have been moved since
        alive = survivors(control.load_executors(), machine_id(), born).local
        if new_code and alive:
            raise still_alive(directory, sorted(alive))
        frozen = go_on_with(spec, new_code=new_code)
    plan = [(step, DeviceSet.parse(devices)) for step, devices in job.plan]
    coordinator = Coordinator(
        frozen.of(spec),
        job.settings,
        DeviceSet.parse(job.target),
        plan,
        control,
        observer,
        security or Security(certificate=job.certificate, key=job.key),
        clock or WallClock(),
    )
    coordinator.reception.use_code(frozen)
    if not alive:
        coordinator.reception.provenance.begin_again()
    coordinator.membership.goal.aside = [Aside(*one) for one in job.aside]
    return await coordinator.run(coordinator.take_over, heed_signals=heed_signals)
