"""The queue and the last day under other policies: real processes, real simulations, and every limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from isoscale.cluster.whatif.answer import answer
from isoscale.cluster.whatif.question import AskedJob, Question
from isoscale.cluster.whatif.tasks import Tasks
from isoscale.scheduling.state import Cluster, JobRequest, Node
from isoscale.sim.costs import Costs
from tests.unit.cluster.conftest import World

NOW = 1.8e9


def job(name: str, work: float | None, *, devices: int = 2, at: float = NOW, **more: Any) -> AskedJob:
    request = JobRequest(
        name=name, submitted_s=at, requested_devices=devices, num_logical_workers=4, max_devices=4, tenant="team-a"
    )
    return AskedJob(request=request, rates={"cpu": (0.0, 1.0, 2.0, 2.0, 4.0)}, work=work, **more)


def question(*jobs: AskedJob, policies: tuple[str, ...] = ("fifo", "easyscale"), **more: Any) -> Question:
    fields = {
        "source": "queue",
        "now_s": NOW,
        "cluster": Cluster(nodes=(Node(name="local", kind="cpu", num_devices=4),)),
        "costs": Costs(),
        "interval_s": 1.0,
        "quotas": {},
        **more,
    }
    return Question(policies=policies, jobs=jobs, **fields)


def until(done: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_rigid_policy_makes_wait_whom_an_elastic_one_serves() -> None:
    told: list[tuple[float, str]] = []
    asked = question(job("a", 400.0, devices=4, running=True), job("b", 40.0, devices=4))
    fifo, elastic = answer(asked, lambda share, doing: told.append((share, doing)))
    assert (fifo.policy, fifo.present, elastic.present) == ("fifo", True, False)
    first, second = fifo.rows
    assert first.spans == ((NOW, pytest.approx(NOW + 100, abs=1.1), 4),)
    assert second.start_s == pytest.approx(NOW + 100, abs=1.1)
    assert elastic.mean_queue_s is not None
    assert fifo.mean_queue_s is not None
    assert elastic.mean_queue_s < fifo.mean_queue_s
    assert told[-1] == (1.0, "")
    assert sorted(share for share, _ in told) == [share for share, _ in told]


def test_a_job_without_an_end_holds_its_devices_and_is_told_as_unfinished() -> None:
    (fifo,) = answer(
        question(job("a", None, devices=4), job("b", 10.0, devices=4), policies=("fifo",)), lambda *_: None
    )
    assert (fifo.jobs_finished, fifo.jobs_unfinished) == (0, 2)
    assert fifo.rows[1].start_s is None
    assert fifo.makespan_s is None
    (mixed,) = answer(question(job("a", None), job("b", 40.0), policies=("fifo",)), lambda *_: None)
    assert mixed.jobs_finished == 1
    assert mixed.allocated_utilisation == pytest.approx(1.0, abs=0.06)


def test_a_task_is_a_process_that_ends_when_it_is_cancelled() -> None:
    tasks = Tasks()
    long = question(*(job(f"j{n}", 1e5 + n, at=NOW + n) for n in range(900)), source="day", interval_s=0.1)
    task = tasks.begin(1, replace(long, policies=("easyscale",) * 8))
    with pytest.raises(Exception, match="under way"):
        tasks.begin(1, long)
    process = until(lambda: task.process)
    tasks.cancel(task)
    assert task.state == "cancelled"
    until(lambda: process.poll() is not None)
    again = tasks.begin(1, question(job("a", 10.0)))
    until(lambda: again.state != "running")
    assert (again.state, again.error, len(again.answers)) == ("done", "", 2)
    killed = tasks.begin(1, long)
    until(lambda: killed.process).kill()
    until(lambda: killed.state != "running")
    assert killed.state == "failed"
    tasks.close()


def test_over_http_with_names_for_those_who_may_know_them(make_world: Callable[..., World]) -> None:
    world = make_world(policy="easyscale")
    for who in ("user", "stranger", "user"):
        assert world.submit(who, work=50, name=f"of-{who}").status == 201
    body = {"source": "day", "policies": ["easyscale", "tiresias"], "devices": "cpu-sse*4"}
    begun = world.ask("POST", "/api/whatif", "user", body=body)
    assert begun.status == 201, begun.body
    asked = begun.json()
    assert asked["num_jobs"] == 3
    assert world.ask("POST", "/api/whatif", "user", body=body).status == 409
    path = f"/api/whatif/{asked['id']}"
    assert world.ask("GET", path, "stranger").status == 404
    found = until(lambda: (one := world.ask("GET", path, "user").json())["state"] != "running" and one)
    assert (found["state"], found["error"]) == ("done", "")
    assert [one["policy"] for one in found["results"]] == ["easyscale", "tiresias"]
    rows = found["results"][0]["rows"]
    assert [row["job"] for row in rows] == ["j1", "", "j3"]
    assert all(row["end_s"] for row in rows)
    assert found["names"] == {"j1": "of-user", "j3": "of-user"}
    assert not any("j2" in told for told in found["assumed"])
    (listed,) = world.ask("GET", "/api/whatif", "user").json()
    assert listed["results"][0]["rows"] == []
    assert world.ask("DELETE", path, "user").json()["state"] == "done"


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"policies": []}, "policies"),
    ({"policies": ["fifo"] * 3 + [f"fifo(a={n})" for n in range(9)]}, "policies"),
    ({"policies": ["os:system"]}, "no such policy"),
    ({"policies": ["fifo,las"]}, "no such policy"),
    ({"policies": ["fifo(nothing=1)"]}, "nothing"),
    ({"policies": ["fifo"], "devices": "cpu*0"}, "cpu*0"),
    ({"policies": ["fifo"], "devices": "cpu*99999999"}, "99999999"),
    ({"policies": ["fifo"], "source": "year"}, "source"),
)


def test_what_cannot_be_simulated_is_refused(world: World) -> None:
    for body, word in REFUSED:
        refused = world.ask("POST", "/api/whatif", "user", body=body)
        assert refused.status == 400, (body, refused.body)
        assert word in refused.error, body
