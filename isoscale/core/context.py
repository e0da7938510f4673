"""What a logical worker carries from turn to turn, and the switch between workers.

A context is the worker's random streams and its per-worker objects. Parameters and optimizer are
shared by all, activations are dead when the switch happens, and buffers live with their model
(`core.buffers`), so a switch moves a few kilobytes. Streams appear when the first job loader is
iterated, seeded `seed + logical_rank`; before that, and outside turns, the job-wide stream is active.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from isoscale.core.encoding import codec
from isoscale.core.streams import rng
from isoscale.core.turn_end import ContextEnd

__all__ = ["ContextSwitch", "PerWorker"]

#: Python, NumPy, torch, CUDA: the parts of `rng.Streams` as they travel
_STREAM_PARTS = 4


class PerWorker:
    """Stands for one object per logical worker: every use reaches the object of the worker whose turn it is."""

    __slots__ = ("_current", "_name", "_objects")

    def __init__(self, name: str, objects: list[Any]) -> None:
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_objects", objects)
        object.__setattr__(self, "_current", objects[0])

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._current, attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(self._current, attribute, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._current(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self._current[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._current[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._current[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._current)

    def __len__(self) -> int:
        return len(self._current)

    def __bool__(self) -> bool:
        return bool(self._current)

    def __contains__(self, key: Any) -> bool:
        return key in self._current


class ContextSwitch:
    """Holds the contexts of all logical workers of a job and makes one of them active."""

    def __init__(self, num_logical_workers: int, seed: int) -> None:
        self._n = num_logical_workers
        self._seed = seed
        self._streams: list[rng.Streams] | None = None
        self._job_streams: rng.Streams | None = None
        #: the logical rank whose context is active, None outside turns
        self.active: int | None = None
        self._generators: dict[str, tuple[torch.Generator, list[torch.Tensor]]] = {}
        self._objects: dict[str, PerWorker] = {}
        #: contexts as the step found them, so that it can be done again
        self._marked_streams: list[rng.Streams] = []
        self._marked_generators: dict[str, list[torch.Tensor]] = {}
        #: per logical rank, its objects' states as last agreed on by all executors
        self._packed: dict[int, bytes] = {}

    @property
    def started(self) -> bool:
        return self._streams is not None

    def start(self) -> None:
        """Give every logical worker its fresh streams. Called at the first `iter()` of a job loader."""
        if self._streams is None:
            self._streams = [rng.seeded(self._seed + rank) for rank in range(self._n)]

    def start_alike(self, streams: rng.Streams) -> None:
        """Every logical worker goes on with the same streams, as ranks do that were all seeded alike."""
        self._streams = [streams] * self._n

    def add_per_worker(self, name: str, factory: Callable[..., Any]) -> Any:
        """Call `factory` once per logical worker, each time from the same random state."""
        made = []
        for rank in range(self._n):
            with rng.isolated():
                made.append(factory(rank) if _takes_rank(factory) else factory())
        if isinstance(made[0], torch.Generator):
            # A Generator is handed to torch functions as it is, so one object stands for all, switched by state.
            self._generators[name] = (made[0], [g.get_state() for g in made])
            return made[0]
        proxy = PerWorker(name, made)
        self._objects[name] = proxy
        return proxy

    def enter(self, logical_rank: int) -> None:
        """Make a logical worker's context active; from outside or straight from another worker."""
        assert self._streams is not None
        before = rng.swap(self._streams[logical_rank])
        if self.active is None:
            self._job_streams = before
        else:
            self._save(before)
        for generator, states in self._generators.values():
            generator.set_state(states[logical_rank])
        for proxy in self._objects.values():
            object.__setattr__(proxy, "_current", proxy._objects[logical_rank])
        self.active = logical_rank

    def leave(self) -> None:
        """Back to the job-wide stream."""
        if self.active is None:
            return
        assert self._job_streams is not None
        self._save(rng.swap(self._job_streams))
        self.active = None

    # ---- a step that may have to be done again, on executors that must all know all contexts ----

    def mark(self, *, shared: bool, anew: bool = False) -> None:
        """A step begins. Objects are remembered only where this executor is not the only one, or with `anew`: then what
        turns have changed was not taken over by `adopt`."""
        assert self._streams is not None
        self._marked_streams = list(self._streams)
        self._marked_generators = {name: list(states) for name, (_, states) in self._generators.items()}
        if anew or not shared:
            self._packed = {}  # nobody else knows them, so they are no common ground
        if shared and self._objects and len(self._packed) < self._n:
            self._packed = {rank: self._pack_objects(rank) for rank in range(self._n)}

    @property
    def can_rewind(self) -> bool:
        """Not where per-worker objects were not remembered, because nobody else was there to do the step again with."""
        return not self._objects or len(self._packed) == self._n

    def rewind(self) -> None:
        """All contexts are again as the step found them."""
        self.leave()
        self._streams = list(self._marked_streams)
        for name, states in self._marked_generators.items():
            self._generators[name][1][:] = states
        for rank, packed in self._packed.items():
            self._load_objects(rank, packed)

    def rewind_one(self, logical_rank: int) -> None:
        """One context is again as the step found it: its turn was run here only to be compared."""
        self.leave()
        assert self._streams is not None
        self._streams[logical_rank] = self._marked_streams[logical_rank]
        for name, states in self._marked_generators.items():
            self._generators[name][1][logical_rank] = states[logical_rank]
        if self._objects:
            self._load_objects(logical_rank, self._packed[logical_rank])

    def end_of(self, logical_rank: int) -> ContextEnd:
        """A context as its turn in the present step left it. Outside turns."""
        assert self._streams is not None
        assert self.active is None
        generators = {name: states[logical_rank] for name, (_, states) in self._generators.items()}
        objects = self._pack_objects(logical_rank) if self._objects else b""
        return ContextEnd(self._streams[logical_rank], generators, objects)

    def put_end(self, end: ContextEnd) -> None:
        """The active context is as an earlier attempt at this turn left it."""
        assert self.active is not None
        rng.restore(end.streams)
        for name, state in end.generators.items():
            self._generators[name][0].set_state(state)
        if end.objects:
            self._load_objects(self.active, end.objects)

    def changes_of(self, logical_rank: int) -> list[bytes | None]:
        """What a turn changed in a context, as bytes for the other executors."""
        assert self._streams is not None
        changes = self._streams[logical_rank].changes_since(self._marked_streams[logical_rank])
        for name, (_, states) in self._generators.items():
            before, now = self._marked_generators[name][logical_rank], states[logical_rank]
            changes.append(None if torch.equal(before, now) else now.numpy().tobytes())
        if self._objects:
            packed = self._pack_objects(logical_rank)
            changes.append(None if packed == self._packed[logical_rank] else packed)
        return changes

    def adopt(self, logical_rank: int, changes: Sequence[bytes | None], *, here: bool) -> None:
        """The step is sealed: take over what a turn changed, on another executor or, known already, here."""
        assert self._streams is not None
        if here:
            if self._objects and changes[-1] is not None:
                self._packed[logical_rank] = changes[-1]
            return
        before = self._marked_streams[logical_rank]
        self._streams[logical_rank] = before.with_changes(changes[:_STREAM_PARTS])
        rest = changes[_STREAM_PARTS:]
        for state, (_, states) in zip(rest, self._generators.values(), strict=False):
            if state is not None:
                states[logical_rank] = torch.frombuffer(bytearray(state), dtype=torch.uint8)
        if self._objects and rest[-1] is not None:
            self._packed[logical_rank] = rest[-1]
            self._load_objects(logical_rank, rest[-1])

    def draw_base_seeds(self) -> list[int]:
        """What `iter()` of a loader draws, for all logical workers, by rank.

        Done on every executor for every worker, so that contexts stay equal everywhere.
        """
        assert self._streams is not None
        drawn = [rng.draw_base_seed(streams) for streams in self._streams]
        self._streams = [streams for _, streams in drawn]
        return [seed for seed, _ in drawn]

    @contextmanager
    def borrowed(self, logical_rank: int) -> Iterator[None]:
        """Inside, a worker's streams, to draw what its own executor draws; afterwards they are as they were."""
        assert self._streams is not None
        assert self.active != logical_rank
        with rng.isolated():
            rng.restore(self._streams[logical_rank])
            yield

    def run_under(self, logical_rank: int, work: Callable[[], None]) -> None:
        """Work that draws from a worker's streams between steps; on every executor alike."""
        self.enter(logical_rank)
        try:
            work()
        finally:
            self.leave()

    def _pack_objects(self, logical_rank: int) -> bytes:
        states = {name: _state_of(p._objects[logical_rank]) for name, p in self._objects.items()}
        return codec.pack(states).numpy().tobytes()

    def _load_objects(self, logical_rank: int, packed: bytes) -> None:
        states = codec.unpack(torch.frombuffer(bytearray(packed), dtype=torch.uint8))
        for name, value in states.items():
            self._load_object(name, logical_rank, value)

    # ---- whole contexts, for checkpoints and newcomers ----

    def state_of(self, logical_rank: int) -> dict[str, Any]:
        """One worker's context as tensors and plain values, for checkpoints and hand-over."""
        assert self._streams is not None
        assert self.active is None
        return {
            "streams": self._streams[logical_rank].to_state(),
            "generators": {name: states[logical_rank] for name, (_, states) in self._generators.items()},
            "objects": {name: _state_of(p._objects[logical_rank]) for name, p in self._objects.items()},
        }

    def load_state_of(self, logical_rank: int, state: dict[str, Any]) -> None:
        self.start()
        assert self._streams is not None
        self._streams[logical_rank] = rng.Streams.from_state(state["streams"])
        for name, generator_state in state["generators"].items():
            self._generators[name][1][logical_rank] = generator_state.clone()
        for name, value in state["objects"].items():
            self._load_object(name, logical_rank, value)
        self._packed.pop(logical_rank, None)

    def job_streams(self) -> dict[str, Any]:
        """The job-wide streams, which are active outside turns."""
        assert self.active is None
        return rng.capture().to_state()

    def load_job_streams(self, state: dict[str, Any]) -> None:
        assert self.active is None
        rng.restore(rng.Streams.from_state(state))

    def _load_object(self, name: str, logical_rank: int, value: Any) -> None:
        objects = self._objects[name]._objects
        if isinstance(objects[logical_rank], dict):
            objects[logical_rank].clear()
            objects[logical_rank].update(value)
        else:
            objects[logical_rank].load_state_dict(value)

    def _save(self, streams: rng.Streams) -> None:
        assert self._streams is not None
        assert self.active is not None
        self._streams[self.active] = streams
        for generator, states in self._generators.values():
            states[self.active] = generator.get_state()


def _takes_rank(factory: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)


def _state_of(thing: Any) -> Any:
    return dict(thing) if isinstance(thing, dict) else thing.state_dict()
