"""A job's status in the text format that Prometheus scrapes. Reads nothing but the status that it is given.

What is unknown is left out, as in `isoscale status`.
"""

from __future__ import annotations

from isoscale.protocol.prometheus import family
from isoscale.protocol.status import JobStatus

__all__ = ["metrics_text"]

#: name, key of the status, what it is
_OF_JOB = (
    ("isoscale_step", "step", "Committed steps."),
    ("isoscale_loss", "loss", "Loss of the last committed step."),
    ("isoscale_steps_per_second", "steps_per_s", "Steps per second of late."),
    ("isoscale_noise_scale_samples", "noise_scale", "Gradient noise scale, as it was last measured."),
    ("isoscale_logical_workers", "workers", "Logical workers of the job."),
    ("isoscale_generation", "generation", "Rescales and recoveries so far, one each."),
    ("isoscale_term", "term", "Coordinators that the job has had."),
)
_OF_EXECUTOR = (
    ("isoscale_executor_turn_seconds", "turn_s", "Seconds of one turn."),
    ("isoscale_executor_idle_ratio", "idle", "Share of a step that it waits for others."),
    ("isoscale_executor_last_seen_seconds", "last_seen_s", "Seconds since its last heartbeat."),
)


def metrics_text(status: JobStatus, run: str) -> str:
    """`run` tells jobs of one script apart: the name of the run's directory."""
    # Not called "job": that label is the scraper's own.
    job = {"run": run}
    script = {**job, "script": str(status.get("job") or "")}
    executors = status.get("executors", [])
    lines: list[str] = []
    state = str(status.get("state") or "unknown")
    lines += family("isoscale_state", "1 for the state that the job is in.", [({**script, "state": state}, 1)])
    for name, key, words in _OF_JOB:
        lines += family(name, words, [(job, status.get(key))])
    if (batch := status.get("batch")) is not None:
        lines += family("isoscale_batch_size", "Batch size of a logical worker.", [(job, batch["size"])])
    checkpoint = status.get("checkpoint")
    if checkpoint:
        lines += family("isoscale_checkpoint_step", "Step of the newest checkpoint.", [(job, checkpoint.get("step"))])
        lines += family("isoscale_checkpoint_age_seconds", "Its age.", [(job, checkpoint.get("age_s"))])
    states = sorted({str(one.get("state")) for one in executors})
    counts = [({**job, "state": state}, sum(str(one.get("state")) == state for one in executors)) for state in states]
    lines += family("isoscale_executors", "Executors by state.", counts)
    for name, key, words in _OF_EXECUTOR:
        labels = [{**job, "executor": one.get("executor"), "kind": one.get("kind")} for one in executors]
        values = [one.get(key) for one in executors]
        lines += family(name, words, list(zip(labels, values, strict=True)))
    return "".join(f"{line}\n" for line in lines)
