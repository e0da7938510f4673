"""Values that every layer shares: where logical workers live, and what a job is.

Pure data with the arithmetic that belongs to it. No torch, no I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from isoscale.batches import BatchChange

__all__ = ["JobSpec", "Level", "Order", "Placement", "RayOptions", "Settings", "StepPlace", "Whereabouts"]

Level = Literal["off", "elastic", "heterogeneous"]
Order = Literal["ddp", "tree"]
#: where in a step an executor can be
StepPlace = Literal["outside", "turn", "evaluation", "exchange"]


class _Starts:
    """Room beside a placement's fields for what follows from them: no part of its equality, hash or serialisation."""

    __slots__ = ("_starts",)
    _starts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement(_Starts):
    """Which executor hosts which logical workers: contiguous blocks in executor order.

    >>> p = Placement(shares=(3, 1))
    >>> list(p.ranks_of(0)), list(p.ranks_of(1)), p.executor_of(3)
    ([0, 1, 2], [3], 1)
    """

    #: number of logical workers per executor, all positive; executor index is the position
    shares: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.shares or min(self.shares) < 1:
            raise ValueError(f"shares={self.shares}: every executor hosts at least one logical worker")

    @classmethod
    def even(cls, num_logical_workers: int, num_executors: int) -> Placement:
        """As equal as possible, the larger shares first.

        >>> Placement.even(7, 3).shares
        (3, 2, 2)
        """
        base, extra = divmod(num_logical_workers, num_executors)
        return cls(shares=tuple(base + (e < extra) for e in range(num_executors)))

    @property
    def num_logical_workers(self) -> int:
        return self._first_ranks()[-1] + self.shares[-1]

    @property
    def num_executors(self) -> int:
        return len(self.shares)

    def ranks_of(self, executor_index: int) -> range:
        first = self._first_ranks()[executor_index]
        return range(first, first + self.shares[executor_index])

    def executor_of(self, logical_rank: int) -> int:
        """Asked for every chunk of every bucket of every step: a bisection, not a walk."""
        if not 0 <= logical_rank < self.num_logical_workers:
            count = self.num_logical_workers
            raise ValueError(f"logical_rank={logical_rank}: the placement has {count} logical workers")
        return bisect_right(self._first_ranks(), logical_rank) - 1

    def _first_ranks(self) -> tuple[int, ...]:
        """The first logical rank of each executor."""
        try:
            return self._starts
        except AttributeError:  # not yet, or this is a copy, which has only fields
            starts = tuple(accumulate(self.shares[:-1], initial=0))
            object.__setattr__(self, "_starts", starts)
            return starts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Everything that fixes a job's result, plus where it writes. Constant for a job's life."""

    workers: int
    seed: int = 0
    threads: int = 1
    order: Order = "ddp"
    determinism: Level = "elastic"
    #: every kind the job may ever meet
    kinds: tuple[str, ...] = ("cpu",)
    #: name of the numeric profile all executors run at; "" lets every kind run at its own best
    profile: str = ""
    #: directory of events, checkpoints and results; "" writes nothing
    out: str = ""
    #: stop when this many steps are committed; 0 means the script decides
    until: int = 0
    #: compare digests between executors every so many steps; 0 only at the end
    audit_every: int = 100
    script: str = ""
    #: the name under which it was started, as by `python -m`; "" as a file
    module: str = ""
    script_args: tuple[str, ...] = ()
    #: digests of the code that the job has kept (`runtime.code`) and of the script in it; "" before it has
    code: str = ""
    script_sha256: str = ""
    #: write every logical worker's values of every step and tensor digests (used by `verify`)
    record: bool = False
    #: write a trace into `out`/trace (used by `verify --explain`): None nothing, 0 a few digests of every step,
    #: k every operator of step k
    trace: int | None = None
    #: write what the models are made of to `out`/anatomy.json (used by `check`)
    anatomy: bool = False
    #: batch size of training loaders instead of the script's (used by `profile`, whose results nobody keeps); 0: the
    #: script's own
    batch: int = 0
    #: which batch size a job with `batch_sizes` has from which step on, in ascending order of steps
    batch_plan: tuple[BatchChange, ...] = ()
    #: the plan is another run's, which is trained again: nothing else may change the size
    is_repeat: bool = False
    #: estimate the gradient noise scale every so many steps; 0: never
    measure_noise: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """On which Ray cluster a job runs, and what each of its executors takes there."""

    #: HOST:PORT of its head; "": the cluster of this machine, or a small one of the coordinator's own
    address: str = ""
    cores: float = 1.0
    #: 0: whatever it needs
    memory_bytes: int = 0
    #: a directory that Ray brings to every node, for executors to work in; "": all nodes have the coordinator's
    working_dir: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a job is run, as opposed to what it computes: none of it changes a bit of the result."""

    #: warm processes that wait to become executors
    spares: int = 0
    #: start processes for executors that are missing; otherwise wait for some to join
    spawn: bool = True
    #: fork executors from a process that has imported torch already, where that gives the same
    warm: bool = True
    #: write a checkpoint every so many steps; 0 only when asked
    checkpoint_every: int = 0
    keep_checkpoints: int = 3
    #: an executor that says nothing for so long is taken for dead, and killed
    heartbeat_s: float = 1.0
    lost_after_s: float = 10.0
    #: one that is alive but keeps the others waiting for so long is, too
    stalled_after_s: float = 1800.0
    #: how long executors that cannot go on wait for a coordinator
    orphan_s: float = 600.0
    #: how long whoever was told to go (SIGTERM) may stay: a whole job that was is ended with a checkpoint by then
    notice_s: float = 30.0
    #: move logical workers away from executors whose turns take longer than `straggler_ratio` times the median
    #: for `straggler_steps` steps
    rebalance: bool = True
    straggler_ratio: float = 1.2
    straggler_steps: int = 10
    #: probability with which a turn is run again on another executor and compared
    audit_turns: float = 0.0
    #: somebody wants more of the run than its figures: what `job.on_main` makes, and a checkpoint at the end
    lasting: bool = True
    #: the line by which a person began the job; "" if none did
    command: str = ""
    #: a cluster service grants the job its devices (`runtime.control.grants`), and may want them back at any time
    granted: bool = False
    #: address that the job's sockets bind to
    host: str = "127.0.0.1"
    #: executors run on a Ray cluster; None: on this machine
    ray: RayOptions | None = None
    #: URL under which the run keeps what must survive a machine, for machines that share no disk; "": DIR is enough
    storage: str = ""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where an executor is, or was, in a step."""

    place: StepPlace
    #: committed steps
    step: int
    #: whose turn it was, in a turn
    logical_rank: int | None = None

    def __str__(self) -> str:
        match self.place:
            case "turn":
                return f"in step {self.step + 1} (turn of logical worker {self.logical_rank})"
            case "evaluation":
                return f"in the evaluation after step {self.step} (turn of logical worker {self.logical_rank})"
            case "exchange":
                return f"in the exchange of step {self.step + 1}"
        return f"outside turns, after step {self.step}"
