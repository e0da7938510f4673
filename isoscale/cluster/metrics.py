"""The cluster in the text format that Prometheus scrapes: devices, jobs by state and reason, the service itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from isoscale.cluster.values import JobShown, NodeShown
from isoscale.protocol.prometheus import family

__all__ = ["metrics_text"]


def metrics_text(
    nodes: Sequence[NodeShown], jobs: Sequence[JobShown], counts: Mapping[str, int], service: Mapping[str, float]
) -> str:
    """`jobs`: those that are not over; `counts`: all, by state; `service`: gauges of its own by name."""
    lines: list[str] = []
    states = Counter((node.name, node.kind, device.state) for node in nodes for device in node.devices)
    samples = [({"node": node, "kind": kind, "state": state}, n) for (node, kind, state), n in sorted(states.items())]
    lines += family("isoscale_cluster_devices", "Devices by state.", samples)
    by_state = [({"state": state}, n) for state, n in sorted(counts.items())]
    lines += family("isoscale_cluster_jobs", "Jobs by state.", by_state)
    reasons = Counter((job.state, job.why.reason) for job in jobs)
    told = [({"state": state, "reason": reason}, n) for (state, reason), n in sorted(reasons.items())]
    lines += family("isoscale_cluster_jobs_why", "Jobs that are not over, by why they are where they are.", told)
    for name, words, value in (
        ("isoscale_job_devices", "Devices that a job holds.", lambda job: len(job.devices)),
        ("isoscale_job_step", "Committed steps.", lambda job: job.step),
        ("isoscale_job_steps_per_second", "Steps per second of late.", lambda job: job.steps_per_s),
        ("isoscale_job_loss", "Loss of the last committed step.", lambda job: job.loss),
    ):
        of_jobs = [({"id": job.id, "name": job.name, "tenant": job.tenant}, value(job)) for job in jobs]
        lines += family(name, words, of_jobs)
    for name, number in service.items():
        lines += family(f"isoscale_service_{name}", "Of the service itself.", [({}, number)])
    return "".join(f"{line}\n" for line in lines)
