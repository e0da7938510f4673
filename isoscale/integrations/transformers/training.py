"""The training loop of a trainer on logical workers: a step is one accumulation window of all of them.

Follows the stock `_run_epoch`: what a rank does with its window is a turn, what it does once gradients are averaged is
done once. Callbacks are called at the stock method's places.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from accelerate.data_loader import skip_first_batches
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers.optimization import GreedyLR

from isoscale.integrations.transformers import world
from isoscale.integrations.transformers.reading import Reading
from isoscale.integrations.transformers.steps import Steps, Window
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.step import Step

__all__ = ["Training"]


class Training:
    """The methods of a trainer that train."""

    _loop: TrainingLoop
    _steps: Steps | None
    _window: Window | None
    args: Any
    accelerator: Any
    callback_handler: Any
    control: Any
    state: Any
    optimizer: Any
    lr_scheduler: Any
    training_step: Any
    floating_point_ops: Any
    current_flos: float
    _tr_loss: torch.Tensor
    _last_grad_norm: float | None
    _last_learning_rate: float | None
    _globalstep_last_logged: int
    _start_streams: Any
    _load_rng_state: Any
    _load_streams_of: Any
    _track_num_input_tokens: Any
    _clip_grad_norm: Any
    _get_grad_norm: Any
    _get_learning_rate: Any
    _maybe_log_save_evaluate: Any
    _log_turns: Any
    _reading: Reading | None

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
        steps.expect(steps_in_epoch)
        has_run = False
        for step in steps:
            self._refresh()
            has_run = True
            done = self._train_step(step, model)
            if done:
                self._finish_step(model, epoch, done, trial, ignore_keys_for_eval, start_time)
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

    def _train_step(self, step: Step, model: Any) -> int:
        """All turns of a step. How many batches of the pass a rank has done if the optimizer is due, else 0."""
        steps = self._steps
        assert steps is not None
        self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
        start, num_batches = steps.index * self.args.gradient_accumulation_steps, 0
        for window in step:
            num_batches = len(window.batches)
            self._train_turn(step, window, model)
        self._refresh()
        self._window = None
        self._log_turns(steps.reading)
        self._tr_loss = steps.reading.losses[0]
        self.state.num_input_tokens_seen += int(step.totals.get("tokens", 0))
        done = start + num_batches
        is_due = done % self.args.gradient_accumulation_steps == 0 or done == steps.passage.total
        for _ in range(num_batches - is_due):
            self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
        self.accelerator.gradient_state._set_sync_gradients(is_due)
        return done if is_due else 0

    def _train_turn(self, step: Step, window: Window, model: Any) -> None:
        """What one rank does with its accumulation window."""
        steps = self._steps
        assert steps is not None
        rank, reading = self._loop.engine.turn.logical_rank, steps.reading
        assert rank is not None
        self._refresh()
        self._window, self._reading = window, reading
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

    def _finish_step(self, model: Any, epoch: int, done: int, trial: Any, ignore_keys: Any, start_time: float) -> None:
        """After the turns: everything that a rank does with gradients that are averaged."""
        assert self._steps is not None
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
        self.state.epoch = epoch + self._steps.passage.share(done)
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

    def _refresh(self) -> None:
        """Whose turn it is, or who is the first executor, may have changed."""
        self.state.is_world_process_zero = self.state.is_local_process_zero = world.is_first()
        world.describe()
