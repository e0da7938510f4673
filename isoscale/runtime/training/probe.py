"""The seam by which tools look into a job while it trains: tracing and replaying.

A job has at most one probe and calls it at the places below; without one nothing is called. A probe reads; it must
leave tensors, gradients and random streams as they are. Both the elastic job and the reference call it, so what it
sees can be compared place by place.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Probe"]


class Probe(Protocol):
    def before_step(self, step: int) -> None:
        """At `next()` of a training loader, all code outside turns done; `step` counts from 1."""

    def turn_begins(self, logical_rank: int, batch: object) -> None:
        """The batch is about to be handed to the user's loop, the logical worker's streams are active."""

    def turn_ends(self, logical_rank: int) -> None:
        """The user's loop came back for the next batch; gradients of the turn are still in place."""

    def reduced(self, step: int) -> None:
        """The step is committed: `.grad` holds the average over all logical workers."""

    def after_step(self, step: int) -> None:
        """The body of the user's loop over steps has run, optimizer included."""

    def ended(self, step: int) -> None:
        """The training function returned."""
