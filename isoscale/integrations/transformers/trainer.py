"""`Trainer` and `Seq2SeqTrainer` whose loops run on logical workers.

Everything that does not know of processes is the stock class's: arguments, optimizers, schedules, callbacks, metrics,
checkpoint folders. Replaced are the two loops (`_run_epoch`, `evaluation_loop`) and the few methods that gather, count
or save per process. Callbacks run on every executor, as they run on every rank of a stock script, with
`state.is_world_process_zero` true on one of them.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import transformers
from accelerate.data_loader import skip_first_batches
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers.optimization import GreedyLR
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
from isoscale.integrations.transformers.evaluation import Evaluation
from isoscale.integrations.transformers.keeping import TrainerRecord, is_timing
from isoscale.integrations.transformers.progress import MovingProgressCallback
from isoscale.integrations.transformers.steps import Steps, Window
from isoscale.integrations.transformers.streaming import reading_of
from isoscale.runtime.training.step import Step

__all__ = ["LogicalTrainer", "Seq2SeqTrainer", "Trainer"]


class LogicalTrainer(Evaluation, Checkpoints):
    """The part of a trainer that knows of logical workers; stands before the stock class."""

    _default_arguments: type[Any]
    optimizer: Any
    lr_scheduler: Any
    train_dataset: Any
    training_step: Any
    floating_point_ops: Any
    pop_callback: Any
    add_callback: Any
    _track_num_input_tokens: Any
    _globalstep_last_logged: int
    _clip_grad_norm: Any
    _get_grad_norm: Any
    _get_learning_rate: Any
    _maybe_log_save_evaluate: Any

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
        super().__init__(model, args, *rest, **options)  # type: ignore[call-arg]
        refusals.check_built(self)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(MovingProgressCallback)

    # ---- who this process is ----

    def is_world_process_zero(self) -> bool:
        return world.is_main()

    def is_local_process_zero(self) -> bool:
        return world.is_main()

    def call_model_init(self, trial: Any = None) -> Any:
        model = super().call_model_init(trial)  # type: ignore[misc]
        if self._loop.engine.contexts.started:
            # The seed was set again, on what a stock script has as every rank's streams.
            self._loop.engine.contexts.start_alike(rng.capture())
        return model

    # ---- training ----

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        if self._steps is not None:
            raise UserError(
                field="trainer.train()",
                value="a second call",
                problem="a run of isoscale is one training",
                remedy="call train() once per script; start another run for another training",
            )
        model, loader = super()._prepare_for_training(  # type: ignore[misc]
            max_steps, train_dataloader, resume_from_checkpoint
        )
        loop = self._loop
        handler = self.accelerator.ddp_handler
        loop.add_model(
            model,
            find_unused_parameters=handler.find_unused_parameters,
            broadcast_buffers=handler.broadcast_buffers,
            bucket_cap_mb=self.args.ddp_bucket_cap_mb,
            # Statistics: stock evaluates the bare module, with what each rank's last forward left.
            keeps_own_buffers=not {name for name, _ in model.named_buffers()}.isdisjoint(model.state_dict()),
        )
        if resume_from_checkpoint is None and has_length(loader):
            loop.horizon.num_steps = max_steps  # so that progress and forecasts know the end
        loop.state.keep("optimizer", self.optimizer.optimizer)
        loop.state.keep("scheduler", self.lr_scheduler)
        loop.state.keep("trainer", TrainerRecord(self))
        reading = reading_of(train_dataloader, loop.engine.contexts, loop.spec.workers, self.args.device)
        name = loop.new_loader_name("loader")
        self._steps = loop.add_loader(
            Steps(
                loop,
                name,
                reading,
                train=True,
                count=self._count_items,
                together=self.args.average_tokens_across_devices,
            ),
            self.train_dataset,
            train=True,
        )
        return model, loader

    def _init_training_state(self, *args: Any, **options: Any) -> tuple[int, int]:
        begun: tuple[int, int] = super()._init_training_state(*args, **options)  # type: ignore[misc]
        if self._loop.approaching or self._loop.first_epoch() is not None:
            # The place to go on at comes with the job's state; a checkpoint folder found here may be a later one.
            return 0, 0
        return begun

    def _evaluate(self, *args: Any, **options: Any) -> Any:
        if self._loop.approaching or self._loop.first_epoch() is not None:
            return {}  # `eval_on_start`, which the job has behind it
        return super()._evaluate(*args, **options)  # type: ignore[misc]

    def _run_epoch(
        self,
        model: Any,
        epoch: int,
        train_dataloader: Any,
        steps_in_epoch: int,
        num_update_steps_per_epoch: int,
        trial: Any,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        resume_from_checkpoint: str | None,
        epochs_trained: int,
        steps_trained_in_current_epoch: int,
    ) -> None:
        """One pass: the stock method's, with a step of all logical workers in place of a window of one rank."""
        loop, steps, per_step = self._loop, self._steps, self.args.gradient_accumulation_steps
        assert steps is not None
        self._start_streams()
        if epoch < (loop.first_epoch() or 0):
            return  # this executor comes later, and goes on in a later epoch
        loop.epoch = epoch
        loader, first = train_dataloader, 0
        steps.after_first = None
        if epoch == epochs_trained and resume_from_checkpoint is not None:
            if steps_trained_in_current_epoch > 0 and not self.args.ignore_data_skip:
                loader = skip_first_batches(loader, steps_trained_in_current_epoch)
                first = steps_trained_in_current_epoch // per_step
                steps.after_first = lambda rank: self._load_streams_of(rank, resume_from_checkpoint)
            elif steps_trained_in_current_epoch == 0:
                self._load_rng_state(resume_from_checkpoint)
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        steps.reading.use(loader, per_step=per_step, first=first)
        has_run = False
        for step in steps:
            self._refresh()
            has_run = True
            last = self._train_step(step, model, epoch, steps_in_epoch)
            if last >= 0:
                self._finish_step(model, epoch, last, steps_in_epoch, trial, ignore_keys_for_eval, start_time)
            if self.control.should_epoch_stop or self.control.should_training_stop:
                break
        self._refresh()
        is_empty = not (has_run or steps.index > first)
        if is_empty and steps.after_first is not None:
            # More was trained than a pass over the data set has: the stock loop finds nothing left, and goes on with
            # the next pass under the checkpoint's streams.
            self._load_rng_state(resume_from_checkpoint)
        if loop.at_end() or (is_empty and not first):
            self.control.should_training_stop = True
        self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
        self._log_save_evaluate(model, trial, epoch, ignore_keys_for_eval, start_time)

    def _train_step(self, step: Step, model: Any, epoch: int, steps_in_epoch: int) -> int:
        """All turns of a step. The number of its last batch in the epoch if the optimizer is due, else -1."""
        steps = self._steps
        assert steps is not None
        self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
        start, num_batches = steps.index * self.args.gradient_accumulation_steps, 0
        for window in step:
            num_batches = len(window.batches)
            self._train_turn(step, window, model)
        world.describe()
        self._window = None
        self._tr_loss = steps.reading.losses[0]
        self.state.num_input_tokens_seen += int(step.totals.get("tokens", 0))
        last = start + num_batches - 1
        is_due = (last + 1) % self.args.gradient_accumulation_steps == 0 or last + 1 == steps_in_epoch
        for _ in range(num_batches - is_due):
            self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
        self.accelerator.gradient_state._set_sync_gradients(is_due)
        return last if is_due else -1

    def _train_turn(self, step: Step, window: Window, model: Any) -> None:
        """What one rank does with its accumulation window."""
        steps = self._steps
        assert steps is not None
        rank, reading = self._loop.engine.turn.logical_rank, steps.reading
        assert rank is not None
        world.describe()
        self._window = window
        self._tr_loss, self.current_flos = reading.losses[rank], reading.flos[rank]
        self.current_gradient_accumulation_steps = len(window.batches)
        seen, total = self.state.num_input_tokens_seen, torch.zeros(())
        for i, inputs in enumerate(window.batches):
            is_last = i == len(window.batches) - 1
            with contextlib.nullcontext() if is_last else step.accumulate():
                loss = self.training_step(model, inputs, window.num_items)
            self._add_loss(loss)
            total = total + loss
            self.current_flos += float(self.floating_point_ops(inputs))
            self._track_num_input_tokens(inputs)
        reading.flos[rank] = self.current_flos
        if self.state.num_input_tokens_seen != seen:
            step.sum(tokens=self.state.num_input_tokens_seen - seen)
            self.state.num_input_tokens_seen = seen
        step.log(loss=total)

    def _add_loss(self, loss: torch.Tensor) -> None:
        """As the stock loop adds it, into the worker's own sum."""
        if self.args.logging_nan_inf_filter and (torch.isnan(loss) or torch.isinf(loss)):
            self._tr_loss += self._tr_loss / (1 + self.state.global_step - self._globalstep_last_logged)
        else:
            self._tr_loss += loss

    def _finish_step(
        self, model: Any, epoch: int, last: int, steps_in_epoch: int, trial: Any, ignore_keys: Any, start_time: float
    ) -> None:
        """After the turns: everything that a rank does with gradients that are averaged."""
        grad_norm = self._clip_grad_norm(model) if self.args.max_grad_norm > 0 else None
        grad_norm = self._get_grad_norm(model, grad_norm=grad_norm)
        self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)
        self.optimizer.step()
        self.control = self.callback_handler.on_optimizer_step(self.args, self.state, self.control)
        self._last_learning_rate = self._get_learning_rate()
        if not self.accelerator.optimizer_step_was_skipped and not isinstance(
            self.lr_scheduler, ReduceLROnPlateau | GreedyLR
        ):
            self.lr_scheduler.step()
        self._last_grad_norm = grad_norm.item() if isinstance(grad_norm, torch.Tensor) else grad_norm
        model.zero_grad()
        self.state.global_step += 1
        self.state.epoch = epoch + (last + 1) / steps_in_epoch
        self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
        if self._loop.at_end():
            self.control.should_training_stop = True
        self._log_save_evaluate(model, trial, epoch, ignore_keys, start_time)

    def _log_save_evaluate(self, model: Any, trial: Any, epoch: int, ignore_keys: Any, start_time: float) -> None:
        assert self._steps is not None
        self._maybe_log_save_evaluate(
            self._steps.reading.losses,  # of all logical workers: what the stock method gathers
            self._last_grad_norm,
            model,
            trial,
            epoch,
            ignore_keys,
            start_time,
            learning_rate=self._last_learning_rate,
        )

    def _start_streams(self) -> None:
        """All ranks of a stock script are seeded alike; their streams part by what each of them draws from here on."""
        contexts = self._loop.engine.contexts
        if not contexts.started:
            contexts.start_alike(rng.capture())

    def _refresh(self) -> None:
        """Who is the first executor may have changed."""
        self.state.is_world_process_zero = self.state.is_local_process_zero = world.is_main()
        world.describe()

    def log(self, logs: dict[str, Any], *args: Any, **options: Any) -> None:
        """What an evaluation found goes into the job's event log, too."""
        super().log(logs, *args, **options)  # type: ignore[misc]
        numbers = {name: value for name, value in logs.items() if isinstance(value, bool | int | float)}
        found = {name: value for name, value in numbers.items() if name.startswith("eval_") and not is_timing(name)}
        if found:
            self._loop.log(dict(found))

    # ---- what ranks agree on ----

    def _count_items(self, batches: list[Any]) -> torch.Tensor | int | None:
        """Of one worker: accelerate knows of no other process, so the stock method counts only these."""
        count: torch.Tensor | int | None = super()._get_num_items_in_batch(batches, self.args.device)  # type: ignore[misc]
        return count

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
