"""From the gradients of local turns to the average over all logical workers, for one model.

Keeps the bucket layout, holds contributions until they may be summed, and starts the exchange of a
bucket as soon as the last local turn has filled it. Knows nothing of turns' rules, buffers or
random streams. Scaling is stock DDP's: every contribution times 1/N in order `ddp`; the finished
sum times 1/N in order `tree` (float16, which would overflow, is scaled before).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from isoscale.core.buckets import BucketCaps, Layout, first_layout, rebuilt_layout
from isoscale.core.determinism import flushes_denormals
from isoscale.core.exchange import Exchange, denormals_kept
from isoscale.core.gradients import Addends, FlatBucket, RingBucket, TreeBucket, TreeSums, as_param_layout, multiply
from isoscale.types import Order

__all__ = ["GradientSync"]


class GradientSync:
    def __init__(
        self,
        params: Sequence[torch.nn.Parameter],
        caps: BucketCaps,
        *,
        find_unused: bool,
        order: Order,
        exchange: Exchange,
    ) -> None:
        self._params = params
        self._caps = caps
        self._order = order
        self._exchange = exchange
        self._can_overlap = exchange.overlaps and not find_unused
        self.layout = first_layout(params, caps, find_unused=find_unused)
        self._prepare()

    def use(self, layout: Layout) -> None:
        self.layout = layout
        self._prepare()

    def rebuild(self, ready_order: Sequence[int]) -> None:
        """Adopt the layout that stock DDP builds from rank 0's order of readiness."""
        if not self.layout.final:
            self.use(rebuilt_layout(self._params, ready_order, self._caps))

    def begin_step(self) -> None:
        self._addends.clear()
        self._waits: list[Callable[[], None]] = []
        self._results: dict[int, list[torch.Tensor]] = {}
        self._armed = False
        for sums in self._tree_sums:
            sums.reset()

    def take(self, logical_rank: int, grads: list[torch.Tensor]) -> None:
        """A finished turn's gradients, one per parameter in parameter layout. They are ours from here on."""
        if self._order == "tree":
            with denormals_kept():
                self._prescale_half(grads)
                for sums, memory in zip(self._tree_sums, self._memory, strict=True):
                    sums.put(logical_rank, [grads[i] for i in memory.bucket.params])
            return
        if flushes_denormals():
            # Stock DDP scales in the main thread, under the user's flush-to-zero, and sums elsewhere without it.
            multiply(grads, self._scale)
            self._addends.scaled.add(logical_rank)
        self._addends.grads[logical_rank] = grads

    def arm(self, logical_rank: int) -> bool:
        """Before the last local turn: exchange buckets from `ready` on. False if the order of things forbids it."""
        self._armed = self._can_overlap
        if self._armed:
            self._last_rank = logical_rank
            self._missing = [len(memory.bucket.params) for memory in self._memory]
            self._next = 0
            if self._order == "ddp":
                self._addends.grads[logical_rank] = self._staged
                self._addends.scaled.add(logical_rank)
        return self._armed

    def ready(self, index: int) -> None:
        """Called inside backward when a parameter's gradient of the armed turn is complete."""
        b = self._bucket_of[index]
        if self._order == "ddp":
            grad = self._params[index].grad
            assert grad is not None
            torch.mul(grad, self._scale, out=self._staged[index])
        self._missing[b] -= 1
        while self._next < len(self._memory) and self._missing[self._next] == 0:
            self._launch(self._next)
            self._next += 1

    def finish(self) -> tuple[list[torch.Tensor], bool]:
        """Wait for all buckets. Returns a tensor per parameter and whether the caller may keep those tensors."""
        if not self._armed:
            # On the user's thread, unlike buckets that are exchanged beside backward.
            with denormals_kept():
                for b in range(len(self._memory)):
                    self._reduce(b)
        for wait in self._waits:
            wait()
        results: list[torch.Tensor] = [torch.empty(0)] * len(self._params)
        for b, memory in enumerate(self._memory):
            for i, value in zip(memory.bucket.params, self._results[b], strict=True):
                results[i] = value
        self._addends.clear()
        self._results = {}
        return results, self._exchange.placement.num_executors == 1

    def _launch(self, b: int) -> None:
        if self._order == "ddp" and self._exchange.native:
            self._waits.append(self._exchange.all_reduce(self._memory[b].flat))
            self._results[b] = [self._memory[b].views[i] for i in self._memory[b].bucket.params]
            return
        if self._order == "tree":
            members = self._memory[b].bucket.params
            last = [as_param_layout(self._params[i].grad, self._params[i]) for i in members]  # type: ignore[arg-type]
            self._waits.append(self._exchange.submit(lambda: self._finish_tree(b, last)).result)
        else:
            self._waits.append(self._exchange.submit(lambda: self._reduce(b)).result)

    def _finish_tree(self, b: int, last: list[torch.Tensor]) -> None:
        if self._params[self._memory[b].bucket.params[0]].dtype == torch.float16:
            last = [grad * self._scale for grad in last]
        self._tree_sums[b].put(self._last_rank, last)
        self._reduce(b)

    def _reduce(self, b: int) -> None:
        memory = self._memory[b]
        if self._order == "tree":
            sums, scale = self._tree_sums[b].sums, 1.0 if memory.dtype == torch.float16 else self._scale
            self._results[b] = self._exchange.tree(self._trees[b], sums, scale)
        elif self._exchange.native:
            views = [memory.views[i] for i in memory.bucket.params]
            (grads,) = self._addends.whole(list(self._addends.grads), memory.bucket.params)
            torch._foreach_copy_(views, grads)
            self._exchange.all_reduce(memory.flat)()
            self._results[b] = views
        else:
            self._results[b] = self._exchange.ring(self._rings[b], self._addends)

    def _prescale_half(self, grads: list[torch.Tensor]) -> None:
        half = [g for g in grads if g.dtype == torch.float16]
        if half:
            multiply(half, self._scale)

    def _prepare(self) -> None:
        """Memory and walking plans for the present layout and placement."""
        placement = self._exchange.placement
        n, ranks = placement.num_logical_workers, placement.ranks_of(self._exchange.index)
        self._scale = 1.0 / n
        self._addends = Addends(self._scale)
        self._memory = [FlatBucket(bucket, self._params) for bucket in self.layout.buckets]
        self._bucket_of = {i: b for b, memory in enumerate(self._memory) for i in memory.bucket.params}
        self._rings: list[RingBucket] = []
        self._trees: list[TreeBucket] = []
        self._tree_sums: list[TreeSums] = []
        self._staged: list[torch.Tensor] = []
        if self._order == "tree":
            self._tree_sums = [TreeSums(ranks, n) for _ in self._memory]
            self._trees = [TreeBucket(m, s.nodes, n) for m, s in zip(self._memory, self._tree_sums, strict=True)]
        else:
            self._rings = [RingBucket(memory, ranks, n) for memory in self._memory]
            if self._can_overlap:
                # The native sum works in place on what is staged; a walk needs the last turn's share apart.
                native = self._exchange.native
                staging = self._memory if native else [FlatBucket(m.bucket, self._params) for m in self._memory]
                views = {i: view for memory in staging for i, view in memory.views.items()}
                self._staged = [views[i] for i in range(len(self._params))]
