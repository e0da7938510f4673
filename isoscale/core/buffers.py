"""Buffers of a model (BatchNorm statistics and the like) under logical workers.

Outside turns the module always shows logical worker 0's buffers. With `broadcast_buffers` a turn
starts from those, as stock DDP broadcasts rank 0's before a forward, and only worker 0's changes
survive the step. With `keeps_own` each worker's are kept as well until the next training step: evaluation of a module
that DDP does not wrap uses every rank's own. Without broadcast every logical worker has its own. Only buffers that
changed are copied; a change is seen by tensor identity and version counter, except for buffers that kernels write
behind the counter's back (BatchNorm's statistics): those count as changed after every turn of a training step. Buffers
that might be such statistics are compared by their bits after every turn, all others in watched turns only.
Moving worker 0's buffers to other executors is the caller's job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch._utils import _flatten_dense_tensors
from torch.nn.modules.batchnorm import _NormBase

__all__ = ["BufferSet"]

#: the tensor itself, not its id: a dead tensor's id may be given to its successor
_Mark = tuple[torch.Tensor, int]

_LARGEST_VECTOR = 1 << 16

#: integers of the same width compare bits, and cost one call
_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.int64: torch.int64}


class BufferSet:
    def __init__(self, module: torch.nn.Module, *, broadcast: bool, keeps_own: bool = False) -> None:
        self.broadcast = broadcast
        self._keeps_own = keeps_own and broadcast
        self._slots: list[tuple[torch.nn.Module, str]] = []
        self.names: list[str] = []
        seen: set[int] = set()
        for prefix, owner in module.named_modules():
            for name, buffer in owner._buffers.items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    self._slots.append((owner, name))
                    self.names.append(f"{prefix}.{name}" if prefix else name)
        #: of all buffers, as they were registered
        self.num_bytes = sum(b.numel() * b.element_size() for b in self.current())
        #: logical worker 0's buffers after the last committed step
        self.shared: list[torch.Tensor] = []
        #: per logical rank, without broadcast; a rank that is absent still has the shared ones
        self.own: dict[int, list[torch.Tensor]] = {}
        self._marks: list[_Mark] = []
        # torch's batch_norm updates running statistics without touching their version counters.
        now = self.current()
        owners = [owner for owner, _ in self._slots]
        self._silent = {i for i, b in enumerate(now) if b.is_floating_point() and isinstance(owners[i], _NormBase)}
        self._suspects = {i for i, b in enumerate(now) if _may_be_statistics(b)} - self._silent
        self._num_steps = 0
        #: the present step is a training step
        self._counted = False
        #: no turn has run since the buffers were last loaded or looked at
        self._untouched = False
        #: the logical worker whose turn was the last one here
        self._last_turn: int | None = None
        self._fresh: dict[int, torch.Tensor] = {}
        self._marked_own: dict[int, list[torch.Tensor]] = {}
        if self._slots:
            self.shared = [b.detach().clone() for b in self.current()]
            self._mark()

    def __len__(self) -> int:
        return len(self._slots)

    def current(self) -> list[torch.Tensor]:
        """The tensors the module holds right now (a forward may have replaced some)."""
        return [owner._buffers[name] for owner, name in self._slots]  # type: ignore[misc]

    def changed(self) -> list[int]:
        """Indices of buffers that are not, or may not be, what was last loaded."""
        # In a training step a module that is in eval mode now may have been in train mode before.
        silent = {i for i in self._silent if self._counted or self._slots[i][0].training}
        return sorted({*self._visibly_changed(), *silent})

    def search_silent(self, logical_rank: int) -> str | None:
        """At the end of a watched turn: find buffers whose contents changed unseen; they are copied from now on.

        The name of one is returned if that comes too late: if unwatched steps may have mixed what workers wrote.
        """
        found = self._search(logical_rank, set(range(len(self._slots))))
        return self.names[min(found)] if found - self._suspects and self._num_steps > 1 else None

    def _search(self, logical_rank: int, among: set[int]) -> set[int]:
        unseen = among - set(self.changed()) if among else among
        if not unseen:
            return unseen
        found = self._differing(self.shared if self.broadcast else self._own(logical_rank), unseen)
        self._silent |= found
        return found

    def begin_step(self, *, training: bool = True) -> bool:
        """Code outside turns may have changed buffers: those become worker 0's. True if it did."""
        unseen = self._differing(self.shared, self._silent | self._suspects)
        touched = sorted({*self._visibly_changed(), *unseen})
        self._counted = training
        self._num_steps += training
        for i in touched:
            self._store(self.shared, i)
        self._mark(touched)
        if touched and self._keeps_own:
            self.own.clear()  # code outside turns wrote them, for all alike
        self._untouched, self._last_turn = True, None
        self._fresh.clear()
        self._marked_own = {rank: list(tensors) for rank, tensors in self.own.items()}
        return bool(touched)

    def rewind(self) -> None:
        """The step will be done again: forget what its turns wrote."""
        if not self._slots:
            return
        self.own = {rank: list(tensors) for rank, tensors in self._marked_own.items()}
        self._load(self.shared, range(len(self._slots)))
        self._num_steps -= self._counted

    def own_changes(self, logical_rank: int) -> dict[int, torch.Tensor]:
        """Without broadcast: what a worker's turn wrote into its own buffers, for the other executors."""
        before, now = self._marked_own.get(logical_rank), self.own.get(logical_rank, [])
        return {i: b for i, b in enumerate(now) if before is None or b is not before[i]}

    def adopt_own(self, logical_rank: int, changes: dict[int, torch.Tensor]) -> None:
        for i, value in changes.items():
            self._own(logical_rank)[i] = value

    def load(self, shared: Sequence[torch.Tensor], own: dict[int, list[torch.Tensor]]) -> None:
        """Take over another executor's buffers, outside steps."""
        self.shared = [b.clone() for b in shared]
        self.own = {rank: [b.clone() for b in tensors] for rank, tensors in own.items()}
        if self._slots:
            self._load(self.shared, range(len(self._slots)))

    def open_turn(self, logical_rank: int) -> None:
        if not self._slots:
            return
        if not self.broadcast or self._shows_own():
            self._load(self._own(logical_rank), range(len(self._slots)))
        elif not self._untouched:
            self._load(self.shared, self.changed())
        self._untouched, self._last_turn = False, logical_rank

    def close_turn(self, logical_rank: int) -> None:
        if not self._slots:
            return
        self._search(logical_rank, self._suspects)
        if self.broadcast and logical_rank != 0 and not (self._keeps_own and self._counted):
            return  # what it wrote is lost, as it is when stock DDP broadcasts rank 0's
        touched = self.changed()
        if logical_rank == 0:
            current = self.current()
            self._fresh = {i: current[i].detach().clone() for i in touched}
        if self._keeps_own and self._counted:
            self.own[logical_rank] = list(self.shared)
        if not self.broadcast or (self._keeps_own and self._counted):
            mine = self._own(logical_rank)
            for i in touched:
                self._store(mine, i)

    def written(self) -> dict[int, torch.Tensor]:
        """After a turn and before the next one: what it wrote, or may have written."""
        current = self.current()
        return {i: current[i].detach().clone() for i in self.changed()}

    def put(self, written: Mapping[int, torch.Tensor]) -> None:
        """In an open turn: write what an earlier attempt at it wrote."""
        self._write(written, written)

    def fresh(self) -> dict[int, torch.Tensor]:
        """What logical worker 0 changed in this step; empty where it does not live here."""
        return self._fresh

    def end_step(self, fresh: dict[int, torch.Tensor]) -> None:
        """Show worker 0's buffers, `fresh` being its changes of this step, here or received."""
        if not self._slots:
            return
        for i, value in fresh.items():
            self.shared[i] = value
        if self.broadcast and fresh and self._last_turn == 0:
            self._mark(fresh)  # nobody's turn came after worker 0's, so the module shows them already
        else:
            some = self.broadcast and not self._shows_own()
            self._load(self.shared, {*self.changed(), *fresh} if some else range(len(self._slots)))
        self._fresh = {}

    def _shows_own(self) -> bool:
        """Whether turns of the present step see what their worker's last training turn left."""
        return self._keeps_own and not self._counted

    def _visibly_changed(self) -> list[int]:
        marked = enumerate(zip(self.current(), self._marks, strict=True))
        return [i for i, (b, (tensor, version)) in marked if b is not tensor or b._version != version]

    def _own(self, logical_rank: int) -> list[torch.Tensor]:
        if logical_rank not in self.own:
            self.own[logical_rank] = [b.clone() for b in self.shared]
        return self.own[logical_rank]

    def _store(self, target: list[torch.Tensor], i: int) -> None:
        owner, name = self._slots[i]
        buffer = owner._buffers[name]
        assert buffer is not None
        target[i] = buffer.detach().clone()

    def _differing(self, base: Sequence[torch.Tensor], indices: Iterable[int]) -> set[int]:
        """Buffers whose bits are not those of `base`."""
        pairs = [(i, buffer, base[i]) for i, buffer in enumerate(self.current()) if i in indices]
        if _all_same_bits([b for _, b, _ in pairs], [value for _, _, value in pairs]):
            return set()
        return {i for i, buffer, value in pairs if not _same_bits(buffer, value)}

    def _load(self, source: Sequence[torch.Tensor], indices: Collection[int]) -> None:
        self._write(source, indices)
        self._mark(indices)

    def _write(self, source: Sequence[torch.Tensor] | Mapping[int, torch.Tensor], indices: Iterable[int]) -> None:
        current = self.current()
        fitting = []
        for i in indices:
            buffer, value = current[i], source[i]
            if buffer is not None and buffer.shape == value.shape and buffer.dtype == value.dtype:
                fitting.append(i)
            else:
                owner, name = self._slots[i]
                owner._buffers[name] = source[i].clone()
        if fitting:
            with torch.no_grad():
                torch._foreach_copy_([current[i] for i in fitting], [source[i] for i in fitting])

    def _mark(self, indices: Iterable[int] | None = None) -> None:
        """Remember what is loaded, so that only what changes is copied."""
        current = self.current()
        if indices is None:
            self._marks = [(b, b._version) for b in current]
            return
        for i in indices:
            self._marks[i] = (current[i], current[i]._version)


def _may_be_statistics(buffer: torch.Tensor) -> bool:
    """What `F.batch_norm` and `F.instance_norm` take as running statistics: a vector, small enough to be compared."""
    return buffer.dim() == 1 and buffer.is_floating_point() and buffer.numel() <= _LARGEST_VECTOR


def _all_same_bits(many: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Cheap where it is true; False may also mean that it is not so easily told."""
    if not many:
        return True
    kinds = {(t.dtype, t.device) for t in (*many, *others)}
    if len(kinds) > 1 or [t.shape for t in many] != [t.shape for t in others]:
        return False
    with torch.no_grad():
        return _same_bits(_flat(many), _flat(others))


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    flat: torch.Tensor = _flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
    return flat


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    integers = _INTEGERS.get(a.dtype)
    if integers is not None:
        return torch.equal(a.detach().view(integers), b.view(integers))
    return torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))
