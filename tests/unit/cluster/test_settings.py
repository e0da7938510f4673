"""Policy and quotas while the service runs, and the analysis that the service asks a process for."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any

import pytest

from isoscale.cluster import engine as engine_module
from isoscale.cluster.transaction import Transaction
from tests.unit.cluster.conftest import World


def test_a_policy_and_quotas_are_changed_between_two_decisions(make_world: Callable[..., World]) -> None:
    world = make_world(policy="fifo", quotas={"team-a": 1, "team-b": 2})
    shown = world.ask("GET", "/api/settings", "viewer").json()
    assert (shown["policy"], shown["quotas"], shown["may_change"]) == ("fifo", {"team-a": 1}, False)
    assert "easyscale" in shown["policies"]
    changed = world.ask("PUT", "/api/settings/policy", body={"policy": "easyscale"})
    assert changed.status == 200, changed.body
    quotas = world.ask("PUT", "/api/settings/quotas", body={"quotas": {"team-b": 1}})
    assert quotas.status == 200, quotas.body
    deadline = time.monotonic() + 30
    while (shown := world.ask("GET", "/api/settings").json())["policy"] != "easyscale" or shown["quotas"] != {
        "team-b": 1
    }:
        assert time.monotonic() < deadline, shown
        time.sleep(0.02)
    assert shown["may_change"]
    told = {event.event: event for event in world.service.store.events()}
    assert told["policy_changed"].fields == {"from": "fifo", "to": "easyscale"}
    assert (told["policy_changed"].by, told["quotas_changed"].fields["to"]) == ("admin", {"team-b": 1})
    assert world.submit().status == 201  # and it goes on


def test_a_full_disk_keeps_settings_as_they_are_and_ends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks is told; what nobody asked for, such as a node that is gone, waits until it can be written."""
    monkeypatch.setattr(engine_module, "_DISK_S", 0.01)
    real, is_full, tries = Transaction.event, True, list[str]()

    def event(transaction: Transaction, name: str, *arguments: Any, **fields: Any) -> int:
        tries.append(name)
        if is_full:
            raise sqlite3.OperationalError("database or disk is full")
        return real(transaction, name, *arguments, **fields)

    monkeypatch.setattr(Transaction, "event", event)
    before = world.service.picture().policy
    for name, body in (("policy", {"policy": "fifo"}), ("quotas", {"quotas": {"team-a": 1}})):
        refused = world.ask("PUT", f"/api/settings/{name}", body=body)
        assert (refused.status, "disk is full" in refused.error) == (507, True)
    assert world.service.picture().policy == before
    assert world.service.is_well()
    world.service._on_gone(["local/cpu/0"])
    deadline = time.monotonic() + 20
    while tries.count("devices_gone") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    is_full = False
    while world.service.picture().nodes[0].away != {"local/cpu/0"}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert world.service.is_well()


def test_settings_that_make_no_sense_are_refused(world: World) -> None:
    bodies: tuple[tuple[str, dict[str, Any]], ...] = (
        ("policy", {"policy": "nothing"}),
        ("policy", {"policy": "os:system"}),
        ("policy", {"policy": "fifo,las"}),
        ("policy", {"policy": "fifo(nothing=1)"}),
        ("policy", {"policy": ""}),
        ("policy", {}),
        ("quotas", {"quotas": {"<b>": 1}}),
        ("quotas", {"quotas": {"team-a": -1}}),
        ("quotas", {"quotas": {"team-a": 10**9}}),
        ("quotas", {"quotas": {f"t{n}": 1 for n in range(1_001)}}),
        ("quotas", {"quotas": [1]}),
    )
    before = world.ask("GET", "/api/settings").json()
    for name, body in bodies:
        refused = world.ask("PUT", f"/api/settings/{name}", body=body)
        assert refused.status == 400, (body, refused.body)
    assert world.ask("GET", "/api/settings").json() == before


def test_an_analysis_is_made_once_at_a_time_and_says_why_there_is_none(world: World) -> None:
    assert world.ask("GET", "/api/analysis").json() == {
        **{"state": "none", "made_s": None, "seconds": None, "error": "", "result": None}
    }
    assert world.submit().status == 201
    assert world.ask("POST", "/api/analysis").status == 202
    assert world.ask("POST", "/api/analysis").json()["state"] == "running"
    deadline = time.monotonic() + 100
    while (shown := world.ask("GET", "/api/analysis").json())["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (shown["state"] == "ready") == (shown["result"] is not None), shown
    assert (shown["state"] == "failed") == bool(shown["error"]), shown
