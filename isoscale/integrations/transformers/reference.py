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


class _ReferenceTrainer:
    model: Any
    optimizer: Any
    lr_scheduler: Any
    add_callback: Any
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
        return prepared

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
class TrainingArguments(_ReferenceArguments, transformers.TrainingArguments):
    """The stock arguments."""


@dataclass
class Seq2SeqTrainingArguments(_ReferenceArguments, transformers.Seq2SeqTrainingArguments):
    """The stock arguments."""


class Trainer(_ReferenceTrainer, transformers.Trainer):
    """The stock trainer."""


class Seq2SeqTrainer(_ReferenceTrainer, transformers.Seq2SeqTrainer):
    """The stock trainer."""
