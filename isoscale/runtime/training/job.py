"""The training API: `Job`, what a training function gets.

A `Job` is what the training function gets. It joins the step engine of `core`, the loaders of `data`
and a `Sink` that carries facts out of the process (to the coordinator, or to the console when the
script runs alone). It never learns how many executors there are.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, Protocol, TypeVar, Unpack

import torch
from torch.utils.data import Dataset

from isoscale.core.context import ContextSwitch
from isoscale.core.engine import StepEngine
from isoscale.core.reduction.exchange import Exchange
from isoscale.core.rules import Turn
from isoscale.core.seal import Sealed, short_hash
from isoscale.core.totals import Combined, Tally
from isoscale.core.tracked import TrackedModel
from isoscale.core.unkept import VariableWatch, script_variables
from isoscale.data.loader import LogicalLoaders
from isoscale.data.readers import Source
from isoscale.errors import AuditError, UserError
from isoscale.runtime.training.loader import Loader, MapLoader, Place
from isoscale.runtime.training.probe import Probe
from isoscale.runtime.training.speed import Pace
from isoscale.runtime.training.state import JobState, atomic_save
from isoscale.runtime.training.stream import StreamLoader, StreamOptions, make_stream
from isoscale.runtime.training.uses import data_facts
from isoscale.types import JobSpec

__all__ = ["Elastic", "Job", "Sink", "step_loss"]

Kept = TypeVar("Kept")
AnyLoader = TypeVar("AnyLoader", bound=Loader)
#: facts that an executor could tell if the first one is lost
_REMEMBERED = 256
Value = float | int | str | bool | None


class Sink(Protocol):
    """Carries facts out of the process. Called on the first executor only; never blocks."""

    def step(
        self, *, step: int, epoch: int, values: Combined, seconds: float, samples: int, total: int, place: Place
    ) -> None: ...

    def logged(self, *, step: int, epoch: int, values: dict[str, Value]) -> None: ...

    def audited(self, *, step: int, digest: str) -> None: ...

    def streamed(self, *, event: str, stream: str, step: int, fields: dict[str, Any]) -> None:
        """Partitions of a stream were given out, or a pass over it ended."""


class Elastic(Protocol):
    """Whoever may change, while the job trains, which executors it has. None of it while a script runs alone."""

    def hold(self, job: Job) -> int | None:
        """On the way to the first step: wait for a place to begin at; its epoch, or None to begin at the beginning."""

    def arrive(self, job: Job, loader: Loader) -> None:
        """At `next()` of a training loader, its end included: the only place where executors join, leave, move logical
        workers and write checkpoints."""

    def ready(self, job: Job) -> bool:
        """About to seal a step: could this executor go over to the next generation after it?"""

    def sealed(self, job: Job, sealed: Sealed) -> None:
        """A step, of training or evaluation, is sealed."""


class Job:
    """One training job as the training function sees it."""

    def __init__(
        self, spec: JobSpec, exchange: Exchange, sink: Sink, *, device: str = "cpu", train_code: CodeType | None = None
    ) -> None:
        self._spec = spec
        self._sink = sink
        self._train_code = train_code
        self._engine: StepEngine = StepEngine(exchange, ContextSwitch(spec.workers, spec.seed), Turn())
        self._state = JobState()
        self._loaders = 0
        self._limit = 0
        self._stepping = False
        self._stop_reason = ""
        self._turn_stop = ""
        self._batch_samples = 0
        self._place = Place("", 0, 0)
        self._num_epochs = 0
        self._digest = ""
        #: the state's digest at the place of the audit: by the time all agree, turns have changed buffers
        self._audited = ""
        self._watch: VariableWatch | None = None
        self._probe: Probe | None = None
        self._last_commit = time.perf_counter()
        self._elastic: Elastic | None = None
        self._untold: deque[Callable[[], None]] = deque(maxlen=_REMEMBERED)
        #: this executor comes later, and what it does on the way has no effect
        self._approaching = False
        self._pace = Pace()
        #: is told what each loader reads: its name, and size and fingerprint of the data
        self._on_data: Callable[[str, str], None] | None = None
        self._all_loaders: dict[str, Loader] = {}
        self._training_loaders: dict[str, Loader] = {}
        #: executors compare their state when so many steps are committed, as after every rescale
        self.audit_at = -1
        #: committed steps, and the present epoch
        self.step = 0
        self.epoch = 0
        #: where this executor's tensors belong: model.to(job.device)
        self.device = torch.device(device)

    # ---- set-up ----

    @property
    def num_logical_workers(self) -> int:
        return self._spec.workers

    @property
    def state(self) -> dict[str, Any]:
        """Plain values that are kept with the job (best metric, patience)."""
        return self._state.values

    def model(
        self,
        module: torch.nn.Module,
        *,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        bucket_cap_mb: float | None = None,
    ) -> Any:
        """Track a model as DDP would; returns the module itself. Call once per model, before the first step."""
        self._set_up_only("job.model")
        name = self._state.new_model_name(module)
        model = TrackedModel(
            name,
            module,
            self._engine.turn,
            self._engine.exchange,
            order=self._spec.order,
            find_unused_parameters=find_unused_parameters,
            broadcast_buffers=broadcast_buffers,
            bucket_cap_mb=bucket_cap_mb,
        )
        self._state.add_model(name, model)
        self._engine.models.append(model)
        return module

    def keep(self, name: str, thing: Kept) -> Kept:
        """Make an object with `state_dict`/`load_state_dict` part of the job's state; returns it."""
        self._set_up_only("job.keep")
        self._state.keep(name, thing)
        return thing

    def keep_per_worker(self, name: str, factory: Callable[..., Any]) -> Any:
        """One object per logical worker, switched with it. `factory` takes nothing or the logical rank.

        A `torch.Generator` comes back as a Generator; anything else (a dict, or an object with
        `state_dict`/`load_state_dict`) as a stand-in for the object of the worker whose turn it is.
        """
        self._set_up_only("job.keep_per_worker")
        return self._engine.contexts.add_per_worker(name, factory)

    def loader(
        self, dataset: Dataset[Any], *, batch_size: int = 1, shuffle: bool = False, train: bool = True, **options: Any
    ) -> MapLoader:
        """Global steps over a map-style data set; `batch_size` is per logical worker, as in DDP.

        With `train=False` every sample comes once, in order, without padding. Further options are DataLoader's.
        """
        loaders = LogicalLoaders(
            dataset,
            num_logical_workers=self._spec.workers,
            seed=self._spec.seed,
            batch_size=self._spec.batch or batch_size if train else batch_size,
            shuffle=shuffle,
            train=train,
            options=options,
        )
        self._loaders += 1
        name = f"loader {self._loaders}"
        self._tell_data(name, dataset)
        return self._add(MapLoader(self, name, loaders, train=train), train=train)

    def stream(
        self, source: Source | Dataset[Any], *, batch_size: int = 1, **options: Unpack[StreamOptions]
    ) -> StreamLoader:
        """Global steps over a source of unknown size (`isoscale.text_lines` and its kind), cut into partitions.

        Partitions go to logical workers as they run dry, every sample is used once per epoch, and an epoch ends for
        all at the same step. Options are `shuffle_partitions` (True), `shuffle_buffer` (0 samples), `tail`
        ("partial", "drop" or "carry"), `transform` (per sample, under its worker's random streams), `collate_fn`,
        `ledger`, `train`, and DataLoader's `num_workers`, `prefetch_factor`, `worker_init_fn`, `timeout`.
        """
        self._loaders += 1
        batch = self._spec.batch or batch_size if options.get("train", True) else batch_size
        loader = make_stream(self, f"stream {self._loaders}", source, batch, options)
        self._tell_data(loader.name, source)
        return self._add(loader, train=options.get("train", True))

    def _add(self, loader: AnyLoader, *, train: bool) -> AnyLoader:
        self._all_loaders[loader.name] = loader
        if train:
            self._training_loaders[loader.name] = loader
        return loader

    # ---- progress ----

    def epochs(self, count: int) -> Iterator[int]:
        """Epoch numbers 0 .. count-1; ends early when the job stops."""
        self._num_epochs = count
        epoch = self._first_epoch()
        while epoch < count and not self._at_end():
            self.epoch = epoch
            yield epoch
            epoch += 1

    def steps(self, count: int) -> Iterator[int]:
        """Epoch numbers until `count` steps are committed; the training loader ends in mid-epoch if need be."""
        self._limit = count
        epoch = self._first_epoch()
        while not self._at_end():
            self.epoch, before = epoch, self.step
            yield epoch
            if self.step == before:
                raise UserError(
                    field="job.steps",
                    value=count,
                    problem="a pass of its loop committed no step",
                    remedy="iterate a training loader in the body of 'for epoch in job.steps(n):'",
                )
            epoch += 1

    def stop(self, reason: str = "asked by the script") -> None:
        """End training: at once outside turns, after the present step for all when called in a turn."""
        if self._engine.turn.logical_rank is None:
            self._stop_reason = self._stop_reason or reason
        else:
            self._turn_stop = reason

    # ---- side effects ----

    @property
    def is_main(self) -> bool:
        """True on one executor at a time; which one may change."""
        return self._engine.exchange.index == 0 and not self._approaching

    @property
    def out(self) -> Path:
        return Path(self._spec.out)

    def log(self, **values: Any) -> None:
        """Report values that are equal on all executors (accuracy, learning rate); written once."""
        plain = {name: _plain_value(name, value) for name, value in values.items()}
        self._tell(partial(self._sink.logged, step=self.step, epoch=self.epoch, values=plain))

    def save(self, name: str, thing: Any) -> None:
        """Write `thing` to `job.out / name` with torch.save: atomically, once."""
        target = self.out / name
        if not target.resolve().is_relative_to(self.out.resolve()):
            raise UserError(
                field="job.save(name)",
                value=name,
                problem="lies outside the job's directory",
                remedy="use a plain name",
            )
        if self.is_main:
            atomic_save(thing, target)

    def _tell_data(self, loader: str, data: object) -> None:
        if self._on_data is not None and (facts := data_facts(data)):
            self._on_data(loader, facts)

    # ---- called by loaders ----

    def _start_streams(self) -> None:
        self._engine.contexts.start()

    def _tell(self, fact: Callable[[], None]) -> None:
        """A fact that every executor knows is told by the first one. The others remember it for a while: it may be
        gone before it could tell, and then its successor does."""
        if self._approaching:
            return
        if not self.is_main:
            self._untold.append(fact)
            return
        while self._untold:
            self._untold.popleft()()
        fact()

    def _first_epoch(self) -> int:
        """0, or where an executor that comes later has to go on."""
        return (self._elastic.hold(self) if self._elastic is not None else None) or 0

    def _arrive(self, loader: Loader) -> None:
        if self._elastic is not None:
            self._elastic.arrive(self, loader)

    def _at_end(self) -> bool:
        limits = [limit for limit in (self._limit, self._spec.until) if limit]
        return bool(self._stop_reason) or any(self.step >= limit for limit in limits)

    def _before_step(self, place: Place) -> None:
        """At `next()` of a training loader, with the last step's outside code done: the place for audits."""
        self._stepping = True
        self._place = place
        every = self._spec.audit_every
        due = every > 0 and self.step > 0 and self.step % every == 0
        after_rescale = self.step == self.audit_at and not self._engine.alone
        self._digest = self._audit_digest() if due or after_rescale else ""
        self._audited = self._state.digest() if due and self.is_main else ""
        if due:
            self._engine.watch_attributes = True
        self._check_variables(renew=due or self.step == 1)

    def _position(self, where: str, *, training: bool) -> str:
        """What must be equal on all executors when a step begins."""
        if not training:
            return f"evaluation {where}, epoch {self.epoch}, step {self.step}"
        rates = self._state.learning_rates()
        return f"{where}, epoch {self.epoch}, step {self.step + 1}, learning rates {rates}"

    def _is_ready(self) -> bool:
        return self._elastic is not None and self._elastic.ready(self)

    def _commit(self, tally: Tally) -> Sealed:
        self._pace.turns_end()
        return self._engine.finish(tally, digest=self._digest, stop=bool(self._turn_stop), ready=self._is_ready())

    def _committed(self, sealed: Sealed) -> Sealed:
        if sealed.differing:
            self._raise_audit(sealed.differing)
        if self._audited:
            self._sink.audited(step=self.step, digest=self._audited)
        self.step += 1
        self._pace.sealed(len(self._engine.ranks))
        if self._elastic is not None:
            self._elastic.sealed(self, sealed)
        if sealed.stop:
            self._stop_reason = self._turn_stop or "another logical worker asked for it"
        now = time.perf_counter()
        self._tell(
            partial(
                self._sink.step,
                step=self.step,
                epoch=self.epoch,
                values=sealed.values,
                seconds=now - self._last_commit,
                samples=self._batch_samples * self._spec.workers // max(1, len(self._engine.ranks)),
                total=self._total_steps(),
                place=self._place,
            )
        )
        self._last_commit = now
        if self._probe is not None:
            self._probe.reduced(self.step)
        return sealed

    def _commit_evaluation(self, tally: Tally) -> Sealed:
        self._pace.turns_end()
        return self._engine.finish(tally, digest="", stop=False, ready=self._is_ready())

    def _committed_evaluation(self, sealed: Sealed) -> Sealed:
        self._pace.outside()
        if self._elastic is not None:
            self._elastic.sealed(self, sealed)
        return sealed

    # ---- called by whoever runs the job ----

    def _finish(self) -> str:
        """After the training function returned: a last audit over all executors, and the digest of the result."""
        self._engine.check_not_broken()
        self._engine.check_no_stray_backward()
        self._digest = self._audit_digest()
        sealed = self._engine.seal_end(f"end of training, step {self.step}", self._digest)
        if sealed.differing:
            self._raise_audit(sealed.differing)
        if self._probe is not None:
            self._probe.ended(self.step)
        return self._state.digest()

    def _attach(self, probe: Probe) -> None:
        """Let a probe watch from here on."""
        self._probe, engine, close_turn = probe, self._engine, self._engine.close_turn

        def watched(logical_rank: int) -> None:
            if engine.turn.training:
                probe.turn_ends(logical_rank)
            close_turn(logical_rank)

        engine.close_turn = watched  # type: ignore[method-assign]

    def _close(self) -> None:
        for model in self._state.models.values():
            model.close()

    def _total_steps(self) -> int:
        limits = [limit for limit in (self._limit, self._spec.until) if limit]
        if self._num_epochs:
            limits.append(self._num_epochs * self._place.of)
        return min(limits, default=0)

    def _set_up_only(self, call: str) -> None:
        if self._stepping:
            raise self._engine.turn.error(
                f"{call}() after the first step", "build models and keep state before the first loop over a loader"
            )

    # ---- audit ----

    def _audit_digest(self) -> str:
        return json.dumps(list(self._state.audited()))

    def _raise_audit(self, differing: tuple[int, ...]) -> None:
        mine = [(name, short_hash(value)) for name, value in json.loads(self._digest)]
        lists = [dict(json.loads(text)) for text in self._engine.exchange.gather_text(json.dumps(mine))]
        names = list(dict.fromkeys(name for one in lists for name in one))
        first = next((n for n in names if len({one.get(n) for one in lists}) > 1), "the kept state")
        raise AuditError(
            tensor=first,
            executors=(0, *differing),
            remedy="something that is neither kept nor averaged decides what the script does outside turns: "
            "keep it (job.keep, job.state) or compute it from step.totals",
        )

    def _check_variables(self, *, renew: bool) -> None:
        """Between two steps: does a variable of the script hold state that changes but is not kept?"""
        if self._watch is None and not renew:
            return
        variables = script_variables(sys._getframe(), self._train_code)
        kept = list(self._state.tensors())
        name = self._watch.changed(variables, kept) if self._watch is not None else None
        self._watch = VariableWatch(variables, kept) if renew else None
        if name is not None:
            raise AuditError(
                tensor=f"variable {name!r}",
                executors=(),
                problem="changes from step to step but is not kept, so an executor that joins later would not have it",
                remedy=f"keep it: {name} = job.keep({name!r}, {name})"
                if hasattr(variables[name], "state_dict")
                else f"put it into job.state[{name!r}] and use it from there",
            )


def step_loss(values: Combined) -> float | None:
    """What the event log calls a step's loss: the mean of that name, else of the first name in order."""
    return values.means.get("loss", values.means[min(values.means)] if values.means else None)


def _plain_value(name: str, value: Any) -> Value:
    if isinstance(value, torch.Tensor) or hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool | int | float | str | type(None)):
        return value
    raise UserError(
        field=f"job.log({name}=...)",
        value=type(value).__name__,
        problem="neither a number nor a string",
        remedy="log a number, a string or a tensor of one element",
    )
