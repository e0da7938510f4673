"""An owner changes the most devices that a running job may have: what is too much goes at once, under every policy, and
a job that was content grows again when it may."""

from __future__ import annotations

from dataclasses import replace

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.events import JobSubmitted, RequestChanged
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import Cluster, JobRequest, Node, Resize
from isoscale.scheduling.throughput import LogicalWorkerSpeed


def test_what_is_too_much_is_given_back() -> None:
    nodes = tuple(Node(name=name, kind="cpu", num_devices=2) for name in "ab")
    controller = Controller(Cluster(nodes=nodes), make_policy("easyscale"), interval_s=0.0)
    request = JobRequest(
        name="j1", submitted_s=0.0, requested_devices=4, num_logical_workers=4, min_devices=1, max_devices=4
    )
    speed = LogicalWorkerSpeed(num_logical_workers=4, turn_s={"cpu": 1.0})
    controller.feed(JobSubmitted(request, speed), 0.0)
    for now in range(1, 9):
        controller.feed(RequestChanged(request), float(now))
        controller.decide(float(now))
    assert controller.job("j1").num_devices == 4
    lowered = replace(request, max_devices=3)
    assert controller.feed(RequestChanged(lowered), 10.0) == [Resize("j1", ((0, 2), (1, 1)))]
    assert controller.feed(RequestChanged(lowered), 11.0) == []
    assert controller.feed(RequestChanged(replace(request, max_devices=1)), 12.0) == [Resize("j1", ((0, 1),))]
    assert controller.state(12.0).free == (1, 2)
    for now in range(13, 16):
        assert controller.decide(float(now)) == []
    controller.feed(RequestChanged(request), 16.0)
    for now in range(16, 24):
        controller.decide(float(now))
    assert controller.job("j1").num_devices == 4
