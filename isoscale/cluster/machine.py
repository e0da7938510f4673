"""This machine as a cluster: its devices by kind, and the core of each where devices are pinned."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

from isoscale.errors import UserError
from isoscale.kinds import DeviceSet, check_kind
from isoscale.scheduling.state import Cluster, Node

__all__ = ["make_cluster", "pin_devices"]


def make_cluster(devices: str) -> Cluster:
    """This machine: a node for each kind. Raises UserError."""
    found = DeviceSet.parse(devices)
    for kind in found.kinds:
        check_kind(kind)
    counts = found.counts()
    alone = len(counts) == 1
    return Cluster(
        nodes=tuple(
            Node(name="local" if alone else f"local-{kind}", kind=kind, num_devices=count)
            for kind, count in counts.items()
        )
    )


def pin_devices(devices: Sequence[Sequence[str]], cores: Sequence[int] | None = None) -> dict[str, tuple[int, ...]]:
    """A core for each device, in order: by default of those that this process may use. Raises UserError.

    >>> pin_devices([["local/cpu/0", "local/cpu/1"]], [0, 3])
    {'local/cpu/0': (0,), 'local/cpu/1': (3,)}
    """
    there = sorted(os.sched_getaffinity(0)) if cores is None else cores
    names = list(itertools.chain.from_iterable(devices))
    if len(names) > len(there):
        raise UserError(
            field="--pin",
            value=f"{len(names)} devices",
            problem=f"more than the {len(there)} cores that the service may use",
            remedy=f'give --devices "cpu*{len(there)}", or leave --pin out',
        )
    return {name: (core,) for name, core in zip(names, there, strict=False)}
