"""The evaluation loop of a trainer on logical workers: a batch of each is a turn, and every executor gets everything.

Follows the stock `evaluation_loop` line by line; what that gathers between ranks is gathered by the step.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from transformers.trainer_pt_utils import EvalLoopContainer, find_batch_size
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction, denumpify_detensorize, has_length

from isoscale.integrations.transformers import refusals
from isoscale.integrations.transformers.gathering import Prediction, gather, truncated
from isoscale.integrations.transformers.reading import Reading
from isoscale.integrations.transformers.steps import EvaluationSteps, Window
from isoscale.integrations.transformers.streaming import reading_of
from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["Evaluation"]


class Evaluation:
    """The methods of a trainer that evaluate."""

    _loop: TrainingLoop
    _window: Window | None
    args: Any
    model: Any
    accelerator: Any
    callback_handler: Any
    control: Any
    state: Any
    compute_metrics: Any
    gather_function: Any
    prediction_step: Any
    num_examples: Any
    is_in_train: bool
    _prepare_input: Any
    _start_streams: Any
    _count_items: Any
    _refresh: Any
    _log_turns: Any
    _reading: Reading | None

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        args = self.args
        if prediction_loss_only is None:
            prediction_loss_only = args.prediction_loss_only
        model = self._evaluated_model()
        self.callback_handler.eval_dataloader = dataloader
        kept = _Kept(args.eval_do_concat_batches)
        steps = self._evaluation_steps(dataloader)
        metrics: Any = None
        observed, number = 0, 0
        for number, step in enumerate(steps):
            for window in step:
                rank = self._loop.engine.turn.logical_rank
                assert rank is not None
                self._reading = steps.reading
                steps.given[rank] = self._predict(model, window, prediction_loss_only, ignore_keys)
                if rank == 0:
                    observed += find_batch_size(window.batches[0]) or 0
            self._window = None
            self._refresh()
            self._log_turns(steps.reading)
            is_last = not steps.reading.has_step(number + 1)
            found = self._without_repeats(steps.gathered, steps.reading.remainder if is_last else -1)
            keeps = not args.batch_eval_metrics or description == "Prediction"
            kept.add(found, all_of_it=keeps)
            self.control = self.callback_handler.on_prediction_step(args, self.state, self.control)
            if args.batch_eval_metrics:
                metrics = self._metrics_so_far(found, metrics, is_last=is_last)
            elif args.eval_accumulation_steps is not None and (number + 1) % args.eval_accumulation_steps == 0:
                kept.to_numpy()
        self.gather_function = self.accelerator.gather_for_metrics
        return self._outcome(kept.arrays(), metrics, metric_key_prefix, self._num_evaluated(dataloader, observed))

    def _outcome(self, found: Prediction, metrics: Any, prefix: str, num_samples: int) -> EvalLoopOutput:
        """`metrics` are those that were computed batch by batch, if any were."""
        if metrics is None and not self.args.batch_eval_metrics:
            metrics = self._metrics_of(found)
        metrics = denumpify_detensorize({} if metrics is None else metrics)
        if found.losses is not None:
            losses = np.concatenate(found.losses) if isinstance(found.losses, list) else found.losses
            metrics[f"{prefix}_loss"] = losses.mean().item()
        if hasattr(self, "model_preparation_time"):
            metrics[f"{prefix}_model_preparation_time"] = self.model_preparation_time
        for key in [key for key in metrics if not key.startswith(f"{prefix}_")]:
            metrics[f"{prefix}_{key}"] = metrics.pop(key)
        return EvalLoopOutput(
            predictions=found.logits, label_ids=found.labels, metrics=metrics, num_samples=num_samples
        )

    def _evaluated_model(self) -> Any:
        model = self.model
        if len(self.accelerator._models) == 0:
            model = self.accelerator.prepare_model(model, evaluation_mode=True)
            self.model_preparation_time = 0.0
        if self.args.bf16_full_eval and not self.is_in_train:
            model = model.to(dtype=torch.bfloat16, device=self.args.device)
        model.eval()
        optimizer: Any = getattr(self, "optimizer", None)
        if callable(getattr(optimizer, "eval", None)):
            optimizer.eval()
        return model

    def _evaluation_steps(self, dataloader: Any) -> EvaluationSteps:
        refusals.check_prepared(dataloader)
        loop = self._loop
        self._start_streams()
        reading = reading_of(dataloader, loop.engine.contexts, loop.spec.workers, self.args.device)
        reading.use(dataloader, per_step=1)
        return EvaluationSteps(
            loop,
            "evaluation",
            reading,
            count=self._count_items,
            together=self.args.average_tokens_across_devices,
            gather=lambda given: gather(
                given, loop.engine.exchange, getattr(self, "preprocess_logits_for_metrics", None)
            ),
        )

    def _predict(self, model: Any, window: Window, loss_only: bool, ignore_keys: list[str] | None) -> Prediction:
        """One turn."""
        self._refresh()
        self._window = window
        inputs = window.batches[0]
        losses, logits, labels = self.prediction_step(model, inputs, loss_only, ignore_keys=ignore_keys)
        shown = None
        if "inputs" in self.args.include_for_metrics:
            name = getattr(self.model, "main_input_name", "input_ids")
            shown = self._prepare_input(inputs[name])
        losses = None if losses is None else losses.repeat(self.args.eval_batch_size)
        return Prediction(losses, shown, labels, logits)

    def _without_repeats(self, found: Prediction, remainder: int) -> Prediction:
        """`gather_for_metrics` cuts what `even_batches` repeats; `gather`, which Seq2SeqTrainer asks for, does not."""
        asked = self.gather_function
        if isinstance(asked, functools.partial):
            asked = asked.func
        if remainder <= 0 or asked == self.accelerator.gather:
            return found
        return Prediction(*(truncated(field, remainder) for field in found))

    def _metrics_so_far(self, found: Prediction, metrics: Any, *, is_last: bool) -> Any:
        compute = self.compute_metrics
        if compute is None or found.logits is None or found.labels is None:
            return metrics
        return compute(self._shown_to_metrics(found), compute_result=is_last)

    def _metrics_of(self, found: Prediction) -> Any:
        compute = self.compute_metrics
        if compute is None or found.logits is None or found.labels is None:
            return {}
        return compute(self._shown_to_metrics(found))

    def _shown_to_metrics(self, found: Prediction) -> EvalPrediction:
        included = self.args.include_for_metrics
        return EvalPrediction(
            predictions=found.logits,
            label_ids=found.labels,
            losses=found.losses if "loss" in included else None,
            inputs=found.inputs if "inputs" in included else None,
        )

    def _num_evaluated(self, dataloader: Any, observed: int) -> int:
        dataset: Any = getattr(dataloader, "dataset", None)
        if has_length(dataset):
            count = len(dataset)
        elif has_length(dataloader):
            count = int(self.num_examples(dataloader))
        else:
            count = observed
        return count or observed


class _Kept:
    """What all steps gave."""

    def __init__(self, concatenates: bool) -> None:
        self._containers = [EvalLoopContainer(concatenates, padding_index=-100) for _ in Prediction._fields]

    def add(self, found: Prediction, *, all_of_it: bool) -> None:
        for name, container, value in zip(Prediction._fields, self._containers, found, strict=True):
            if value is not None and (all_of_it or name == "losses"):
                container.add(value)

    def to_numpy(self) -> None:
        for container in self._containers:
            container.to_cpu_and_numpy()

    def arrays(self) -> Prediction:
        return Prediction(*(container.get_arrays() for container in self._containers))
