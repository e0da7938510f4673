"""The cluster service: what holds store, engine, desk and forecast together, from `open` to `close`.

Opening takes the state over (lock, term), looks at every job, and only then lets the engine decide. Closing leaves
every job running.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from isoscale import limits
from isoscale.backends.host_id import machine_id
from isoscale.clock import Instant
from isoscale.cluster import faults
from isoscale.cluster.adoption import Found, adopt
from isoscale.cluster.auth import Caller, ConflictError, TooManyError, authenticate, first_token, is_good
from isoscale.cluster.bell import Bell
from isoscale.cluster.desk import Desk, node_named
from isoscale.cluster.engine import Engine
from isoscale.cluster.forecast import Forecaster
from isoscale.cluster.live import Live
from isoscale.cluster.outcome import outcome_of
from isoscale.cluster.picture import Picture
from isoscale.cluster.process import CoordinatorProcess
from isoscale.cluster.recording import load_standing
from isoscale.cluster.state_directory import StateDirectory, job_directory
from isoscale.cluster.store import Store
from isoscale.cluster.values import JobRecord, NodeShown
from isoscale.cluster.warm import WarmKeeper
from isoscale.cluster.webhooks import Webhooks
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet, check_kind
from isoscale.scheduling.controller import Controller
from isoscale.scheduling.driver import Driver, device_names
from isoscale.scheduling.driving import (
    DeviceFailed,
    DeviceRepaired,
    DevicesLent,
    Happening,
    ReclaimAsked,
    ReturnDevices,
)
from isoscale.scheduling.policy import Policy, policy_names
from isoscale.scheduling.state import Cluster, Node
from isoscale.sim.run import parse_policies
from isoscale.types import RayOptions

if TYPE_CHECKING:
    from isoscale.cluster.on_ray import RayDevices

__all__ = ["Configuration", "Reclaimed", "Service", "make_cluster", "one_policy"]

_log = logging.getLogger(__name__)

#: seconds between decisions of policies that watch time, unless the operator says otherwise
_INTERVAL_S = 1.0
#: what a change of devices costs a job, before any was measured
_RESCALE_S = 0.5
#: tries of a job whose coordinator dies again and again without a step in between
_DEATHS = 5
_RECLAIM_PATIENCE_S = 60.0
_CANCEL_S = 10.0
_LEND_S = 10.0
_MAX_RECLAIMS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    state: Path
    devices: str = "cpu*2"
    #: its devices are those of a Ray cluster, instead
    ray: RayOptions | None = None
    policy: str = "easyscale"
    #: None: as suits the policy
    interval_s: float | None = None
    quotas: Mapping[str, int] = field(default_factory=dict)
    #: jobs of one tenant that are not over
    max_waiting: int = 10_000
    #: addresses that are told of every change of a job's state
    webhooks: tuple[str, ...] = ()
    #: of isoscale, for those who ask
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    devices: tuple[str, ...]
    seconds: float
    #: work that was thrown away, in seconds of training
    abandoned_s: float
    late: bool


class Service:
    def __init__(self, configuration: Configuration) -> None:
        """Takes the state over. Raises UserError."""
        self._configuration = configuration
        instant = Instant()
        self.now: Callable[[], float] = instant.unix_now
        self._ray = ray_devices(configuration.ray)
        cluster = make_cluster(configuration.devices) if self._ray is None else self._ray.cluster()
        #: it ends so that another one begins, with devices that this one does not know
        self.begins_again = False
        label, policy = one_policy(configuration.policy)
        made = policy()
        interval = configuration.interval_s
        if interval is None and (made.interval_s > 0 or made.watches_time):
            interval = _INTERVAL_S
        self._directory = StateDirectory(configuration.state)
        try:
            self.store = Store(self._directory.database, boot=machine_id(), now=self.now())
        except BaseException:
            self._directory.close()
            raise
        self.bell = Bell()
        self._webhooks = Webhooks(self.store, configuration.state / "webhooks.json", configuration.webhooks)
        self.store.on_commit = self._ring
        controller = Controller(cluster, made, interval_s=interval, quotas=configuration.quotas, rescale_s=_RESCALE_S)
        names = device_names(cluster)
        self._driver = Driver(controller, names, retry=self._may_retry, backoff_s=lambda n: min(60.0, 2.0 ** (n - 1)))
        state = configuration.state
        self.desk = Desk(
            self.store,
            state,
            now=self.now,
            picture=self.picture,
            tell=lambda what, job: self._engine.tell(what, job),
            max_waiting=configuration.max_waiting,
        )
        self._engine = Engine(
            self.store,
            state,
            self._driver,
            names,
            self.desk.codes,
            now=self.now,
            policy=label,
            quotas=configuration.quotas,
            on_returned=self._on_returned,
            on_broken=self._on_broken,
        )
        self._forecaster = Forecaster(self.store, self._engine, self._driver, cluster, policy, self.now)
        self._reclaims: dict[str, Future[ReturnDevices]] = {}
        self._reclaiming = threading.Lock()
        self.is_closing = False
        self._warm: WarmKeeper | None = None
        #: called when the service cannot go on
        self.on_end: Callable[[], None] = lambda: None
        first_token(self.store, state / "token", self.now())

    def open(self) -> None:
        """Look at what is there, then begin to decide."""
        self._warm = WarmKeeper(self.state, self.state / "warm.log")
        self._engine.variables = self._warm.variables()
        if self._ray is not None:
            self._engine.variables |= self._ray.variables()
            self._engine.settings, self._engine.executors = self._ray.settings(), self._ray
        self._adopt_all()
        self._engine.on_change = self._forecaster.wake
        self._engine.start()
        if self._ray is not None:
            self._ray.watch(self._on_gone, self._on_drain, self._on_come)
        self._forecaster.start()
        self._webhooks.start()

    def _ring(self, event: int) -> None:
        self.bell.ring(event)
        self._webhooks.ring(event)

    def announce(self, url: str) -> None:
        self._directory.announce(url)

    def begin_closing(self) -> None:
        """Whoever waits for an answer is told that none comes."""
        self.is_closing = True
        self.bell.ring()
        with self._reclaiming:
            waiting = list(self._reclaims.values())
        for answer in waiting:
            with contextlib.suppress(InvalidStateError):
                answer.set_exception(ConflictError("the service ends before the devices are free; ask the next one"))

    def close(self) -> None:
        """Jobs go on."""
        self.begin_closing()
        self._forecaster.close()
        self._engine.close()
        self._webhooks.close()
        if self._warm is not None:
            self._warm.close()
        if self._ray is not None:
            self._ray.close()
        self.store.close()
        self._directory.close()

    # ---- looking ----

    @property
    def state(self) -> Path:
        return self._configuration.state

    @property
    def version(self) -> str:
        return self._configuration.version

    def picture(self) -> Picture:
        return self._engine.picture

    def is_well(self) -> bool:
        return self._engine.is_well

    def policies(self) -> Mapping[str, str]:
        return policy_names()

    def gauges(self) -> dict[str, float]:
        return {
            "turn_seconds": self._engine.turn_s,
            "term": self.store.term,
            "last_event": self.store.last_event(),
            **self._forecaster.gauges(),
        }

    def authenticate(self, secret: str) -> Caller | None:
        return authenticate(self.store, secret, self.now())

    def is_token_good(self, token: int) -> bool:
        one = self.store.token_with_id(token)
        return one is not None and is_good(one, self.now())

    # ---- devices ----

    def lend(self, caller: Caller, node: str, count: int) -> NodeShown:
        """Devices that were reclaimed are the service's again."""
        number = node_named(self.picture(), node)
        limits.within(count, "COUNT", limits.EXECUTORS)
        done: Future[None] = Future()

        def give(engine: Engine) -> list[Happening]:
            """In the engine's thread: two who lend at once, or one while devices come back, do so in order."""
            # In the order of the driver, which gives back the first ones: names sort otherwise from the tenth on.
            away = [device for device in engine.device_names[number] if device in engine.away]
            if count > len(away):
                problem, remedy = f"{len(away)} of its devices are away", "give at most as many; see isoscale devices"
                done.set_exception(UserError(field="COUNT", value=count, problem=problem, remedy=remedy))
                return []
            given = away[:count]
            with self.store.write(now=self.now(), by=caller.name) as tx:
                tx.set_away(node, away[count:])
                tx.event("devices_lent", node=node, devices=given)
            engine.away.difference_update(given)
            done.set_result(None)
            return self._returning(number, given)

        self._engine.call(give)
        try:
            done.result(_LEND_S)
        except FutureTimeout:
            raise ConflictError(f"{node}: the service does not get to it; see isoscale devices") from None
        return next(one for one in self.desk.nodes(caller) if one.name == node)

    def _returning(self, node: int, devices: list[str]) -> list[Happening]:
        """In the driver's words: those that were away at the start count as broken, others as given back."""
        broken = [device for device in devices if device in self._away_at_boot]
        self._away_at_boot.difference_update(broken)
        events: list[Happening] = [DeviceRepaired(device) for device in broken]
        rest = len(devices) - len(broken)
        return [*events, DevicesLent(node, rest)] if rest else events

    def reclaim(
        self, caller: Caller, node: str, count: int, within_s: float | None, *, force: bool = False
    ) -> Reclaimed:
        """Returns when they are free. Raises UserError, ConflictError if they are not in time."""
        number = node_named(self.picture(), node)
        shown = self.picture().nodes[number]
        ours = len(shown.devices) - len(shown.away)
        limits.within(count, "COUNT", limits.EXECUTORS)
        if count > ours:
            raise UserError(
                field="COUNT",
                value=count,
                problem=f"{node} has {ours} that are the service's",
                remedy="give at most as many",
            )
        if within_s is not None:
            limits.within(within_s, "within", limits.Range(0.1, 86_400.0))
        if within_s is not None and not force and (loss := self._engine.loss(number, ours - count, within_s)):
            raise ConflictError(f"{node}: {loss}; give more time, or --force to consent")
        name, begun = uuid.uuid4().hex[:12], self.now()
        deadline = math.inf if within_s is None else begun + within_s
        answer: Future[ReturnDevices] = Future()
        with self._reclaiming:
            if self.is_closing:
                raise ConflictError("the service ends; ask the next one")
            if len(self._reclaims) >= _MAX_RECLAIMS:  # each has a thread, of which answers to others need some
                raise TooManyError(f"{_MAX_RECLAIMS} calls wait for devices already; wait until some have theirs")
            self._reclaims[name] = answer
        with self.store.write(now=begun, by=caller.name) as tx:
            tx.event("reclaim_asked", node=node, count=count, within_s=within_s, reclaim=name)
        self._engine.post(ReclaimAsked(name, number, count, deadline))
        try:
            returned = answer.result(None if within_s is None else within_s + _RECLAIM_PATIENCE_S)
        except FutureTimeout:
            raise ConflictError(
                f"{node}: {count} devices are not free after {self.now() - begun:.0f} s; see isoscale devices"
            ) from None
        finally:
            with self._reclaiming:
                self._reclaims.pop(name, None)
        return Reclaimed(
            devices=returned.devices,
            seconds=round(self.now() - begun, 6),
            abandoned_s=returned.abandoned_s,
            late=returned.is_late,
        )

    def _on_returned(self, returned: ReturnDevices) -> None:
        """In the engine's thread: on record before anybody is told."""
        away = self._engine.away
        with self.store.write(now=self.now()) as tx:
            for node, names in zip(self._driver.controller.cluster.nodes, self._engine.device_names, strict=True):
                gone = sorted(away & set(names))
                if set(gone) & set(returned.devices):
                    tx.set_away(node.name, gone)
            tx.event("devices_away", devices=returned.devices, reclaim=returned.reclaim)
        with self._reclaiming:
            answer = self._reclaims.get(returned.reclaim)
        if answer is not None:
            with contextlib.suppress(InvalidStateError):
                answer.set_result(returned)

    # ---- nodes that come and go ----

    def _on_gone(self, devices: list[str]) -> None:
        def lose(engine: Engine) -> list[Happening]:
            with self.store.write(now=self.now()) as tx:
                tx.event("devices_gone", devices=devices)
            engine.away.update(devices)
            return [DeviceFailed(device, "its node is gone") for device in devices]

        self._engine.call(lose)

    def _on_drain(self, node: int, count: int, left_s: float) -> None:
        self._engine.post(ReclaimAsked(f"drain-{uuid.uuid4().hex[:8]}", node, count, self.now() + left_s))

    def _on_come(self) -> None:
        self.begins_again = True
        self.on_end()

    # ---- failing ----

    def _may_retry(self, job: str, error: str, failures: int) -> bool:
        """A coordinator that died is followed by another one; an error of the script's own counts against --retries."""
        live = self._engine.live.get(job)
        if live is None or error == "input":
            return False
        if error in ("lost", "coordinator died"):
            return failures <= max(_DEATHS, live.record.submission.retries)
        return failures <= live.record.submission.retries

    def _on_broken(self, error: BaseException) -> None:
        self.is_closing = True
        self.on_end()

    # ---- beginning ----

    def _adopt_all(self) -> None:
        engine, now = self._engine, self.now()
        rebooted = self.store.boot_before not in ("", self.store.boot)
        devices = frozenset(name for node in engine.device_names for name in node)
        away = {device for gone in self.store.away().values() for device in gone} & devices
        self._away_at_boot = set(away)
        engine.away.update(away)
        events: list[Happening] = []
        watched: list[tuple[JobRecord, int, CoordinatorProcess]] = []
        for record in self.store.live_jobs():
            found, process = self._look(record, rebooted)
            live = engine.live[record.id] = Live(record, engine.learner(record))
            live.outcome, live.reached = found.outcome, record.step
            saved = load_standing(record.standing)
            if saved is None and not engine.admit(record):
                if record.wanted == "cancel":
                    engine.cancel_waiting(record.id)
                continue  # it waits for others
            live.is_offered = True
            adopted = adopt(record, saved, found, engine.submission(live), devices, now + _CANCEL_S)
            if adopted.over:
                engine.finish_found(record.id)
                continue
            if saved is None:
                pass
            elif not found.is_up:
                engine.close_attempt(record.id, saved.attempt, found.outcome)
            elif process is not None:
                watched.append((record, saved.attempt, process))
            events += adopted.events
        instructions = self._driver.handle(*events, now=now)
        # After jobs: what they hold goes back when they have let go of it.
        instructions += self._driver.handle(*(DeviceFailed(device, "away") for device in sorted(away)), now=now)
        for record, attempt, process in watched:
            engine.run_of(record.id).adopt(attempt, process)
        faults.reached("adopted")
        engine.carry_out(instructions, now)
        _log.info("term %d: %d jobs taken over, %d of them running", self.store.term, len(engine.live), len(watched))

    def _look(self, record: JobRecord, rebooted: bool) -> tuple[Found, CoordinatorProcess | None]:
        directory = job_directory(self.state, record.id)
        attempt = self.store.open_attempt(record.id)
        process = None
        if attempt is not None and attempt.pid and not rebooted and attempt.boot == self.store.boot:
            process = CoordinatorProcess(attempt.pid, attempt.born)
            if not process.is_alive():
                process.close()
                process = None
        # Of this machine nothing has outlived a boot; other machines know nothing of it.
        dead = rebooted and self._ray is None
        alive = () if dead else tuple(sorted({one.device for one in self._engine.executors.live(directory)}))
        outcome = outcome_of(directory)
        return Found(outcome=outcome, is_up=process is not None, alive=alive), process


def ray_devices(options: RayOptions | None) -> RayDevices | None:
    """None: this machine's devices. Raises UserError."""
    if options is None:
        return None
    from isoscale.cluster.on_ray import RayDevices

    return RayDevices(options)


def make_cluster(devices: str) -> Cluster:
    """This machine: a node for each kind. Raises UserError."""
    found = DeviceSet.parse(devices)
    for kind in found.kinds:
        check_kind(kind)
    counts = found.counts()
    alone = len(counts) == 1
    return Cluster(
        nodes=tuple(
            Node(name="local" if alone else f"local-{kind}", kind=kind, num_devices=count)
            for kind, count in counts.items()
        )
    )


def one_policy(text: str) -> tuple[str, Callable[[], Policy]]:
    """Raises UserError for a policy that there is not, that needs to know the future, or for several."""
    found = list(parse_policies(text))
    if len(found) != 1:
        raise UserError(field="--policy", value=text, problem="several policies", remedy="give one")
    label, make = found[0]
    if make().oracle:
        raise UserError(
            field="--policy",
            value=text,
            problem="needs to know the future, as only a simulator does",
            remedy="give another",
        )
    return label, make
