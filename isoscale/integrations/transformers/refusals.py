"""What a trainer on logical workers cannot do, refused by name, with value, why and remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch.multiprocessing
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard

from isoscale.batches import parse_sizes
from isoscale.errors import UserError
from isoscale.integrations.transformers.keeping import is_timing
from isoscale.runtime.training.batch_rules import check_rule

if TYPE_CHECKING:
    from isoscale.runtime.training.loop import TrainingLoop

__all__ = [
    "check_arguments",
    "check_built",
    "check_model",
    "check_prepared",
    "check_resumed",
    "check_training",
    "second_training",
]

_PROCESSES = "isoscale places the logical workers itself, and averages as DDP does"
_LEAVE_OUT = "leave it out"
_LAYERWISE = ("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "apollo_adamw")
_IN_BACKWARD = frozenset({"lomo", "adalomo", *(f"{name}_layerwise" for name in _LAYERWISE)})

#: by argument: what is refused, why, and the remedy
_RULES: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "deepspeed": (bool, _PROCESSES, _LEAVE_OUT),
    "fsdp": (bool, _PROCESSES, _LEAVE_OUT),
    "parallelism_config": (lambda value: value is not None, _PROCESSES, _LEAVE_OUT),
    # Each of the latter two switches it on.
    **dict.fromkeys(
        ("torch_compile", "torch_compile_backend", "torch_compile_mode"),
        (bool, "compiled kernels have not been compared with stock DDP bit for bit", _LEAVE_OUT),
    ),
    "use_liger_kernel": (bool, "its kernels need a GPU", _LEAVE_OUT),
    "fp16": (bool, "float16 autocast has no CPU kernels that stock DDP could be compared with", "use bf16=True"),
    "fp16_full_eval": (bool, "float16 has no CPU kernels that stock DDP could be compared with", _LEAVE_OUT),
    "auto_find_batch_size": (bool, "the batch size is part of what is computed", "set per_device_train_batch_size"),
    "enable_jit_checkpoint": (bool, "isoscale answers SIGTERM itself, and loses no step", _LEAVE_OUT),
    "push_to_hub": (bool, "uploads are not tried on executors that come and go", "push the folder afterwards"),
    "skip_memory_metrics": (
        lambda value: not value,
        "executors use different amounts of memory, and logs must be equal on all of them",
        _LEAVE_OUT,
    ),
    "optim": (
        lambda value: str(getattr(value, "value", value)) in _IN_BACKWARD,
        "it updates weights within backward, before gradients are averaged",
        "choose one that steps after it",
    ),
    "ddp_static_graph": (bool, "DDP's static_graph has no counterpart", _LEAVE_OUT),
    "eval_use_gather_object": (bool, "objects are not gathered, only tensors", "return tensors"),
    "train_sampling_strategy": (
        lambda value: value == "batch_rebalance",
        "its batches are made for ranks, not dealt to them",
        'use "random", "sequential" or "group_by_length"',
    ),
    "save_on_each_node": (bool, "one executor writes, wherever it lives", _LEAVE_OUT),
    "dataloader_persistent_workers": (bool, "loader processes do not outlive a pass", _LEAVE_OUT),
    "dataloader_multiprocessing_context": (
        lambda value: value is not None and value != torch.multiprocessing.get_start_method(),
        "loader processes start in the way that the script has set for all of its processes",
        "leave it out, and call torch.multiprocessing.set_start_method(...)",
    ),
    "dataloader_in_order": (lambda value: not value, "batches would come in another order in every run", _LEAVE_OUT),
    "metric_for_best_model": (
        lambda value: isinstance(value, str) and is_timing(value),
        "seconds differ from executor to executor",
        "choose a metric of the model",
    ),
}

#: of `accelerator_config`: the value that is supported
_ACCELERATOR = {
    "split_batches": False,
    "dispatch_batches": None,
    "even_batches": True,
    "use_seedable_sampler": True,
    "use_configured_state": False,
}


def check_arguments(values: Mapping[str, Any]) -> None:
    """Arguments as they were given, by name; before the stock class looks at them, and imports what it needs."""
    for name, (is_refused, problem, remedy) in _RULES.items():
        if name in values and is_refused(values[name]):
            raise _refused(f"TrainingArguments({name}=...)", values[name], problem, remedy)
    config: Any = values.get("accelerator_config")
    for name, supported in _ACCELERATOR.items():
        value = config.get(name, supported) if isinstance(config, dict) else getattr(config, name, supported)
        if value is not supported:
            raise _refused(
                f"TrainingArguments(accelerator_config={{{name!r}: ...}})",
                value,
                "only the default has been compared with stock DDP bit for bit",
                _LEAVE_OUT,
            )
    if values.get("batch_eval_metrics") and "inputs" in (values.get("include_for_metrics") or ()):
        raise _refused(
            "TrainingArguments(include_for_metrics=...)",
            values["include_for_metrics"],
            "with batch_eval_metrics every rank of a stock script is shown inputs of its own",
            'leave "inputs" out, or batch_eval_metrics',
        )
    _check_sizes(values)


def _check_sizes(values: Mapping[str, Any]) -> None:
    """Of `batch_sizes` and `batch_rule`, and of what does not go with them."""
    sizes, rule = values.get("batch_sizes"), values.get("batch_rule")
    if rule is not None:
        check_rule(rule, "TrainingArguments(batch_rule=...)")
    if sizes is None:
        if rule is not None:
            field, remedy = "TrainingArguments(batch_rule=...)", "give batch_sizes too, or leave it out"
            raise _refused(field, rule, "the batch size never changes", remedy)
        return
    parse_sizes(sizes, values["per_device_train_batch_size"], "TrainingArguments(batch_sizes=...)")
    if rule == "adascale":
        raise _refused(
            "TrainingArguments(batch_rule=...)",
            rule,
            "the noise scale is that of a loss averaged over samples, and Trainer averages over tokens",
            'use "linear", "sqrt", "none" or a function of the old and the new size',
        )
    if values.get("train_sampling_strategy") == "group_by_length":
        raise _refused(
            "TrainingArguments(train_sampling_strategy=...)",
            "group_by_length",
            "its order of the samples depends on the batch size, which batch_sizes lets change",
            'use "random" or "sequential", or leave batch_sizes out',
        )
    epochs = values.get("num_train_epochs", 1)
    if values.get("max_steps", -1) <= 0 and epochs != int(epochs):
        raise _refused(
            "TrainingArguments(num_train_epochs=...)",
            epochs,
            "a part of a pass is a number of steps, which changes with the batch size",
            "give whole epochs or max_steps, or leave batch_sizes out",
        )


def check_resumed(checkpoint: Any) -> None:
    """Of a training whose batch size may change."""
    if checkpoint is not None:
        raise _refused(
            "trainer.train(resume_from_checkpoint=...)",
            checkpoint,
            "a checkpoint folder does not say with which batch sizes it came where it is",
            "go on with the job itself (isoscale resume DIR), or leave batch_sizes out",
        )


def check_model(model: Any) -> None:
    if getattr(model, "hf_device_map", None):
        raise _refused("Trainer(model=...)", "device_map", _PROCESSES, "load the model without device_map")


def check_training(model: Any, loop: TrainingLoop) -> None:
    """Where a trainer begins to train."""
    if loop.engine.models:
        raise second_training("trainer.train()", "a second call")
    if loop.spec.workers > 1 and getattr(model, "_is_accelerate_prepared", False):
        raise _refused(
            "trainer.train()",
            "after evaluate() or predict()",
            "the stock class does not wrap a model in DDP that accelerate has prepared for evaluation, so every rank "
            "would train a model of its own",
            "use TrainingArguments(eval_on_start=True), or evaluate after train()",
        )


def second_training(field: str, value: str) -> UserError:
    return _refused(
        field,
        value,
        "a run of isoscale is one training",
        "call train() once per script; start another run for another training",
    )


def check_prepared(loader: Any) -> None:
    """Of a loader that a script's own `get_train_dataloader` or `get_eval_dataloader` may have made."""
    if not isinstance(loader, DataLoaderShard | DataLoaderDispatcher):
        raise _refused(
            "Trainer's data loader",
            type(loader).__name__,
            "accelerate has not prepared it, so every rank of a stock script would read all that its sampler gives it",
            "return self.accelerator.prepare(loader), with a sampler that knows nothing of ranks",
        )


def check_built(trainer: Any) -> None:
    """What is known only when the stock constructor has run."""
    kwargs = trainer.accelerator.gradient_state.plugin_kwargs
    if kwargs.get("sync_each_batch"):
        raise _refused(
            "TrainingArguments(accelerator_config={'gradient_accumulation_kwargs': ...})",
            kwargs,
            "a step averages gradients once",
            "leave sync_each_batch out",
        )


def _refused(field: str, value: Any, problem: str, remedy: str) -> UserError:
    return UserError(field=field, value=value, problem=problem, remedy=remedy)
