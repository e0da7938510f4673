"""Batch sizes of a trainer that change while it trains: its declaration, its steps, and what of a trainer follows.

`TrainingArguments(batch_sizes=(8, 16, 32), batch_rule="sqrt")` declares them as `job.loader` does; the size is
`per_device_train_batch_size`. The classes here stand before the stock classes, in the reference too: what a trainer
counts in steps (`state.max_steps` of a training by epochs) has to be counted anew when a step holds more samples.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from isoscale.integrations.transformers.live_reading import LiveReading
from isoscale.integrations.transformers.passage import Passage
from isoscale.integrations.transformers.steps import Steps

__all__ = ["LiveArguments", "LiveSizes", "LiveSteps"]


@dataclass
class LiveArguments:
    """What a script declares. Any function of the old and the new size is a rule, too."""

    batch_sizes: list[int] | None = field(
        default=None,
        metadata={"help": "Values that per_device_train_batch_size may have while a job of isoscale trains."},
    )
    batch_rule: str | None = field(
        default=None, metadata={"help": "What learning rates are multiplied with then: linear, sqrt or none."}
    )


class LiveSizes:
    """The methods of a trainer that know of numbers of steps."""

    args: Any
    state: Any
    _train_batch_size: int
    #: as the stock class finds it from the first size
    _num_train_epochs: int

    @property
    def is_live(self) -> bool:
        return self.args.batch_sizes is not None

    def set_initial_training_values(self, *args: Any, **options: Any) -> Any:
        values = super().set_initial_training_values(*args, **options)  # type: ignore[misc]
        self._num_train_epochs = values[0]
        if not self.is_live or self.args.max_steps <= 0:
            return values
        return (sys.maxsize, *values[1:])  # as many passes as `max_steps` need, whatever sizes they have

    def _init_training_state(
        self, max_steps: int, steps_per_epoch: int, num_train_epochs: int, *rest: Any, **options: Any
    ) -> tuple[int, int]:
        begun: tuple[int, int] = super()._init_training_state(  # type: ignore[misc]
            max_steps, steps_per_epoch, self._num_train_epochs, *rest, **options
        )
        return begun

    def size_changed(self, size: int, *, epoch: int, steps_left: int, steps_per_pass: int) -> None:
        """From here on; `steps_left` in the present pass, and so many in those to come."""
        self.take_size(size)
        if self.args.max_steps <= 0:
            to_come = self.state.num_train_epochs - epoch - 1
            self.state.max_steps = self.state.global_step + steps_left + to_come * steps_per_pass

    def take_size(self, size: int) -> None:
        self._train_batch_size = self.state.train_batch_size = self.args.per_device_train_batch_size = size


class LiveSteps(Steps):
    """Steps whose batch size may change. `on_size` is told of a change, on all executors alike."""

    reading: LiveReading

    def __init__(self, *args: Any, on_size: Callable[[int], None], **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_size = on_size

    @property
    def passage(self) -> Passage:
        return self.reading.passage

    def try_size(self, size: int) -> bool:
        return self.reading.has_left(self.index, size)

    def take_size(self, size: int) -> None:
        contexts, reading = self._loop.engine.contexts, self.reading
        reading.resize(self.index, size, contexts.draw_base_seeds() if reading.needs_draw(self.index) else None)
        self._on_size(size)

    def keep_size(self, size: int) -> None:
        pass

    def steps_per_pass(self) -> int:
        return self.reading.steps_per_pass
