"""How trackers are told values and closed: by the names of their methods, as TensorBoard, wandb and MLflow have them.

Knows none of these libraries. A tracker of another shape comes with functions of its own (`job.on_main(log=, close=)`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from isoscale.errors import UserError
from isoscale.runtime.training.sink import Value

__all__ = ["Close", "Log", "close_of", "log_of"]

#: takes the tracker, values by name, and the number of committed steps
Log = Callable[[Any, Mapping[str, Value], int], object]
Close = Callable[[Any], object]

#: how a tracker is closed, the most particular name first
_CLOSING = ("finish", "end_run", "close")


def log_of(tracker: object) -> Log:
    """Raises UserError if it has no method that takes values."""
    if callable(getattr(tracker, "log_metrics", None)):  # MLflow, Comet, loggers of Lightning
        return lambda one, values, step: one.log_metrics(_numbers(values), step=step)
    if callable(getattr(tracker, "log", None)):  # wandb
        return lambda one, values, step: one.log(dict(values), step=step)
    if callable(getattr(tracker, "add_scalar", None)):  # TensorBoard
        return _add_scalars
    raise UserError(
        field="job.on_main(factory)",
        value=type(tracker).__name__,
        problem="has none of the methods log_metrics, log and add_scalar, so it cannot be told what is logged",
        remedy="give job.on_main(factory, log=...), a function of the object, a dict of values and the step; "
        "log=None for an object that is told nothing",
    )


def close_of(tracker: object) -> Close:
    """Calls the first closing method that it has; nothing happens if it has none."""
    name = next((name for name in _CLOSING if callable(getattr(tracker, name, None))), None)
    return (lambda one: getattr(one, name)()) if name is not None else (lambda one: None)


def _add_scalars(tracker: Any, values: Mapping[str, Value], step: int) -> None:
    for name, value in _numbers(values).items():
        tracker.add_scalar(name, value, step)


def _numbers(values: Mapping[str, Value]) -> dict[str, float]:
    """Curves are of numbers; texts and None are in the event log."""
    return {name: float(value) for name, value in values.items() if isinstance(value, bool | int | float)}
