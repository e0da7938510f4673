"""What a trainer knows beside model, optimizer and schedule, as state that is kept: progress, logs, callbacks, control.

Seconds are left out of what is kept of the logs: every executor has its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from transformers.trainer_callback import ExportableState

__all__ = ["TrainerRecord", "is_timing"]

#: of the trainer, beside `state` and `control`
_NUMBERS = (
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "_last_grad_norm",
    "_last_learning_rate",
)
#: of `TrainerState`, that belong to the process and not to the job
_OWN = frozenset({"is_local_process_zero", "is_world_process_zero", "stateful_callbacks", "log_history"})
_TIMING = ("_runtime", "_per_second", "_model_preparation_time")


def is_timing(name: str) -> bool:
    """Whether a metric is a duration or a rate."""
    return name.endswith(_TIMING)


class TrainerRecord:
    """`state_dict` and `load_state_dict` of a trainer, for `job.keep`."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        fields = {f.name: getattr(trainer.state, f.name) for f in dataclasses.fields(trainer.state)}
        return {
            "state": {name: value for name, value in fields.items() if name not in _OWN},
            "log_history": [
                {name: value for name, value in entry.items() if not is_timing(name)}
                for entry in trainer.state.log_history
            ],
            "control": trainer.control.state()["args"],
            "callbacks": [callback.state()["attributes"] for callback in self._stateful()],
            "numbers": {name: getattr(trainer, name, None) for name in _NUMBERS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        trainer = self._trainer
        for name, value in state["state"].items():
            setattr(trainer.state, name, value)
        trainer.state.log_history = [dict(entry) for entry in state["log_history"]]
        for name, value in state["control"].items():
            setattr(trainer.control, name, value)
        for callback, attributes in zip(self._stateful(), state["callbacks"], strict=True):
            for name, value in attributes.items():
                setattr(callback, name, value)
        for name, value in state["numbers"].items():
            setattr(trainer, name, value)
        trainer.record_loaded()

    def _stateful(self) -> list[Any]:
        return [one for one in self._trainer.callback_handler.callbacks if isinstance(one, ExportableState)]
