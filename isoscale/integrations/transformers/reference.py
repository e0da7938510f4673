"""The stock trainers, as `isoscale verify` runs them: one process per rank, real DDP, and a record of what came out.

Nothing of the loop is replaced. A rank joins the reference's process group where its arguments are made, as it would
join torchrun's; a callback writes down the loss of every step and ends training where the elastic run ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch
import transformers
from transformers.trainer_callback import TrainerCallback

from isoscale import env
from isoscale.integrations.transformers import world
from isoscale.integrations.transformers.keeping import TrainerRecord
from isoscale.integrations.transformers.live import LiveArguments, LiveSizes
from isoscale.integrations.transformers.reference_live import LivePass, Rest
from isoscale.runtime.reference.live import LiveSize
from isoscale.runtime.reference.rank import Rank

__all__ = ["Seq2SeqTrainer", "Seq2SeqTrainingArguments", "Trainer", "TrainingArguments"]


class _ReferenceArguments:
    def __post_init__(self) -> None:
        rank = world.enter_reference()
        number, count = str(rank.number), str(rank.spec.workers)
        for name, value in (
            ("RANK", number),
            ("LOCAL_RANK", number),
            ("WORLD_SIZE", count),
            ("LOCAL_WORLD_SIZE", count),
        ):
            env.set_variable(name, value)
        self.use_cpu = True
        super().__post_init__()  # type: ignore[misc]


class _Recorder(TrainerCallback):
    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.loss = torch.zeros(())

    def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        rank = self._rank
        rank.step += 1
        rank.record({"loss": float(self.loss).hex()})
        self.loss = torch.zeros(())
        if rank.has_ended():
            control.should_training_stop = True


class _ReferenceTrainer(LiveSizes):
    model: Any
    get_train_dataloader: Any
    optimizer: Any
    lr_scheduler: Any
    add_callback: Any
    #: samples that the next loader is to read, instead of all that the stock sampler has
    _rest: list[int] | None = None
    _pass: LivePass | None = None
    _last_grad_norm: float | None = None
    _last_learning_rate: float | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._recorder = _Recorder(world.enter_reference())
        self.add_callback(self._recorder)

    def _prepare_for_training(self, *args: Any, **options: Any) -> Any:
        prepared = super()._prepare_for_training(*args, **options)  # type: ignore[misc]
        rank = world.enter_reference()
        rank.models[type(self.model).__name__] = cast("Any", SimpleNamespace(module=self.model))
        rank.kept["optimizer"] = self.optimizer.optimizer
        rank.kept["scheduler"] = self.lr_scheduler
        rank.kept["trainer"] = TrainerRecord(self)
        if self.is_live:
            rank.live = LiveSize(rank, self._train_batch_size, self.args.batch_rule)
        return prepared

    # ---- a batch size that changes ----

    def _run_epoch(self, *, train_dataloader: Any, epoch: int, **rest: Any) -> None:
        rank = world.enter_reference()
        if rank.live is not None:
            rank.epoch = epoch
            train_dataloader.set_epoch(epoch)
            live = LivePass(train_dataloader, rank.live, rank.spec.workers, self._loader_over, self._on_size)
            # As many as there can be: the stock loop goes on until there is nothing left to read.
            rest |= {"steps_in_epoch": live.count, "num_update_steps_per_epoch": live.most_steps}
            train_dataloader = self._pass = live
        super()._run_epoch(train_dataloader=train_dataloader, epoch=epoch, **rest)  # type: ignore[misc]

    def get_batch_samples(self, *args: Any, **options: Any) -> Any:
        if self._pass is not None:
            self._pass.arrive()
        return super().get_batch_samples(*args, **options)  # type: ignore[misc]

    def _get_train_sampler(self, *args: Any, **options: Any) -> Any:
        sampler = super()._get_train_sampler(*args, **options)  # type: ignore[misc]
        return sampler if self._rest is None else Rest(self._rest, sampler)

    def _loader_over(self, samples: list[int], size: int) -> Any:
        self._rest, self._train_batch_size = samples, size
        loader = self.get_train_dataloader()
        loader.set_epoch(world.enter_reference().epoch)
        return loader

    def _on_size(self, live: LivePass) -> None:
        per_step = self.args.gradient_accumulation_steps
        self.size_changed(
            live.live.size,
            epoch=world.enter_reference().epoch,
            steps_left=-(-live.batches_left(live.live.size) // per_step),
            steps_per_pass=-(-live.batches_per_pass // per_step),
        )

    # ---- what is recorded ----

    def training_step(self, *args: Any, **options: Any) -> torch.Tensor:
        loss = cast("torch.Tensor", super().training_step(*args, **options))  # type: ignore[misc]
        self._recorder.loss = self._recorder.loss + loss
        return loss

    def _get_grad_norm(self, *args: Any, **options: Any) -> Any:
        norm = super()._get_grad_norm(*args, **options)  # type: ignore[misc]
        self._last_grad_norm = norm.item() if isinstance(norm, torch.Tensor) else norm
        return norm

    def _get_learning_rate(self) -> float:
        rate: float = super()._get_learning_rate()  # type: ignore[misc]
        self._last_learning_rate = rate
        return rate


@dataclass
class TrainingArguments(_ReferenceArguments, LiveArguments, transformers.TrainingArguments):
    """The stock arguments."""


@dataclass
class Seq2SeqTrainingArguments(_ReferenceArguments, LiveArguments, transformers.Seq2SeqTrainingArguments):
    """The stock arguments."""


class Trainer(_ReferenceTrainer, transformers.Trainer):
    """The stock trainer."""


class Seq2SeqTrainer(_ReferenceTrainer, transformers.Seq2SeqTrainer):
    """The stock trainer."""
