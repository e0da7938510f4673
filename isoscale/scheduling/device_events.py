"""Devices that are lent, wanted back, break down or work again: what follows for the jobs that hold them.

Part of `scheduling.driver`; no I/O, no clock.
"""

from __future__ import annotations

from isoscale.scheduling.device_pool import DevicePool, Reclaim
from isoscale.scheduling.driving import DeviceFailed, DeviceRepaired, DevicesLent, ReclaimAsked
from isoscale.scheduling.events import AllocationChanged
from isoscale.scheduling.granting import Granting, less
from isoscale.scheduling.hiding import Feed, Hiding
from isoscale.scheduling.runs import Run
from isoscale.scheduling.state import num_devices

__all__ = ["DeviceEvents"]


class DeviceEvents:
    def __init__(self, pool: DevicePool, runs: dict[str, Run], granting: Granting, hiding: Hiding, feed: Feed) -> None:
        self._pool, self._runs = pool, runs
        self._granting, self._hiding, self._feed = granting, hiding, feed

    def handle(self, event: DevicesLent | ReclaimAsked | DeviceFailed | DeviceRepaired) -> None:
        match event:
            case DevicesLent(node, count, devices):
                self._pool.lend(node, count, [self._pool.numbers[name] for name in devices])
            case ReclaimAsked(reclaim, node, count, deadline_s):
                self._pool.reclaim(Reclaim(reclaim, node, count, deadline_s))
                self._hiding.tell_capacity(deadline_s)
                self._take_from_silent(node, deadline_s)
            case DeviceRepaired(device):
                number = self._pool.numbers[device]
                node = self._pool.node_of[number]
                self._pool.repair(number)
            case DeviceFailed(device):
                number = self._pool.numbers[device]
                node = self._pool.node_of[number]
                if self._pool.is_broken(number):
                    return
                self._break_down(number, event)
        self._hiding.tell_capacity()

    def _take_from_silent(self, node: int, deadline_s: float) -> None:
        """What the controller cannot take, since it sees only jobs that answer."""

        def here(run: Run) -> list[int]:
            return sorted(number for number in run.granted if self._pool.node_of[number] == node)

        leaving = sum(self._pool.node_of[n] == node for run in self._runs.values() for n in run.dropped)
        planned = sum(
            max(0, len(here(run)) - dict(run.wanted).get(node, 0)) for run in self._granting.unsettled() if run.is_up
        )
        lacking = self._pool.owed(node) - leaving - planned
        for run in [run for run in self._runs.values() if run.is_silent]:
            taken = here(run)[::-1][: max(0, lacking)]
            if taken or any(self._pool.node_of[number] == node for number in run.dropped):
                run.deadline_s = min(run.deadline_s, deadline_s)
                self._granting.deadline_s = min(self._granting.deadline_s, deadline_s)
            if taken:
                lacking -= len(taken)
                self._granting.grant(run, run.granted.difference(taken))
                run.wanted = self._pool.allocation_of(run.granted)
                self._granting.send(run, "reclaimed")

    def _break_down(self, number: int, event: DeviceFailed) -> None:
        holder = next((run for run in self._runs.values() if number in run.granted or number in run.dropped), None)
        self._pool.break_down(number, is_held=holder is not None)
        if holder is None or number in holder.dropped:
            return
        # Taken away like any other: repaired, it shall not be met by somebody who has not heard.
        self._granting.grant(holder, holder.granted - {number})
        if holder.is_free_to_go:
            self._go_on_without(holder, self._pool.node_of[number], event)
        elif holder.is_silent:
            holder.wanted = self._pool.allocation_of(holder.granted)
            self._granting.send(holder, event.reason)  # written down, for when it looks

    def _go_on_without(self, run: Run, node: int, event: DeviceFailed) -> None:
        rest = less(run.wanted, ((node, 1),))
        if event.ends_run or num_devices(rest) < max(1, run.min_devices):
            rest = ()
        run.wanted, run.why = rest, event.reason
        self._feed(AllocationChanged(run.name, rest))
        self._granting.want(run)
        self._granting.send_rest(run, event.reason)
