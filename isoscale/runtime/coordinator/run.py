"""Run a job, or take one over: what is decided before a coordinator begins, about its directory and its code."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from isoscale import env
from isoscale.backends.host_id import machine_id
from isoscale.backends.local import LocalBackend, training_environment
from isoscale.backends.seam import Backend
from isoscale.backends.system import born
from isoscale.backends.warm import WarmParents
from isoscale.backends.warm_sharing import Lender, sharing_directory
from isoscale.clock import Clock, WallClock
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet
from isoscale.runtime.code.collect import Snapshot
from isoscale.runtime.code.freezing import Frozen, freeze_anew, go_on_with, still_alive
from isoscale.runtime.control.directory import Control, closed_on_error, read_job
from isoscale.runtime.control.grants import read_grant
from isoscale.runtime.control.server import Security
from isoscale.runtime.coordinator.adoption import survivors
from isoscale.runtime.coordinator.attaching import Attachment, attach, undone_on_error
from isoscale.runtime.coordinator.journal import Observer, RunResult
from isoscale.runtime.coordinator.processes import profile_for
from isoscale.runtime.coordinator.shell import Coordinator
from isoscale.runtime.membership.target import Aside
from isoscale.types import JobSpec, Placement, Settings

__all__ = ["WARM_UP", "Observer", "RunResult", "backend_for", "local_backend", "resume_job", "run_job"]

#: what a process does that is to fork executors and ranks of the reference
WARM_UP = "isoscale.runtime.launch:warm_up"


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
    backend: Backend | None = None,
) -> RunResult:
    """Run a job to its end. Cancelling the task ends all its processes.

    `spec.out` must be a directory that this run has for itself (see `cli.job.claim_directory`); with `resume` it
    goes on there from the newest whole checkpoint, with the code that it began with unless `new_code`. `code` was
    collected, or kept for several runs, before. With `heed_signals` Ctrl-C and SIGTERM stop it after a checkpoint.
    """
    settings = settings or Settings()
    devices = granted_devices(Path(spec.out), devices) if settings.granted else devices
    attachment = attach(settings.storage)
    backend = backend or backend_for(settings, Path(spec.out))
    control = Control(Path(spec.out), claim=None if attachment is None else attachment.begin)
    with contextlib.suppress(OSError):  # said where it is needed
        (Path(spec.out) / "logs").mkdir(exist_ok=True)
    if settings.spawn:
        for kind in devices.kinds:  # its imports take longer than what is to be done before the first start
            backend.prepare(training_environment({}, profile_for(spec, kind), spec.threads))
    with closed_on_error(control), undone_on_error(attachment):
        snapshot = code if isinstance(code, Snapshot) else None
        if isinstance(code, Frozen):
            frozen = code
        elif resume:
            frozen = go_on_with(spec, new_code=new_code, snapshot=snapshot)
        else:
            frozen = freeze_anew(spec, snapshot)
        spec = frozen.of(spec)
        warnings = _settled(attachment, control, spec)
        wall = clock or WallClock()
        coordinator = Coordinator(spec, settings, devices, plan, control, observer, security, wall, backend)
        coordinator.reception.use_code(frozen)
        coordinator.use_storage(attachment, warnings)
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
    devices: DeviceSet | None = None,
    plan: Sequence[tuple[int, DeviceSet]] | None = None,
    until: int | None = None,
    address: str | None = None,
    host: str | None = None,
    clock: Clock | None = None,
    backend: Backend | None = None,
) -> RunResult:
    """Take over a job whose coordinator is gone: with the executors that are alive, else from a checkpoint.

    With `new_code` from a checkpoint only, and with the script as it is now. `devices` and `plan` take the place of
    those that it was asked for last (`devices` alone of both), `until` that of its limit of steps, for which a job that
    has reached it goes on. `address`: the Ray cluster on which it goes on, `host` the address of this machine,
    where it is another one now. Raises UserError.
    """
    attachment = attach(_storage_of(directory))
    control = Control(directory, field="DIR", claim=None if attachment is None else attachment.take_over)
    with closed_on_error(control):
        job = control.load_job()
        settings = job.settings if address is None else _on_cluster(job.settings, address)
        settings = settings if host is None else replace(settings, host=host)
        spec = replace(job.spec, out=str(directory.resolve()))  # it may have been moved since
        backend = backend or backend_for(settings, directory)
        alive = survivors(control.load_executors(), machine_id(), born, backend.lives).local
        if new_code and alive:
            raise still_alive(directory, sorted(alive))
        if until is not None:
            spec = _train_until(spec, until, control, sorted(alive))
            if attachment is not None:
                attachment.forget_results(until)
        frozen = go_on_with(spec, new_code=new_code)
        warnings = _settled(attachment, control, spec)
    if plan is None:
        plan = [(step, DeviceSet.parse(later)) for step, later in job.plan] if devices is None else []
    target = devices or DeviceSet.parse(job.target)
    coordinator = Coordinator(
        frozen.of(spec),
        settings,
        granted_devices(directory, target) if job.settings.granted else target,
        plan,
        control,
        observer,
        security or Security(certificate=job.certificate, key=job.key),
        clock or WallClock(),
        backend,
    )
    coordinator.reception.use_code(frozen)
    with closed_on_error(control):
        coordinator.use_storage(attachment, warnings)
    if not alive:
        coordinator.reception.provenance.begin_again()
    if devices is None and not job.settings.granted:
        coordinator.membership.goal.aside = [Aside(*one) for one in job.aside]
    return await coordinator.run(coordinator.take_over, heed_signals=heed_signals)


def _storage_of(directory: Path) -> str:
    """Of a run; "" also if there is no run here, of which others tell."""
    with contextlib.suppress(UserError):
        return read_job(directory).settings.storage
    return ""


def _settled(attachment: Attachment | None, control: Control, spec: JobSpec) -> list[str]:
    """The directory has all that the run's storage has; what there is to warn of. Raises UserError."""
    warnings: list[str] = []
    if attachment is not None:
        attachment.settle(Path(spec.out), control.term, warnings.append)
    return warnings


def _on_cluster(settings: Settings, address: str) -> Settings:
    """The same on another Ray cluster, or on the same one whose head has another address now. Raises UserError."""
    if settings.ray is None:
        problem, remedy = "this job does not run on a Ray cluster", "go on there: isoscale run --resume --backend ray"
        raise UserError(field="--address", value=address, problem=problem, remedy=remedy)
    from isoscale.backends.ray_connection import connect, own_address

    connect(address, settings.ray.working_dir)
    return replace(settings, host=own_address(), ray=replace(settings.ray, address=address))


def _train_until(spec: JobSpec, until: int, control: Control, alive: list[int]) -> JobSpec:
    """Executors that live have their limit already; a job that has come to its end may have another one."""
    if alive:
        who = ", ".join(map(str, alive))
        problem = f"executors {who} are alive and train to the old limit"
        raise UserError(field="--until", value=until, problem=problem, remedy="stop the job first: isoscale stop")
    if control.result().get("step", until) < until:
        control.forget_result()
    return replace(spec, until=until)


def granted_devices(directory: Path, otherwise: DeviceSet) -> DeviceSet:
    """What a service has granted the job; of a grant of nothing the job will hear when it has begun."""
    grant = read_grant(directory)
    return otherwise if grant is None or grant.target is None else grant.target


def backend_for(settings: Settings, out: Path) -> Backend:
    """What the job runs on. Raises UserError."""
    if settings.ray is None:
        return local_backend(settings, out)
    from isoscale.backends.ray_connection import connect

    connect(settings.ray.address, settings.ray.working_dir)
    from isoscale.backends.ray import RayBackend
    from isoscale.backends.ray_nodes import Demand

    demand = Demand(cores=settings.ray.cores, memory_bytes=settings.ray.memory_bytes)
    return RayBackend(WARM_UP, demand, brings=bool(settings.ray.working_dir), warm=settings.warm)


def local_backend(settings: Settings, out: Path) -> LocalBackend:
    """This machine, for a run whose directory is `out`."""
    if not settings.warm:
        return LocalBackend()
    parents = WarmParents(WARM_UP, out / "logs" / "warm.log", Lender(sharing_directory()))
    if (given := env.warm_parent()) is not None:
        parents.inherit(*given)
    return LocalBackend(warm=parents)
