"""What `TrainingArguments` offer, told without importing transformers."""

from __future__ import annotations

from typing import Any

#: every other optimizer that needs no further package, and every other schedule
OFFERED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("adamw_torch", "constant", {"adam_beta2": 0.98, "weight_decay": 0.1}),
    ("adamw_torch_fused", "inverse_sqrt", {"warmup_steps": 2}),
    ("adagrad", "cosine_with_restarts", {"lr_scheduler_kwargs": {"num_cycles": 2}}),
    ("rmsprop", "polynomial", {"lr_scheduler_kwargs": {"power": 2.0}, "warmup_steps": 2}),
    ("sgd", "constant_with_warmup", {"warmup_steps": 3}),
    ("adamw_torch", "cosine_with_min_lr", {"lr_scheduler_kwargs": {"min_lr_rate": 0.1}}),
    ("adamw_torch", "cosine_warmup_with_min_lr", {"lr_scheduler_kwargs": {"min_lr_rate": 0.1}, "warmup_steps": 2}),
    ("adamw_torch", "warmup_stable_decay", {"lr_scheduler_kwargs": {"num_decay_steps": 3}, "warmup_steps": 2}),
)
