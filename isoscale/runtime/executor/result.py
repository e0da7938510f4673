"""What a job leaves on the disk when its training function is over: `final.pt`, or the last state before a crash.

In the run's directory, or where that went. Which executor writes, and when, is for the caller to decide.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from isoscale.errors import IsoscaleError
from isoscale.protocol import messages as m
from isoscale.protocol.files import write_json_atomic
from isoscale.runtime.control.directory import control_directory
from isoscale.runtime.control.executor_link import Link
from isoscale.runtime.control.home import Home, is_elsewhere
from isoscale.runtime.executor.checkpoint_writer import CheckpointWriter
from isoscale.runtime.executor.depot import Depot
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.state import Tree, atomic_save

__all__ = ["save_after_crash", "save_result"]

_NAME = "final.pt"


def save_result(
    loop: TrainingLoop,
    link: Link,
    home: Home,
    finished: m.Finished,
    unheard: Callable[[], Sequence[bytes]],
    depot: Depot | None = None,
) -> None:
    """Training is done. Raises IsoscaleError if there is no place for what came out.

    `unheard`: facts that no coordinator may have heard, as messages. This process may be gone before one comes."""
    start = time.perf_counter()
    state = loop.state.final(loop.step)
    untold = [base64.b64encode(frame).decode() for frame in unheard()]
    result: dict[str, object] = {"step": finished.step, "digest": finished.digest, "stop_reason": finished.stop_reason}
    result["unheard"] = untold
    try:
        path = _written(home, state, result) if depot is None else _brought(depot, home, state, finished, untold)
    except (OSError, RuntimeError) as error:  # torch's own writer raises the latter
        reason = next((e.strerror for e in (error, error.__context__) if isinstance(e, OSError) and e.strerror), error)
        raise IsoscaleError(
            f"{loop.out / _NAME}: training is done, but its result cannot be written ({reason}); free space on the "
            f"disk, then isoscale resume {loop.out} goes on from the last checkpoint"
        ) from error
    shown = _NAME if path.parent == home.out else str(path)
    link.send(m.Saved(step=loop.step, path=shown, seconds=round(time.perf_counter() - start, 6)))


def save_after_crash(
    loop: TrainingLoop, writer: CheckpointWriter, generation: int, home: Home, depot: Depot | None = None
) -> None:
    """The script raised. In a turn, the last committed step is still whole; outside turns it is half done."""
    engine = loop.engine
    loader = next((one for one in loop.training_loaders.values() if one.is_open), None)
    in_turn = engine.turn.logical_rank is not None and engine.turn.training
    if in_turn and loader is not None and engine.contexts.can_rewind:
        engine.turn.logical_rank = None
        engine.rewind()
        writer.write_now(loop, loader, generation)
    elif loop.step and not loop.approaching:
        path = home.find() / "crashed.pt"
        atomic_save(loop.state.final(loop.step), path)
        if depot is not None:
            depot.keep_crashed(path, loop.step)


def _brought(depot: Depot, home: Home, state: Tree, finished: m.Finished, untold: Sequence[str]) -> Path:
    """To the run's storage; the coordinator puts it where it is looked for."""
    path = depot.scratch / _NAME
    atomic_save(state, path)
    depot.keep_result(path, finished.step, finished.digest, finished.stop_reason, untold)
    path.unlink()
    return home.out / _NAME


def _written(home: Home, state: Tree, result: dict[str, object]) -> Path:
    """Where the result is: in the run's directory, or where that went, or beside it if it cannot be written."""
    place = home.find()
    try:
        return _write_result(place, state, result)
    except (OSError, RuntimeError) as error:
        if home.is_rescued(place) or not is_elsewhere(error):
            raise
        return _write_result(home.rescue(), state, result)


def _write_result(place: Path, state: Tree, result: dict[str, object]) -> Path:
    atomic_save(state, place / _NAME)
    control_directory(place).mkdir(exist_ok=True)
    write_json_atomic(control_directory(place) / "result.json", result)
    return place / _NAME
