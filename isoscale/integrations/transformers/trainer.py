"""`Trainer` and `Seq2SeqTrainer` whose loops run on logical workers.

Everything that does not know of processes is the stock class's: arguments, optimizers, schedules, callbacks, metrics,
checkpoint folders. Replaced are the two loops (`_run_epoch`, `evaluation_loop`) and the few methods that gather, count
or save per process. Callbacks run on every executor, as they run on every rank of a stock script, with
`state.is_world_process_zero` true on one of them.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import has_length

from isoscale.core.streams import rng
from isoscale.errors import UserError
from isoscale.integrations.transformers import refusals, world
from isoscale.integrations.transformers.arguments import (
    LogicalArguments,
    Seq2SeqTrainingArguments,
    TrainingArguments,
)
from isoscale.integrations.transformers.checkpoints import Checkpoints
from isoscale.integrations.transformers.collectives import Collectives
from isoscale.integrations.transformers.evaluation import Evaluation
from isoscale.integrations.transformers.keeping import TrainerRecord, is_timing
from isoscale.integrations.transformers.live import LiveSizes, LiveSteps
from isoscale.integrations.transformers.live_reading import LiveReading, check_loader
from isoscale.integrations.transformers.progress import MovingProgressCallback
from isoscale.integrations.transformers.reading import Reading
from isoscale.integrations.transformers.steps import Steps, Window
from isoscale.integrations.transformers.streaming import reading_of
from isoscale.integrations.transformers.training import Training
from isoscale.runtime.training.declaring import declare, declared_sizes

__all__ = ["LogicalTrainer", "Seq2SeqTrainer", "Trainer"]


class LogicalTrainer(Training, Evaluation, Checkpoints, LiveSizes):
    """The part of a trainer that knows of logical workers; stands before the stock class."""

    _default_arguments: type[Any]
    train_dataset: Any
    pop_callback: Any
    add_callback: Any

    def __init__(self, model: Any = None, args: Any = None, *rest: Any, **options: Any) -> None:
        if args is None:
            args = self._default_arguments(output_dir="tmp_trainer")
        if not isinstance(args, LogicalArguments):
            raise UserError(
                field="Trainer(args=...)",
                value=f"{type(args).__module__}.{type(args).__qualname__}",
                problem="arguments of the stock class describe processes, not logical workers",
                remedy="from isoscale.integrations.transformers import Trainer, TrainingArguments",
            )
        refusals.check_arguments(vars(args))  # again: scripts change them
        refusals.check_model(model)
        self._loop = world.loop()
        #: what all logical workers have counted for the turn that runs
        self._window: Window | None = None
        self._last_grad_norm: float | None = None
        self._last_learning_rate: float | None = None
        self._steps: Steps | None = None
        #: of the present step, of training or evaluation
        self._reading: Reading | None = None
        super().__init__(model, args, *rest, **options)  # type: ignore[call-arg]
        refusals.check_built(self)
        self._collectives = Collectives(self.accelerator, self._loop.engine.turn, self._loop.spec.workers)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(MovingProgressCallback)

    # ---- who this process is ----

    def is_world_process_zero(self) -> bool:
        return world.is_first()

    def is_local_process_zero(self) -> bool:
        return world.is_first()

    def call_model_init(self, trial: Any = None) -> Any:
        model = super().call_model_init(trial)  # type: ignore[misc]
        if self._loop.engine.contexts.started:
            # The seed was set again, on what a stock script has as every rank's streams.
            self._loop.engine.contexts.start_alike(rng.capture())
        return model

    # ---- training ----

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        refusals.check_training(self.model, self._loop)
        if self.is_live:
            check_loader(train_dataloader)
            refusals.check_resumed(resume_from_checkpoint)
        model, loader = super()._prepare_for_training(  # type: ignore[misc]
            max_steps, train_dataloader, resume_from_checkpoint
        )
        loop = self._loop
        handler = self.accelerator.ddp_handler
        loop.add_model(
            model,
            find_unused_parameters=handler.find_unused_parameters,
            broadcast_buffers=handler.broadcast_buffers,
            bucket_cap_mb=handler.to_kwargs().get("bucket_cap_mb"),  # accelerate does not pass on what is its default
            # Statistics: stock evaluates the bare module, with what each rank's last forward left.
            keeps_own_buffers=not {name for name, _ in model.named_buffers()}.isdisjoint(model.state_dict()),
        )
        if resume_from_checkpoint is None and has_length(loader):
            loop.horizon.num_steps = max_steps  # so that progress and forecasts know the end
        loop.state.keep("optimizer", self.optimizer.optimizer)
        loop.state.keep("scheduler", self.lr_scheduler)
        loop.state.keep("trainer", TrainerRecord(self))
        self._steps = loop.add_loader(self._training_steps(train_dataloader), self.train_dataset, train=True)
        return model, loader

    def hyperparameter_search(self, *args: Any, **options: Any) -> Any:
        raise refusals.second_training("trainer.hyperparameter_search()", "many trainings")

    def _training_steps(self, loader: Any) -> Steps:
        refusals.check_prepared(loader)
        loop, args = self._loop, self.args
        contexts, n, name = loop.engine.contexts, loop.spec.workers, loop.new_loader_name("loader")
        options: dict[str, Any] = {
            "train": True,
            "count": self._count_items,
            "together": args.average_tokens_across_devices,
        }
        if not self.is_live:
            return Steps(loop, name, reading_of(loader, contexts, n, args.device), **options)
        size = self._train_batch_size
        sizes = declared_sizes("TrainingArguments", loop, args.batch_sizes, args.batch_rule, size, train=True)
        live = LiveReading(contexts, n, args.device, size, loader)
        steps = LiveSteps(loop, name, live, on_size=self._on_size, **options)
        declare(loop, steps, sizes, size, args.batch_rule)
        return steps

    def _on_size(self, size: int) -> None:
        """At the switch to it."""
        steps = self._steps
        assert isinstance(steps, LiveSteps)
        left, per_pass = steps.reading.num_steps - steps.index, steps.reading.steps_per_pass
        self.size_changed(size, epoch=self._loop.epoch, steps_left=left, steps_per_pass=per_pass)
        self._loop.horizon.num_steps = self.state.max_steps

    def record_loaded(self) -> None:
        """What belongs to `state`, which came from another executor, or from a checkpoint of the job."""
        if self.is_live:
            self.take_size(self.state.train_batch_size)
            self._loop.horizon.num_steps = self.state.max_steps

    def _init_training_state(self, *args: Any, **options: Any) -> tuple[int, int]:
        begun: tuple[int, int] = super()._init_training_state(*args, **options)
        if self._loop.approaching or self._loop.first_epoch() is not None:
            # The place to go on at comes with the job's state; a checkpoint folder found here may be a later one.
            return 0, 0
        return begun

    def _evaluate(self, *args: Any, **options: Any) -> Any:
        if self._loop.approaching or self._loop.first_epoch() is not None:
            return {}  # `eval_on_start`, which the job has behind it
        return super()._evaluate(*args, **options)  # type: ignore[misc]

    def _start_streams(self) -> None:
        """All ranks of a stock script are seeded alike; their streams part by what each of them draws from here on."""
        contexts = self._loop.engine.contexts
        if not contexts.started:
            contexts.start_alike(rng.capture())

    def log(self, logs: dict[str, Any], *args: Any, **options: Any) -> None:
        """What an evaluation found goes into the job's event log, too.

        In a turn only logical worker 0 is heard, whose log stock keeps; every executor logs it after the turns.
        """
        if (rank := self._loop.engine.turn.logical_rank) is not None:
            assert self._reading is not None
            if rank == 0:
                told = {name: value.item() if hasattr(value, "item") else value for name, value in logs.items()}
                self._reading.logs.append(told)
            return
        super().log(logs, *args, **options)  # type: ignore[misc]
        numbers = {name: value for name, value in logs.items() if isinstance(value, bool | int | float)}
        found = {name: value for name, value in numbers.items() if name.startswith("eval_") and not is_timing(name)}
        if found:
            self._loop.log(dict(found))

    def _log_turns(self, reading: Reading) -> None:
        """After the turns of a step. A subclass's own `log` has had its say in the turn."""
        for logs in reading.take_logs():
            LogicalTrainer.log(self, logs)

    # ---- what ranks agree on ----

    def _count_items(self, batches: list[Any]) -> torch.Tensor | int | None:
        """Of one worker: accelerate knows of no other process, so the stock method counts only these."""
        with self._collectives.of_one_worker():
            count: torch.Tensor | int | None = super()._get_num_items_in_batch(batches, self.args.device)  # type: ignore[misc]
        return count

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """In a turn: those of its worker, which the step adds up."""
        with self._collectives.of_one_worker():
            super()._track_num_input_tokens(inputs)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> torch.Tensor | int | None:
        """Asked inside a turn: what was agreed on before it."""
        return self._window.num_items if self._window is not None else self._count_items(batch_samples)

    def store_flos(self) -> None:
        """The sum over all logical workers, in float32, as the stock method gathers it."""
        if self._steps is None:
            return
        flos = self._steps.reading.flos
        self.state.total_flos += torch.tensor(flos).sum().item() if len(flos) > 1 else flos[0]
        self._steps.reading.flos = [0.0] * len(flos)
        self.current_flos = 0


class Trainer(LogicalTrainer, transformers.Trainer):
    """`transformers.Trainer` on logical workers."""

    _default_arguments = TrainingArguments


class Seq2SeqTrainer(LogicalTrainer, transformers.Seq2SeqTrainer):
    """`transformers.Seq2SeqTrainer` on logical workers."""

    _default_arguments = Seq2SeqTrainingArguments
