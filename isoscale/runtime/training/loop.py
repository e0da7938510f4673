"""The training loop of one process: what a job, its loaders, its probe and its executor have in common.

Owns the step engine of `core`, the state that is kept, the loaders and the count of steps and epochs; carries facts to
a `Sink` and asks an `Elastic` at every place where executors may change. Scripts never see it: they get a `Job`, which
is a facade over it. Knows no file, no socket and no other process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType
from typing import TypeVar

import torch

from isoscale.batches import DECLARE, NOT_DECLARED, BatchChange, plan_text
from isoscale.core.context import ContextSwitch
from isoscale.core.engine import StepEngine
from isoscale.core.reduction.exchange import Exchange
from isoscale.core.rules import Turn
from isoscale.core.seal import Sealed
from isoscale.core.totals import Tally
from isoscale.core.tracked import TrackedModel
from isoscale.errors import UserError
from isoscale.runtime.training.batches import LiveBatches
from isoscale.runtime.training.elastic import Elastic
from isoscale.runtime.training.given_batch import forward_check
from isoscale.runtime.training.horizon import Horizon
from isoscale.runtime.training.loader import Loader, Place
from isoscale.runtime.training.noise import NoiseMeter
from isoscale.runtime.training.number_audit import NumberAudit
from isoscale.runtime.training.on_main import MainObjects
from isoscale.runtime.training.own_files import OwnFiles
from isoscale.runtime.training.probe import Probe
from isoscale.runtime.training.sink import Facts, Sink, Value
from isoscale.runtime.training.speed import Pace
from isoscale.runtime.training.state import JobState
from isoscale.runtime.training.state_audit import StateAudit
from isoscale.runtime.training.uses import data_facts
from isoscale.types import JobSpec

__all__ = ["TrainingLoop"]

AnyLoader = TypeVar("AnyLoader", bound=Loader)


class TrainingLoop:
    """One job in one process, from its set-up to the digest of its result."""

    def __init__(
        self, spec: JobSpec, exchange: Exchange, sink: Sink, *, device: str = "cpu", train_code: CodeType | None = None
    ) -> None:
        self.spec = spec
        self.sink = sink
        #: where this executor's tensors belong
        self.device = torch.device(device)
        self.engine = StepEngine(exchange, ContextSwitch(spec.workers, spec.seed), Turn())
        self.state = JobState()
        self.audit = StateAudit(self.state, train_code)
        self.numbers = NumberAudit(self.state, train_code)
        self.own_files = OwnFiles(lambda: self._stepping)
        self.horizon = Horizon(spec.until)
        self.pace = Pace()
        self.probe: Probe | None = None
        self.elastic: Elastic | None = None
        #: is told what each loader reads: its name, and size and fingerprint of the data
        self.on_data: Callable[[str, str], None] | None = None
        #: is told which batch sizes the script declares, which it has, and by what rule it changes
        self.on_batches: Callable[[tuple[int, ...], int, str], None] | None = None
        #: what an earlier life of the job did with its batch size, and how far it had come
        self.recorded_batches: tuple[tuple[BatchChange, ...], int] = ((), 0)
        self.all_loaders: dict[str, Loader] = {}
        self.training_loaders: dict[str, Loader] = {}
        #: of the loader whose batch size may change, if there is one
        self.batches: LiveBatches | None = None
        self.noise = NoiseMeter(self, spec.measure_noise) if spec.measure_noise else None
        #: this executor comes later, and what it does on the way has no effect
        self.approaching = False
        #: executors compare their state when so many steps are committed, as after every rescale
        self.audit_at = -1
        #: committed steps, and the present epoch
        self.step = 0
        self.epoch = 0
        #: why training ends before its time; "" as long as it does not
        self.stop_reason = ""
        #: of the result, once training is over
        self.digest = ""
        #: of the turns here in the present step
        self.batch_samples = 0
        #: of the present turn
        self.turn_samples = 0
        self._turn_stop = ""
        self._num_loaders = 0
        self._stepping = False
        self._place = Place("", 0, 0)
        self._last_commit = time.perf_counter()
        self.facts = Facts()
        self.main_objects = MainObjects(
            Path(spec.out),
            self.engine.turn,
            is_main=lambda: self.is_main,
            step=lambda: self.step,
            warn=lambda message: self.sink.warned(message=message),
        )

    @property
    def is_main(self) -> bool:
        """True on one executor at a time; which one may change."""
        return self.engine.exchange.index == 0 and not self.approaching

    @property
    def out(self) -> Path:
        return Path(self.spec.out)

    # ---- set-up ----

    def check_set_up(self, call: str) -> None:
        """Raises TurnRuleError once steps have begun."""
        if self._stepping:
            raise self.engine.turn.error(
                f"{call}() after the first step", "build models and keep state before the first loop over a loader"
            )

    def add_model(
        self,
        module: torch.nn.Module,
        *,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        bucket_cap_mb: float | None = None,
        keeps_own_buffers: bool = False,
    ) -> TrackedModel:
        self.check_set_up("job.model")
        model = TrackedModel(
            self.state.new_model_name(module),
            module,
            self.engine.turn,
            self.engine.exchange,
            order=self.spec.order,
            find_unused_parameters=find_unused_parameters,
            broadcast_buffers=broadcast_buffers,
            bucket_cap_mb=bucket_cap_mb,
            keeps_own_buffers=keeps_own_buffers,
        )
        if self.spec.batch:
            check = forward_check(self.spec.batch, self.engine.turn, lambda: self.turn_samples)
            module.register_forward_pre_hook(check, with_kwargs=True)
        self.state.models[model.name] = model
        self.engine.models.append(model)
        return model

    def new_loader_name(self, sort: str) -> str:
        self._num_loaders += 1
        return f"{sort} {self._num_loaders}"

    def add_loader(self, loader: AnyLoader, data: object, *, train: bool) -> AnyLoader:
        """`data` is what it reads."""
        if self.on_data is not None and (facts := data_facts(data)):
            self.on_data(loader.name, facts)
        self.all_loaders[loader.name] = loader
        if train:
            self.training_loaders[loader.name] = loader
        return loader

    @property
    def samples(self) -> int:
        """Samples read in committed training steps, of all logical workers."""
        return sum(loader.num_samples for loader in self.training_loaders.values())

    def attach(self, probe: Probe) -> None:
        """Let a probe watch from here on."""
        self.probe, self.engine.on_turn_end = probe, probe.turn_ends

    # ---- where it begins and ends ----

    def first_epoch(self) -> int | None:
        """Where an executor that comes later has to go on; None for the beginning."""
        return self.elastic.hold(self) if self.elastic is not None else None

    def stop(self, reason: str) -> None:
        """At once outside turns; after the present step, for all, in a turn."""
        if self.engine.turn.logical_rank is None:
            self.stop_reason = self.stop_reason or reason
        else:
            self._turn_stop = reason

    def at_end(self) -> bool:
        return bool(self.stop_reason) or self.horizon.is_reached(self.step)

    def is_at_last_place(self) -> bool:
        """Is no step to come, as far as the script and the command line have said how many there are?"""
        return self.at_end() or (self.step > 0 and self.step == self._total_steps())

    # ---- a step, called by loaders ----

    def arrive(self, loader: Loader) -> None:
        """At `next()` of a training loader. May change everything, the loader's place and totals included."""
        if self.elastic is not None:
            self.elastic.arrive(self, loader)

    def before_step(self, place: Place, steps_here: int) -> None:
        """At `next()` of a training loader, with the last step's outside code done: the place for audits.

        `steps_here` are those of the pass that this process has done.
        """
        if not self._stepping and self.spec.batch_plan and self.batches is None:
            raise UserError(
                field="--batch-plan",
                value=plan_text(self.spec.batch_plan),
                problem=NOT_DECLARED,
                remedy=DECLARE,
            )
        self._stepping, self._place = True, place
        if self.noise is not None:
            self.noise.begin(self.step + 1)
        self.main_objects.settle()
        due = self._is_audit_due()
        after_rescale = self.step == self.audit_at and not self.engine.alone
        self.audit.take(compare=due or after_rescale, whole=due and self.is_main)
        if due:
            self.engine.watch_attributes = True
        self.audit.check_variables(renew=due or self.step == 1)
        self.numbers.at_step(steps_here, due=due)

    def audit_after_recovery(self, newest: int) -> None:
        """Some had committed step `newest` before it, others do in it: all compare their state one step later.

        One that an earlier rescale wants, and that those who were ahead have begun, is given up: the others have not.
        """
        self.audit_at = newest + 1
        if not self._is_audit_due():
            self.audit.digests = ""

    def _is_audit_due(self) -> bool:
        every = self.spec.audit_every
        return every > 0 and self.step > 0 and self.step % every == 0

    def position(self, where: str, *, training: bool) -> str:
        """What must be equal on all executors when a step begins."""
        if not training:
            return f"evaluation {where}, epoch {self.epoch}, step {self.step}"
        rates = self.state.learning_rates()
        return f"{where}, epoch {self.epoch}, step {self.step + 1}, learning rates {rates}"

    def commit(self, tally: Tally) -> Sealed:
        """All local turns of a training step are done: exchange and seal."""
        self.pace.turns_end()
        if self.noise is not None and self.noise.is_on:
            tally = self.noise.told(tally)
        word = None if self.batches is None else self.batches.offer()
        return self.engine.finish(
            tally, digest=self.audit.digests, stop=bool(self._turn_stop), ready=self._is_ready(), word=word
        )

    def committed(self, sealed: Sealed) -> Sealed:
        """A training step is sealed, here or, while this executor recovered, by the others."""
        self.audit.check(sealed, self.engine.exchange)
        if self.audit.whole:
            self.sink.audited(step=self.step, digest=self.audit.whole)
        noise_scale = None if self.noise is None else self.noise.sealed(sealed.values)
        if self.batches is not None:
            self.batches.sealed(sealed)
        self.step += 1
        self.pace.sealed(len(self.engine.ranks))
        self._tell_sealed(sealed)
        if sealed.stop:
            self.stop_reason = self._turn_stop or "another logical worker asked for it"
        now = time.perf_counter()
        self.tell(
            partial(
                self.sink.step,
                step=self.step,
                epoch=self.epoch,
                values=sealed.values,
                seconds=now - self._last_commit,
                samples=self.batch_samples * self.spec.workers // max(1, len(self.engine.ranks)),
                total=self._total_steps(),
                place=self._place,
                noise_scale=noise_scale,
                noise_skipped=0 if self.noise is None else self.noise.skipped_here,
            )
        )
        self.main_objects.tell(self.step, sealed.values.means, is_step=True)
        self._last_commit = now
        if self.probe is not None:
            self.probe.reduced(self.step)
        return sealed

    def _total_steps(self) -> int:
        place = self._place
        return self.horizon.total_steps(place.of) if self.batches is None else self.batches.total_steps(place)

    def commit_evaluation(self, tally: Tally) -> Sealed:
        """All local turns of an evaluation step are done."""
        self.pace.turns_end()
        return self.engine.finish(tally, digest="", stop=False, ready=self._is_ready())

    def committed_evaluation(self, sealed: Sealed) -> Sealed:
        """A step is sealed that does not count: one of an evaluation, or one without turns."""
        self.pace.outside()
        self._tell_sealed(sealed)
        return sealed

    def _is_ready(self) -> bool:
        return self.elastic is not None and self.elastic.ready(self)

    def _tell_sealed(self, sealed: Sealed) -> None:
        if self.elastic is not None:
            self.elastic.sealed(self, sealed)

    def log(self, values: dict[str, Value]) -> None:
        """Of `job.log`."""
        self.tell(partial(self.sink.logged, step=self.step, epoch=self.epoch, values=values))
        if not self.approaching:
            self.main_objects.tell(self.step, values, is_step=False)

    def tell(self, fact: Callable[[], None]) -> None:
        """A fact that every executor knows, as a call of the sink."""
        if not self.approaching:
            self.facts.tell(fact, is_main=self.is_main)

    # ---- the end, called by whoever runs the training function ----

    def finish(self) -> str:
        """After the training function returned: a last audit over all executors, and the digest of the result."""
        self.engine.check_not_broken()
        self.engine.check_no_stray_backward()
        self.audit.take(compare=True, whole=False)
        sealed = self.engine.seal_end(f"end of training, step {self.step}", self.audit.digests)
        self.audit.check(sealed, self.engine.exchange)
        if self.is_main:
            self.tell_left()
        self.main_objects.tell_left()
        if self.probe is not None:
            self.probe.ended(self.step)
        return self.state.digest()

    def tell_left(self) -> None:
        """The first executor may be gone before it could tell the last facts, and none are to come."""
        if not self.approaching:
            self.facts.tell_left()

    def close(self) -> None:
        """Modules are the script's again, without hooks."""
        for model in self.state.models.values():
            model.close()
