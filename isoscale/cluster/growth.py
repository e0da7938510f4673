"""What a cluster that grows would have to have for the jobs that wait for devices. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from isoscale.cluster.picture import Picture
from isoscale.cluster.values import JobRecord
from isoscale.cluster.why import explain

__all__ = ["wanted"]

#: reasons to wait that another device would take away
_HELPED = ("unknown_kind", "too_large", "preempted", "no_free_device")


def wanted(jobs: Iterable[JobRecord], picture: Picture) -> Mapping[str, int]:
    """Devices by kind: all that are held, and what each waiting job needs to begin; nothing if none waits for them.

    No more than that: what nodes cost is their owner's to decide, and jobs that have begun do without more.
    """
    missing: Counter[str] = Counter()
    for job in jobs:
        if job.id in picture.jobs and explain(job, picture).reason in _HELPED:
            missing[job.submission.kinds[0] if job.submission.kinds else "cpu"] += max(1, job.submission.min_devices)
    if not missing:
        return {}
    kinds = {device: node.kind for node in picture.nodes for device in node.devices if device not in node.away}
    return missing + Counter(kinds[device] for device in picture.holders if device in kinds)
