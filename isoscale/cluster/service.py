"""The cluster service: what holds store, engine, desk and forecast together, from `open` to `close`.

Opening takes the state over (lock, term), looks at every job, and only then lets the engine decide. Closing leaves
every job running.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from isoscale.backends.host_id import machine_id
from isoscale.clock import Instant
from isoscale.cluster import faults
from isoscale.cluster.adoption import Found, adopt
from isoscale.cluster.auth import Caller, authenticate, first_token, is_good
from isoscale.cluster.bell import Bell
from isoscale.cluster.change_costs import RESCALE_S
from isoscale.cluster.cluster_history import ClusterHistory
from isoscale.cluster.desk import Desk
from isoscale.cluster.engine import Engine
from isoscale.cluster.forecast import Forecaster, Situation
from isoscale.cluster.growth import wanted
from isoscale.cluster.learning import Learner
from isoscale.cluster.lending import Lending, Reclaimed
from isoscale.cluster.links import Links
from isoscale.cluster.machine import make_cluster, pin_devices
from isoscale.cluster.outcome import outcome_of
from isoscale.cluster.picture import Picture
from isoscale.cluster.process import CoordinatorProcess
from isoscale.cluster.recording import load_standing
from isoscale.cluster.retrying import counts, verdict
from isoscale.cluster.settings import Settings, interval_of, one_policy
from isoscale.cluster.state_directory import StateDirectory, job_directory
from isoscale.cluster.store import Store
from isoscale.cluster.study import Study
from isoscale.cluster.values import JobRecord, NodeShown
from isoscale.cluster.warm import WarmKeeper
from isoscale.cluster.webhooks import Webhooks
from isoscale.cluster.whatif.tasks import Tasks
from isoscale.protocol.files import read_small
from isoscale.scheduling.controller import Controller
from isoscale.scheduling.driver import Driver, device_names
from isoscale.scheduling.driving import DeviceFailed, Happening, ReclaimAsked
from isoscale.scheduling.policy import policy_names
from isoscale.types import RayOptions

if TYPE_CHECKING:
    from isoscale.cluster.on_ray import RayDevices

__all__ = ["Configuration", "Service"]

_log = logging.getLogger(__name__)

_CANCEL_S = 10.0


def _backoff_s(failures: int) -> float:
    """1, 2, 4 seconds and so on; a full disk is tried every minute for as long as it is full."""
    return min(60.0, 2.0 ** min(failures - 1, 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    state: Path
    devices: str = "cpu*2"
    #: its devices are those of a Ray cluster, instead
    ray: RayOptions | None = None
    #: URL below which each job has its storage; "": jobs' directories are all that there is
    storage: str = ""
    #: each device runs on a core of its own
    pin: bool = False
    policy: str = "easyscale(room=true)"
    #: None: as suits the policy
    interval_s: float | None = None
    quotas: Mapping[str, int] = field(default_factory=dict)
    #: seconds that a new job trains on as few devices as it can before it may get more; 0: none
    trial_s: float = 0.0
    #: jobs of one tenant that are not over
    max_waiting: int = 10_000
    #: addresses that are told of every change of a job's state
    webhooks: tuple[str, ...] = ()
    #: of isoscale, for those who ask
    version: str = ""


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
        names = device_names(cluster)
        cores = pin_devices(names) if configuration.pin else {}
        label, policy = one_policy(configuration.policy)
        made = policy()
        interval = interval_of(made, configuration.interval_s)
        self._directory = StateDirectory(configuration.state)
        try:
            self.store = Store(self._directory.database, boot=machine_id(), now=self.now())
        except BaseException:
            self._directory.close()
            raise
        self.bell = Bell()
        self.links = Links()
        self._webhooks = Webhooks(self.store, configuration.state / "webhooks.json", configuration.webhooks)
        self.store.on_commit = self._ring
        controller = Controller(cluster, made, interval_s=interval, quotas=configuration.quotas, rescale_s=RESCALE_S)
        self._driver = Driver(controller, names, retry=self._may_retry, backoff_s=_backoff_s, counts=counts)
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
            cores=cores,
            on_returned=lambda returned: self._lending.on_returned(returned),
            on_broken=self._on_broken,
        )
        self._engine.trial_s = configuration.trial_s
        self._forecaster = Forecaster(self.store, self._engine, self._driver, cluster, policy, self.now)
        self._lending = Lending(self.store, self._engine, cluster, self.now)
        self.settings = Settings(
            self.store, self._engine, controller, self._forecaster, self.now, configuration.interval_s
        )
        self.tasks = Tasks()
        self.study = Study(state, self.now)
        self.history = ClusterHistory(self.store, self.picture, self.now)
        self.is_closing = False
        self._warm: WarmKeeper | None = None
        #: called when the service cannot go on
        self.on_end: Callable[[], None] = lambda: None
        first_token(self.store, state / "token", self.now())

    def open(self) -> None:
        """Look at what is there, then begin to decide."""
        self._tell_cluster()
        self._warm = WarmKeeper(self.state, self.state / "warm.log")
        self._engine.hands.variables = self._warm.variables()
        if self._ray is not None:
            self._engine.hands.variables |= self._ray.variables()
            self._engine.hands.settings, self._engine.hands.executors = self._ray.settings(), self._ray
        self._engine.hands.storage = self._configuration.storage
        self._adopt_all()
        self._engine.on_change = self._forecaster.wake
        self._engine.start()
        if self._ray is not None:
            self._ray.watch(self._on_gone, self._on_drain, self._on_come, self._wanted)
        self._forecaster.start()
        self.history.start()
        self._webhooks.start()

    def _tell_cluster(self) -> None:
        """What it has, for whoever reads the history."""
        nodes = [(node.name, node.kind, node.num_devices) for node in self._driver.controller.cluster.nodes]
        with self.store.write(now=self.now()) as tx:
            tx.event("cluster", nodes=nodes, policy=self._configuration.policy, quotas=dict(self._configuration.quotas))

    def _ring(self, event: int) -> None:
        self.bell.ring(event)
        self._webhooks.ring(event)

    def announce(self, url: str) -> None:
        self._directory.announce(url)

    def begin_closing(self) -> None:
        """Whoever waits for an answer is told that none comes."""
        self.is_closing = True
        self.bell.ring()
        self._lending.close()

    def close(self) -> None:
        """Jobs go on."""
        self.begin_closing()
        self.tasks.close()
        self.study.close()
        self._forecaster.close()
        self.history.close()
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
    def devices(self) -> str:
        return self._configuration.devices

    @property
    def max_waiting(self) -> int:
        return self._configuration.max_waiting

    @property
    def version(self) -> str:
        return self._configuration.version

    def picture(self) -> Picture:
        return self._engine.picture

    def is_well(self) -> bool:
        return self._engine.is_well

    def situation(self) -> Situation | None:
        """What a simulation from the live state begins with; None if the engine does not get to it."""
        return self._forecaster.situation()

    def learner(self, record: JobRecord) -> Learner:
        """What is known of a job's speed."""
        return self._engine.learner(record)

    def policies(self) -> Mapping[str, str]:
        return policy_names()

    def gauges(self) -> dict[str, float]:
        return {
            "turn_seconds": self._engine.turn_s,
            "term": self.store.term,
            "last_event": self.store.last_event(),
            "trial_failures": self._engine.trial_failures,
            **self._forecaster.gauges(),
        }

    def authenticate(self, secret: str) -> Caller | None:
        return authenticate(self.store, secret, self.now())

    def first_link(self) -> str:
        """The code of a link for whoever started the service: signs in with the token of STATE/token."""
        caller = self.authenticate(read_small(self.state / "token", 4096).decode("ascii", "replace").strip())
        return "" if caller is None else self.links.make(caller, self.now())

    def is_token_good(self, token: int) -> bool:
        one = self.store.token_with_id(token)
        return one is not None and is_good(one, self.now())

    # ---- devices ----

    def lend(self, caller: Caller, node: str, count: int, devices: tuple[str, ...] = ()) -> NodeShown:
        """Devices that were reclaimed are the service's again: so many, or these."""
        self._lending.lend(caller, node, count, devices)
        return next(one for one in self.desk.nodes(caller) if one.name == node)

    def reclaim(
        self, caller: Caller, node: str, count: int, within_s: float | None, *, force: bool = False, key: str = ""
    ) -> Reclaimed:
        """Returns when they are free. Raises UserError, ConflictError if they are not in time."""
        return self._lending.reclaim(caller, node, count, within_s, force=force, key=key)

    # ---- nodes that come and go ----

    def _on_gone(self, devices: list[str]) -> None:
        def write() -> None:
            with self.store.write(now=self.now()) as tx:
                tx.event("devices_gone", devices=devices)

        def lose(engine: Engine) -> list[Happening]:
            engine.persist(write)
            engine.away.update(devices)
            return [DeviceFailed(device, "its node is gone") for device in devices]

        self._engine.call(lose)

    def _on_drain(self, node: int, count: int, left_s: float) -> None:
        self._engine.post(ReclaimAsked(f"drain-{node}", node, count, self.now() + left_s))

    def _on_come(self) -> None:
        self.begins_again = True
        self.on_end()

    def _wanted(self) -> Mapping[str, int]:
        """In a thread of its own; asks the book only if somebody waits."""
        picture = self.picture()
        return wanted(self.store.live_jobs(), picture) if picture.queue else {}

    # ---- failing ----

    def _may_retry(self, job: str, error: str, failures: int) -> bool:
        live = self._engine.live.get(job)
        if live is None:
            return False
        live.verdict, live.failures = verdict(error, failures, live.record.submission.retries), failures
        return live.verdict.again

    def _on_broken(self, error: BaseException) -> None:
        self.is_closing = True
        self.on_end()

    # ---- beginning ----

    def _adopt_all(self) -> None:
        engine, now = self._engine, self.now()
        rebooted = self.store.boot_before not in ("", self.store.boot)
        devices = frozenset(name for node in engine.device_names for name in node)
        events: list[Happening] = []
        watched: list[tuple[JobRecord, int, CoordinatorProcess]] = []
        for record in self.store.live_jobs():
            found, process = self._look(record, rebooted)
            live = engine.know(record)
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
        instructions += self._driver.handle(*self._lending.resume(now), now=now)
        for record, attempt, process in watched:
            engine.hands.run_of(record.id).adopt(attempt, process)
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
        alive = () if dead else tuple(sorted({one.device for one in self._engine.hands.executors.live(directory)}))
        outcome = outcome_of(directory)
        return Found(outcome=outcome, is_up=process is not None, alive=alive), process


def ray_devices(options: RayOptions | None) -> RayDevices | None:
    """None: this machine's devices. Raises UserError."""
    if options is None:
        return None
    from isoscale.cluster.on_ray import RayDevices

    return RayDevices(options)
