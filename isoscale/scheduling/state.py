"""What a policy sees and what it answers: clusters, jobs, decisions. Values only.

Words: a *node* holds devices of one kind (a host with two kinds is two nodes); an *allocation* is the devices granted
to a job, as (node index, count) pairs; its *shape* is the same with kinds for indices, all that speed depends on.
*Work* is measured in a unit of each job's own (steps, samples, seconds on one device); its speed model uses the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Allocation",
    "Cluster",
    "ClusterState",
    "Decision",
    "JobRequest",
    "JobView",
    "Node",
    "Objective",
    "Pause",
    "Reject",
    "Resize",
    "Resume",
    "Shape",
    "SpeedModel",
    "Start",
    "held_by_kind",
    "num_devices",
    "packed_shape",
    "shape_of",
]

#: devices of a job: (node index, count) with positive counts, each node once, ascending
Allocation = tuple[tuple[int, int], ...]
#: (kind, count) per node used, in the order of the allocation
Shape = tuple[tuple[str, int], ...]
Objective = Literal["jct", "makespan", "throughput", "efficiency", "fairness", "cost"]
Status = Literal["pending", "running", "paused"]


class SpeedModel(Protocol):
    """How fast one job would run. Implementations are frozen or treated as such: a better fit is a new model."""

    def step_s(self, shape: Shape, batch: int = 0) -> float:
        """Seconds of one step on these devices; `batch` is the global batch, 0 the best one for the shape."""
        ...

    def rate(self, shape: Shape, batch: int = 0) -> float:
        """Work per second on these devices, statistical efficiency included; 0.0 if the job cannot run on them."""
        ...

    def best_batch(self, shape: Shape) -> int:
        """The global batch with the highest rate on these devices; 0 if the job has no choice."""
        ...

    def rates(self, kind: str, max_devices: int, node_size: int) -> NDArray[np.float64]:
        """`rate` for 0..max_devices devices of one kind, each packed onto as few nodes of `node_size` as possible."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Devices of one kind that share a host."""

    name: str
    kind: str
    num_devices: int


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The nodes, whose order gives them their indices. What follows from them is worked out once."""

    nodes: tuple[Node, ...]

    @cached_property
    def num_devices(self) -> int:
        return sum(node.num_devices for node in self.nodes)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Each kind once, in order of first appearance."""
        return tuple(dict.fromkeys(node.kind for node in self.nodes))

    @cached_property
    def nodes_of(self) -> Mapping[str, tuple[int, ...]]:
        """Indices of the nodes of each kind."""
        return {kind: tuple(i for i, node in enumerate(self.nodes) if node.kind == kind) for kind in self.kinds}

    @cached_property
    def node_sizes(self) -> Mapping[str, int]:
        """Devices of the largest node of each kind."""
        return {kind: max(self.nodes[i].num_devices for i in nodes) for kind, nodes in self.nodes_of.items()}

    def node_size(self, kind: str) -> int:
        """Devices of the largest node of this kind; 0 if there is none."""
        return self.node_sizes.get(kind, 0)

    def by_kind(self, counts: Sequence[int]) -> dict[str, int]:
        """Sums of something counted per node, by kind."""
        return {kind: sum(counts[i] for i in nodes) for kind, nodes in self.nodes_of.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a job's owner declared; constant for the job's life."""

    name: str
    submitted_s: float
    #: what the owner would ask of a rigid scheduler, and gets from rigid policies: all of it or nothing
    requested_devices: int
    #: N; 0 if the job is not made of logical workers (its batch is divided anew at every size)
    num_logical_workers: int = 0
    min_devices: int = 1
    max_devices: int = 1
    #: kinds that the job may run on, the preferred one first; () means any
    kinds: tuple[str, ...] = ()
    #: whether devices of several kinds may work together (EasyScale's D2)
    mixes_kinds: bool = False
    #: the batch the owner chose, and the range that reaches the same quality; 0 means that it is not ours to choose
    requested_batch: int = 0
    min_batch: int = 0
    max_batch: int = 0
    #: global batches that may be chosen, each without a restart; () any in the range, as the job divides it
    batch_sizes: tuple[int, ...] = ()
    #: higher is served first
    priority: int = 0
    tenant: str = ""
    #: False: the job cannot be paused or moved once it runs
    preemptible: bool = True
    #: seconds that this job stands still when its devices change, as measured or declared; None: as the cluster says
    restart_s: float | None = None
    #: what the job trains, or a hash of its script: jobs of one application are expected to be alike; "" unknown
    application: str = ""
    #: seconds, on the clock of `submitted_s`, by which it should be done; None if it does not matter
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as a live controller knows it. Replaced when something happens to the job; times run on by themselves."""

    request: JobRequest
    speed: SpeedModel
    #: counts submissions, so that jobs submitted at one moment have an order too
    order: int = 0
    status: Status = "pending"
    #: empty exactly when the job is not running
    allocation: Allocation = ()
    #: global batch in use; 0 if it is not ours to choose
    batch: int = 0
    #: when status or allocation last changed; the next two count up to that moment
    since_s: float = 0.0
    service_before_s: float = 0.0
    running_before_s: float = 0.0
    #: None until it first runs
    first_started_s: float | None = None
    #: changes of devices or batch after the first start, each of which interrupted the job
    num_restarts: int = 0
    #: changes of the batch from one that was decided to another
    num_rebatches: int = 0

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def num_devices(self) -> int:
        return num_devices(self.allocation)

    def service_s(self, now: float) -> float:
        """Device-seconds the job has held, restarts included (Tiresias' attained service)."""
        return self.service_before_s + self.num_devices * (now - self.since_s)

    def running_s(self, now: float) -> float:
        """Seconds during which the job has held devices."""
        return self.running_before_s + (now - self.since_s if self.allocation else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """Everything a policy may use. Mappings are read-only windows: look at them during `decide`, do not keep them."""

    now: float
    cluster: Cluster
    #: devices per node that work and are ours at present; at most the node's own number
    capacity: Sequence[int]
    #: of those, devices that no job holds
    free: Sequence[int]
    #: the two summed over the nodes of each kind
    capacity_of: Mapping[str, int]
    free_of: Mapping[str, int]
    #: in order of submission; the two are disjoint
    waiting: Mapping[str, JobView]
    running: Mapping[str, JobView]
    #: work still to do by job name, as declared by the owner and last reported; absent if nothing was declared
    remaining: Mapping[str, float]
    #: whether any job ever had a priority other than 0: most policies need not sort if not
    has_priorities: bool = False
    #: devices a tenant may hold while others wait (`quotas`); a tenant without an entry has no limit
    quotas: Mapping[str, int] = field(default_factory=dict)
    objective: Objective = "jct"
    #: seconds to the next decision at the earliest; 0 if one follows every event
    interval_s: float = 0.0
    #: seconds a job stands still when its devices change, as measured; what a change has to be worth
    rescale_s: float = 0.0
    #: dollars for a device of each kind and an hour: now, and on average so far; empty where nothing is paid
    prices: Mapping[str, float] = field(default_factory=dict)
    usual_prices: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Start:
    """Run a job that never ran."""

    job: str
    allocation: Allocation
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Resize:
    """Give a running job these devices (fewer, more, others) or another batch."""

    job: str
    allocation: Allocation
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """Take all devices from a running job; its state is kept."""

    job: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Run a paused job again."""

    job: str
    allocation: Allocation
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Reject:
    """Drop a waiting job for good."""

    job: str
    reason: str


Decision = Start | Resize | Pause | Resume | Reject


def num_devices(allocation: Allocation) -> int:
    total = 0
    for _, count in allocation:  # asked several times for every event: a generator would cost twice as much
        total += count
    return total


def shape_of(cluster: Cluster, allocation: Allocation) -> Shape:
    """What speed depends on.

    >>> cluster = Cluster(nodes=(Node(name="a", kind="T4", num_devices=4), Node(name="b", kind="V100", num_devices=8)))
    >>> shape_of(cluster, ((0, 1), (1, 8)))
    (('T4', 1), ('V100', 8))
    """
    return tuple((cluster.nodes[node].kind, count) for node, count in allocation)


def held_by_kind(cluster: Cluster, allocation: Allocation) -> dict[str, int]:
    """Devices of an allocation by kind, kinds in the cluster's order."""
    held: dict[str, int] = {}
    for node, count in allocation:
        kind = cluster.nodes[node].kind
        held[kind] = held.get(kind, 0) + count
    return {kind: held[kind] for kind in cluster.kinds if kind in held} if len(held) > 1 else held


def packed_shape(kind: str, count: int, node_size: int) -> Shape:
    """`count` devices on as few nodes as possible.

    >>> packed_shape("T4", 6, 4)
    (('T4', 4), ('T4', 2))
    """
    full, rest = divmod(count, node_size)
    return ((kind, node_size),) * full + (((kind, rest),) if rest else ())
