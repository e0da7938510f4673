"""`TrainingArguments` whose processes are logical workers.

`per_device_train_batch_size` is per logical worker; `world_size` is their number, whatever number of executors there
is; `process_index` is the logical worker whose turn it is. Files are written where `should_save` is true: on one
executor at a time.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import transformers

from isoscale.integrations.transformers import refusals, world
from isoscale.integrations.transformers.live import LiveArguments

__all__ = ["LogicalArguments", "Seq2SeqTrainingArguments", "TrainingArguments"]


class LogicalArguments:
    """What `TrainingArguments` say of processes."""

    _stock: type[Any]

    def __post_init__(self) -> None:
        refusals.check_arguments(vars(self))
        job = world.loop()
        if job.device.type == "cpu":
            # What a stock script on CPUs has to say for itself, or each of its processes trains alone.
            self.use_cpu = True
        super().__post_init__()  # type: ignore[misc]
        world.describe()

    @property
    def world_size(self) -> int:
        return world.loop().spec.workers

    @property
    def process_index(self) -> int:
        return world.number_here()

    @property
    def local_process_index(self) -> int:
        return world.number_here()

    @property
    def should_save(self) -> bool:
        return world.is_first()

    @property
    def should_log(self) -> bool:
        return world.is_first()

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Every executor does the work for itself: a job has no process that others could wait for."""
        yield

    def __reduce_ex__(self, protocol: Any) -> Any:
        """`training_args.bin` holds the stock class, so that it can be read where isoscale is not installed."""
        own = {one.name for one in dataclasses.fields(LiveArguments)}
        return _stock_arguments, (self._stock, {name: value for name, value in vars(self).items() if name not in own})

    def to_dict(self) -> dict[str, Any]:
        """A rule of the script's own goes by its name, which JSON can hold."""
        found: dict[str, Any] = super().to_dict()  # type: ignore[misc]
        if callable(rule := found["batch_rule"]):
            found["batch_rule"] = getattr(rule, "__name__", type(rule).__name__)
        return found

    def __copy__(self) -> LogicalArguments:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> LogicalArguments:
        made = object.__new__(type(self))
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made


def _stock_arguments(stock: type[Any], attributes: dict[str, Any]) -> Any:
    made = object.__new__(stock)
    made.__dict__.update(attributes)
    return made


@dataclass
class TrainingArguments(LogicalArguments, LiveArguments, transformers.TrainingArguments):
    """`transformers.TrainingArguments` for logical workers."""

    _stock = transformers.TrainingArguments


@dataclass
class Seq2SeqTrainingArguments(LogicalArguments, LiveArguments, transformers.Seq2SeqTrainingArguments):
    """`transformers.Seq2SeqTrainingArguments` for logical workers."""

    _stock = transformers.Seq2SeqTrainingArguments
