"""What `scripts/demo --cluster` says of a service's events."""

from __future__ import annotations

from typing import Any

import pytest

from isoscale.cluster.values import Event
from isoscale.demo.many_jobs import told


@pytest.mark.parametrize(
    ("event", "fields", "line"),
    [
        ("job_started", {"from": 0, "to": 1, "reason": "policy"}, "long starts on 1 device (the policy's choice)"),
        ("job_resized", {"from": 1, "to": 3, "reason": "x"}, "long grows from 1 to 3 devices (x)"),
        (
            "job_resized",
            {"from": 2, "to": 1, "reason": "reclaimed"},
            "long shrinks from 2 to 1 device (a device was reclaimed)",
        ),
        ("job_resized", {"from": 2, "to": 2, "reason": "policy"}, ""),
        ("job_paused", {"reason": "reclaimed"}, "long is paused, its state kept (a device was reclaimed)"),
        ("job_resumed", {"from": 0, "to": 2, "reason": "policy"}, "long goes on with 2 devices (the policy's choice)"),
        ("devices_lent", {"devices": ["local/cpu/5"]}, "local/cpu/5 is the service's again"),
        ("job_finished", {"step": 7, "digest": "0123456789abcdef"}, "long has finished: 7 steps, digest 0123456789ab"),
        ("forecast", {"jobs": {}}, ""),
    ],
)
def test_what_moves_devices_is_told_in_a_line(event: str, fields: dict[str, Any], line: str) -> None:
    assert told(Event(id=1, t=0.0, event=event, job="j3", fields=fields), "long") == line
