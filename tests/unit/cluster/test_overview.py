"""Pages of the table, the cluster over time, a job's records over HTTP: who gets what, and what is refused."""

from __future__ import annotations

import json
from urllib.parse import quote

from isoscale.cluster.cluster_history import ClusterHistory, Fold
from isoscale.cluster.picture import NodePicture, Picture
from isoscale.cluster.values import Event
from tests.unit.cluster.conftest import World


def names(answer: dict) -> list[str]:
    return [job["name"] for job in answer["jobs"]]


def test_the_table_is_filtered_sorted_and_cut_by_the_database(world: World) -> None:
    for n in range(12):
        who, tenant = ("stranger", "team-b") if n % 4 == 3 else ("user", "team-a")
        assert world.submit(who, name=f"job-{n:02}", priority=n % 5, tenant=tenant).status == 201
    world.ask("POST", "/api/jobs/j2/cancel")
    table = world.ask("GET", "/api/table?limit=5").json()
    assert (table["total"], names(table)) == (12, [f"job-{n:02}" for n in (11, 10, 9, 8, 7)])
    assert table["tenants"] == ["team-a", "team-b"]
    assert sum(table["counts"].values()) == 12
    rest = world.ask("GET", "/api/table?limit=5&offset=10").json()
    assert names(rest) == ["job-01", "job-00"]
    assert names(world.ask("GET", "/api/table?sort=name&descending=false&limit=2").json()) == ["job-00", "job-01"]
    by_priority = world.ask("GET", "/api/table?sort=priority").json()["jobs"]
    assert [job["priority"] for job in by_priority] == sorted((n % 5 for n in range(12)), reverse=True)
    assert names(world.ask("GET", "/api/table?text=OB-1").json()) == ["job-11", "job-10"]
    assert world.ask("GET", "/api/table?text=" + quote("%_\\")).json()["total"] == 0
    assert world.ask("GET", "/api/table?tenant=team-b").json()["total"] == 3
    assert names(world.ask("GET", "/api/table?state=ended").json()) == ["job-01"]
    assert world.ask("GET", "/api/table?state=live").json()["total"] == 11
    assert world.ask("GET", "/api/table?state=cancelled,failed").json()["total"] == 1
    assert world.ask("GET", "/api/table?sort=position&descending=false").json()["total"] == 11
    # Of other tenants nobody sees a job, a count or a name.
    seen = world.ask("GET", "/api/table", "user").json()
    assert seen["total"] == sum(seen["counts"].values()) == 9
    assert seen["tenants"] == ["team-a"]
    assert world.ask("GET", "/api/table?tenant=team-b", "user").json()["total"] == 0


REFUSED = (
    "table?limit=501",
    "table?limit=0",
    "table?offset=-1",
    "table?sort=secret",
    "table?sort=number;DROP",
    "table?state=lost",
    "table?nothing=1",
    "cluster/history?points=1",
    "cluster/history?begin=5&end=5",
    "cluster/history?end=nan",
    "cluster/history?begin=-1",
    "jobs/j1/series?points=100000",
    "jobs/j1/series?by=colour",
    "jobs/j1/series?begin=inf",
    "jobs/j1/run-events?limit=5000",
    "jobs/j1/run-events?before=-5",
    "jobs/j1/log/search?text=",
    "jobs/j1/log/search?text=a%0Ab",
    "jobs/j1/log/search",
    "compare?a=j1",
)


def test_what_makes_no_sense_is_refused_by_name(world: World) -> None:
    assert world.submit().status == 201
    for query in REFUSED:
        answer = world.ask("GET", f"/api/{query}")
        assert answer.status == 400, (query, answer.body)
        assert answer.json()["error"]["text"]


def test_records_of_a_job_and_of_nobody_elses(world: World) -> None:
    for who in ("user", "user", "stranger"):
        assert world.submit(who, seed=1 if who == "user" else 2).status == 201
    for job, seed in (("j1", 0.5), ("j2", 0.5), ("j3", 0.25)):
        directory = world.service.state / "jobs" / job
        (directory / "logs").mkdir()
        (directory / "logs" / "executor-0.log").write_text("one\n<script>two</script>\n")
        lines = [{"t": 1.8e9 + n, "event": "step", "step": n, "loss": seed / n, "generation": 1} for n in range(1, 9)]
        lines.append({"t": 1.8e9 + 9, "event": "finished", "step": 8, "digest": "ab"})
        (directory / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    series = world.ask("GET", "/api/jobs/j1/series?points=4&names=loss", "viewer").json()
    (loss,) = series["series"]
    assert (len(loss["x"]), loss["high"][0], loss["last"]) == (4, 0.5, 0.0625)
    assert series["read_bytes"] == series["size"] > 0
    story = world.ask("GET", "/api/jobs/j1/timeline", "viewer").json()
    assert (story["state"], story["step"], story["num_logical_workers"]) == ("finished", 8, 2)
    events = world.ask("GET", "/api/jobs/j1/run-events", "viewer").json()
    assert [event["event"] for event in events["events"]] == ["finished"]
    found = world.ask("GET", "/api/jobs/j1/log/search?text=SCRIPT", "viewer").json()
    assert [match["line"] for match in found["matches"]] == ["<script>two</script>"]
    same = world.ask("GET", "/api/compare?a=j1&b=j2", "viewer").json()
    assert same["text"] == "equal losses in all 8 steps that both have; submitted alike"
    other = world.ask("GET", "/api/compare?a=j1&b=j3").json()
    assert other["first_difference"]["step"] == 1
    assert {one["name"] for one in other["options"]} == {"seed", "tenant"}
    for path in ("jobs/j3/series", "jobs/j3/timeline", "jobs/j3/run-events", "jobs/j3/log/search?text=a"):
        assert world.ask("GET", f"/api/{path}", "viewer").status == 404, path
    assert world.ask("GET", "/api/compare?a=j1&b=j3", "viewer").status == 404
    assert world.ask("GET", "/api/jobs/j9/series").status == 404


def event(id_: int, t: float, name: str, job: str = "", **fields: object) -> Event:
    return Event(id=id_, t=t, event=name, job=job, fields=fields)


STORY = [
    event(1, 0, "service_started"),
    event(2, 10, "job_submitted", "j1"),
    event(3, 10, "job_starting", "j1"),
    event(4, 10, "job_started", "j1", to=2),
    event(5, 20, "job_submitted", "j2"),
    event(6, 30, "job_running", "j1"),
    event(7, 40, "devices_away", devices=["a", "b"]),
    event(8, 50, "job_resized", "j1", to=1),
    event(9, 60, "job_finished", "j1"),
    event(10, 60, "job_starting", "j2"),
    event(11, 60, "job_started", "j2", to=2),
    event(12, 70, "devices_lent", devices=["a"]),
    event(13, 80, "job_failed", "j2"),
    # Nobody's, late or odd: nothing may come of it.
    event(14, 90, "job_resized", "j2", to=7),
    event(15, 90, "job_running", "j2"),
    event(16, 90, "devices_away", devices=None),
    event(17, 90, "job_started", "j9", to="many"),
]


def test_levels_are_folded_from_events() -> None:
    fold, told = Fold(), {}
    for one in STORY:
        fold.take(one)
        told[one.t] = fold.levels()
    #                held, away, queued, running, finished, failed
    assert told[10] == (2, 0, 0, 1, 0, 0)
    assert told[20] == (2, 0, 1, 1, 0, 0)
    assert told[50] == (1, 2, 1, 1, 0, 0)
    assert told[60] == (2, 2, 0, 1, 1, 0)
    assert told[90] == (0, 1, 0, 0, 1, 1)


class Rows:
    """Of a store: the events."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def events(self, *, after: int, limit: int) -> list[Event]:
        return [one for one in self._events if one.id > after][:limit]


def test_levels_over_time_are_weighted_and_keep_extremes() -> None:
    node = NodePicture(name="local", kind="cpu", devices=("a", "b", "c", "d"))
    history = ClusterHistory(Rows(STORY), lambda: Picture(t=0, policy="fifo", nodes=(node,)), lambda: 100.0)  # type: ignore[arg-type]
    shown = history.show(0, 100, 2)
    assert shown.held.x == (0, 50)
    assert shown.held.value == ((40 * 2) / 50, (10 * 1 + 20 * 2) / 50)
    assert (shown.held.low, shown.held.high) == ((0, 0), (2, 2))
    assert shown.capacity.value == ((40 * 4 + 10 * 2) / 50, (20 * 2 + 30 * 3) / 50)
    assert (shown.finished.value, shown.failed.value) == ((0, 1), (0, 1))
    early = history.show(-50, 50, 2)
    assert early.held.value[0] is None
    assert shown.steps_per_s.x == ()


def test_a_live_cluster_has_a_history(world: World) -> None:
    assert world.submit().status == 201
    shown = world.ask("GET", "/api/cluster/history?points=10", "viewer").json()
    assert shown["queued"]["high"][-1] == 1
    assert shown["capacity"]["value"][-1] == 2
