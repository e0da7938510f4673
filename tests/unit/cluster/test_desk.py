"""What clients ask for is on record before it is acknowledged; what cannot be is refused with the way out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from isoscale.cluster.desk import Desk
from isoscale.cluster.store import Store
from isoscale.cluster.values import JobRecord
from tests.unit.cluster.conftest import World


def test_a_submission_is_on_record_and_in_its_directory(world: World) -> None:
    job = world.submit(name="mine", priority=3).json()
    assert (job["id"], job["state"], job["priority"], job["owner"]) == ("j1", "queued", 3, "user")
    found = world.service.store.job("j1")
    copy = (world.service.state / "jobs" / "j1" / "submission.json").read_bytes()
    assert found is not None
    assert msgspec.json.decode(copy, type=JobRecord).submission == found.submission
    [event] = [one for one in world.service.store.events() if one.event == "job_submitted"]
    assert (event.job, event.by) == ("j1", "user")


def test_the_same_key_is_the_same_job(world: World) -> None:
    first = world.submit(key="k1")
    assert world.submit(key="k1").json()["id"] == first.json()["id"] == "j1"
    other = world.submit(key="k1", workers=4)
    assert other.status == 409
    assert "give another key" in other.error
    # Keys are each caller's own.
    assert world.submit("stranger", key="k1").json()["id"] != "j1"


def test_a_key_that_is_sent_at_the_same_time_is_one_job(world: World) -> None:
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(world.submit(key="k").json()["id"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 1
    assert len(world.service.store.jobs()) == 1
    directories = [path.name for path in (world.service.state / "jobs").iterdir()]
    assert directories == [ids[0]]


def test_a_key_that_is_sent_at_the_same_time_with_other_options_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked before either was written down."""
    monkeypatch.setattr(world.service.desk, "_by_key", lambda *arguments: None)
    assert world.submit(key="k", workers=2).status == 201
    assert world.submit(key="k", workers=2).json()["id"] == "j1"
    other = world.submit(key="k", workers=4)
    assert (other.status, "give another key" in other.error) == (409, True)
    assert [one.id for one in world.service.store.jobs()] == ["j1"]


def test_a_cancel_that_was_acknowledged_is_not_undone_by_a_pause_of_the_same_moment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit()
    real = Desk._changeable

    def looked(desk: Desk, *arguments: Any) -> JobRecord:
        """Somebody else cancels it between the look and the act."""
        found = real(desk, *arguments)
        with world.service.store.write(now=1.0) as tx:
            tx.event("cancel_asked", tx.want("j1", "cancel"))
        return found

    monkeypatch.setattr(Desk, "_changeable", looked)
    refused = world.ask("POST", "/api/jobs/j1/pause", "user")
    assert (refused.status, "it was cancelled" in refused.error) == (409, True)
    found = world.service.store.job("j1")
    assert found is not None
    assert found.wanted == "cancel"


def test_a_tenant_that_has_enough_waiting_is_told_so(make_world: Callable[..., World]) -> None:
    world = make_world(max_waiting=2)
    assert [world.submit().status for _ in range(3)] == [201, 201, 429]
    assert "team-a" in world.submit().error
    assert world.submit("stranger").status == 201
    assert world.ask("POST", "/api/jobs/j1/cancel", "user").status == 200
    wait_for(world, "j1", "cancelled")
    assert world.submit().status == 201


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"workers": 0}, "workers"),
        ({"workers": 10**9}, "workers"),
        ({"min_devices": 3}, "min"),
        ({"min_devices": 2, "max_devices": 1}, "max"),
        ({"max_devices": 3}, "max"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32 - 1}, "seed"),
        ({"retries": -1}, "retries"),
        ({"priority": 10**9}, "priority"),
        ({"kinds": ["gpu-from-mars"]}, "kinds"),
        ({"code": "0" * 64}, "code"),
        ({"batch_sizes": [0]}, "batch_sizes"),
        ({"script_args": ["a" * 40_000]}, "script_args"),
    ],
)
def test_what_no_job_can_be_is_refused_by_its_field(world: World, fields: dict[str, object], field: str) -> None:
    answer = world.submit(**fields)
    assert answer.status == 400
    assert field in answer.json()["error"]["field"]
    assert answer.json()["error"]["remedy"]
    assert world.service.store.jobs() == []


def test_what_has_the_wrong_type_is_refused(world: World) -> None:
    for fields in ({"workers": "2"}, {"workers": 2.5}, {"determinism": "maybe"}, {"after": "j1"}, {"priority": None}):
        assert world.submit(**fields).status == 400, fields


def test_a_job_waits_for_another_and_fails_with_it(world: World) -> None:
    world.submit()
    world.submit(after=["j1"])
    world.submit(after=["j2"])
    assert world.submit(after=["j77"]).status == 404
    why = world.ask("GET", "/api/jobs/j2/why").json()
    assert (why["reason"], why["text"]) == ("dependency", "waits for j1 to finish")
    world.ask("POST", "/api/jobs/j1/cancel")
    wait_for(world, "j2", "failed")
    assert "j1, which it waits for, did not finish" in world.ask("GET", "/api/jobs/j2").json()["error"]
    wait_for(world, "j3", "failed")


def test_a_job_that_failed_says_why_it_is_not_tried_again(world: World) -> None:
    world.submit()
    with world.service.store.write(now=2.0) as tx:
        tx.event("done", tx.set_state("j1", "failed", started_s=1.0, ended_s=2.0, error="ValueError: no", exit_code=1))
    shown = world.ask("GET", "/api/jobs/j1", "user").json()
    assert shown["error"] == "ValueError: no"
    assert shown["why"]["text"] == "ValueError: no (semantic error: no retry cures it)"
    assert world.ask("GET", "/api/jobs/j1/why", "user").json()["text"] == shown["why"]["text"]
    [listed] = world.ask("GET", "/api/jobs", "user").json()
    assert listed["why"]["text"] == "ValueError: no"


def test_wishes_are_kept_and_undone(world: World) -> None:
    world.submit()
    assert world.ask("POST", "/api/jobs/j1/pause", "user").json()["wanted"] == "pause"
    wait_for(world, "j1", "paused")
    assert world.ask("GET", "/api/jobs/j1/why").json()["reason"] == "paused_by_owner"
    assert "resume" in world.ask("GET", "/api/jobs/j1").json()["actions"]
    world.ask("POST", "/api/jobs/j1/resume", "user")
    wait_for(world, "j1", "queued")
    assert world.ask("POST", "/api/jobs/j1/priority", "user", body={"priority": 7}).json()["priority"] == 7
    assert world.ask("POST", "/api/jobs/j1/scale", "user", body={"devices": 1}).json()["max_devices"] == 1
    assert world.ask("POST", "/api/jobs/j1/scale", "user", body={"devices": 3}).status == 400
    assert world.ask("POST", "/api/jobs/j1/scale", "user", body={"devices": 0}).json()["max_devices"] == 2
    world.ask("POST", "/api/jobs/j1/cancel", "user")
    wait_for(world, "j1", "cancelled")
    assert world.ask("POST", "/api/jobs/j1/cancel", "user").status == 200
    assert world.ask("POST", "/api/jobs/j1/pause", "user").status == 409
    told = [(one.event, one.by) for one in world.service.store.events(job="j1")]
    assert ("cancel_asked", "user") in told
    assert told[-1] == ("job_cancelled", "")


def test_places_in_the_queue_go_by_priority(world: World) -> None:
    for priority in (0, 0, 5):
        world.submit(priority=priority)
    wait_until(lambda: len(world.service.picture().queue) == 3)
    places = {job["id"]: job["why"]["position"] for job in world.ask("GET", "/api/jobs").json()}
    assert places == {"j3": 1, "j1": 2, "j2": 3}
    assert world.ask("GET", "/api/jobs/j2/why").json()["ahead"] == ["j3", "j1"]
    assert world.ask("GET", "/api/jobs/j2/why").json()["reason"] == "unknown_kind"


def test_what_was_asked_before_a_restart_is_done_after_it(make_world: Callable[..., World]) -> None:
    world = make_world()
    for _ in range(3):
        world.submit()
    world.submit(after=["j1"])
    # As a service that dies when the wish is on record and nobody has heard of it.
    world.service._engine.close()
    world.ask("POST", "/api/jobs/j1/pause")
    world.ask("POST", "/api/jobs/j2/cancel")
    world.submit(name="late")
    world.service.close()
    again = make_world()
    wait_for(again, "j1", "paused")
    wait_for(again, "j2", "cancelled")
    states = {job["id"]: job["state"] for job in again.ask("GET", "/api/jobs").json()}
    assert states == {"j1": "paused", "j2": "cancelled", "j3": "queued", "j4": "queued", "j5": "queued"}
    assert again.ask("GET", "/api/jobs/j4/why").json()["reason"] == "dependency"
    assert again.submit().json()["id"] == "j6"


def test_pages_of_the_past(world: World) -> None:
    for _ in range(5):
        world.submit()
    for number in range(1, 6):
        world.ask("POST", f"/api/jobs/j{number}/cancel")
        wait_for(world, f"j{number}", "cancelled")
    assert [job["id"] for job in world.ask("GET", "/api/jobs?limit=2").json()] == ["j4", "j5"]
    assert [job["id"] for job in world.ask("GET", "/api/jobs?limit=2&before=4").json()] == ["j2", "j3"]
    assert world.ask("GET", "/api/jobs?limit=2&state=queued").json() == []
    assert world.ask("GET", "/api/jobs?limit=0").status == 400
    assert world.ask("GET", "/api/jobs?nobody=1").status == 400


def test_events_go_on_from_the_last_one_that_was_seen(world: World) -> None:
    world.submit()
    first = world.service.store.last_event()
    world.submit()
    answer = world.ask("GET", "/events", headers={"last-event-id": str(first)}, limit=200)
    assert f"id: {first}\n".encode() in answer.body
    assert b"event: job_submitted" in answer.body
    assert b'"job":"j2"' in answer.body
    assert b'"job":"j1"' not in answer.body


def test_the_document_has_every_route(world: World) -> None:
    document = world.ask("GET", "/api/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]["/api/jobs"]) == {"get", "post"}
    assert document["components"]["schemas"]["JobShown"]["properties"]["why"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["responses"], (method, path)


def test_metrics_are_text_that_prometheus_reads(world: World) -> None:
    world.submit(name="named")
    wait_until(lambda: "j1" in world.service.picture().jobs)
    text = world.ask("GET", "/metrics").body.decode()
    assert 'isoscale_cluster_devices{node="local",kind="cpu",state="free"} 2' in text
    assert 'isoscale_cluster_jobs{state="queued"} 1' in text
    assert 'isoscale_cluster_jobs_why{state="queued",reason="unknown_kind"} 1' in text


def test_devices_go_and_come_back_and_stay_away_over_a_restart(make_world: Callable[..., World]) -> None:
    world = make_world()
    answer = world.ask("POST", "/api/nodes/local/reclaim", "operator", body={"count": 1, "within_s": 2.0})
    assert answer.json()["devices"] == ["local/cpu/0"]
    assert not answer.json()["late"]
    assert world.ask("POST", "/api/nodes/local/reclaim", body={"count": 2}).status == 400
    assert world.ask("POST", "/api/nodes/mars/reclaim", body={"count": 1}).status == 400
    world.service.close()
    world = make_world()
    [node] = world.ask("GET", "/api/devices").json()
    assert [device["state"] for device in node["devices"]] == ["away", "free"]
    assert world.ask("POST", "/api/nodes/local/lend", body={"count": 2}).status == 400
    assert world.ask("POST", "/api/nodes/local/lend", body={"count": 1}).json()["num_ours"] == 2
    wait_until(lambda: not world.service.picture().nodes[0].away)
    assert world.service.store.away() == {"local": []}


def wait_for(world: World, job: str, state: str) -> None:
    wait_until(lambda: (found := world.service.store.job(job)) is not None and found.state == state)


def wait_until(done: Callable[[], bool]) -> None:
    for _ in range(1000):
        if done():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen")


def test_a_state_that_a_service_has_is_refused_to_another(world: World, tmp_path: Path) -> None:
    from isoscale.cluster.service import Configuration, Service
    from isoscale.errors import UserError

    with pytest.raises(UserError, match=r"another service has it \(process \d+\)"):
        Service(Configuration(state=world.service.state))
    assert isinstance(world.service.store, Store)
