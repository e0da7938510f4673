"""A progress bar that another executor can go on with: the first one may leave or die."""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import ProgressCallback

__all__ = ["MovingProgressCallback"]


class MovingProgressCallback(ProgressCallback):
    """As the stock one; the bar is made where it is first needed."""

    def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        self._take_over(args, state, control)
        if self.training_bar is not None:
            self.training_bar.total = state.max_steps  # other than it was once the batch size has changed
        super().on_step_end(args, state, control, **options)

    def on_train_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        self._take_over(args, state, control)
        super().on_train_end(args, state, control, **options)

    def _take_over(self, args: Any, state: Any, control: Any) -> None:
        if state.is_world_process_zero and self.training_bar is None:
            self.on_train_begin(args, state, control)
