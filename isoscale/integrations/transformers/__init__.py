"""Hugging Face's `Trainer` on logical workers: change the import, and the result is that of stock processes.

    from isoscale.integrations.transformers import Trainer, TrainingArguments

Bit for bit what `transformers.Trainer` gives under `torchrun` with as many gloo processes as there are logical
workers. In a process of `isoscale verify`'s reference the names are the stock classes, which only leave a record.
Needs the extra `isoscale[transformers]`; versions that were not tested are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoscale import env
from isoscale.core.streams import rng
from isoscale.integrations.transformers.versions import check_versions

__all__ = ["Seq2SeqTrainer", "Seq2SeqTrainingArguments", "Trainer", "TrainingArguments"]

check_versions()
if env.is_reference() or env.coordinator() is not None:
    # A model that a script makes before any seed is set must be the same on all executors.
    rng.seed_all(0)

if TYPE_CHECKING or not env.is_reference():
    from isoscale.integrations.transformers.arguments import Seq2SeqTrainingArguments, TrainingArguments
    from isoscale.integrations.transformers.trainer import Seq2SeqTrainer, Trainer
else:
    from isoscale.integrations.transformers.reference import (
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        Trainer,
        TrainingArguments,
    )
