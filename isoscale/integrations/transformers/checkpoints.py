"""Checkpoint folders of a trainer on logical workers: written once, with the random streams of all of them.

The first executor writes, and a seal of all executors says that it is whole. If the first one is lost on the way, its
successor writes the folder again.
"""

from __future__ import annotations

from typing import Any

from isoscale.integrations.transformers import world
from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["Checkpoints"]


class Checkpoints:
    """The methods of a trainer that save and load what belongs to processes."""

    _loop: TrainingLoop
    store_flos: Any

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        loop, is_saved = self._loop, False
        self.store_flos()
        loop.engine.carried = None  # what workers carry from turn to turn has no part in this
        while True:
            if loop.is_main:
                super()._save_checkpoint(model, trial)  # type: ignore[misc]
                is_saved = True
            before = loop.engine.exchange
            sealed = loop.engine.seal_end(f"checkpoint folder, step {loop.step}", "")
            loop.committed_evaluation(sealed)
            if loop.engine.exchange is before:
                break
        if not is_saved:
            # Nothing is written here; it finds the best checkpoint, and counts.
            super()._save_checkpoint(model, trial)  # type: ignore[misc]

    def _save_rng_state(self, output_dir: str) -> None:
        if world.is_main():
            save = super()._save_rng_state  # type: ignore[misc]
            for rank in range(self._loop.spec.workers):
                self._as_worker(rank, lambda: save(output_dir))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        for rank in range(self._loop.spec.workers):
            self._as_worker(rank, lambda rank=rank: self._load_streams_of(rank, checkpoint))

    def _load_streams_of(self, logical_rank: int, checkpoint: str | None) -> None:
        """With its context active."""
        turn = self._loop.engine.turn
        before, turn.logical_rank = turn.logical_rank, logical_rank
        try:
            super()._load_rng_state(checkpoint)  # type: ignore[misc]
        finally:
            turn.logical_rank = before

    def _as_worker(self, logical_rank: int, work: Any) -> None:
        """Outside turns: with a worker's streams active, and its number as the process's."""
        engine = self._loop.engine
        engine.turn.logical_rank = logical_rank
        try:
            engine.contexts.run_under(logical_rank, work)
        finally:
            engine.turn.logical_rank = None
