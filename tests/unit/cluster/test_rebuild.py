"""A new database from what jobs' directories say: none is lost, and none is written over."""

from __future__ import annotations

import json
from collections.abc import Callable

from isoscale.backends.host_id import machine_id
from isoscale.cluster.process import CoordinatorProcess
from isoscale.cluster.rebuild import rebuild
from isoscale.runtime.control.grants import DeviceGrant, device_named, write_grant
from tests.unit.cluster.conftest import World
from tests.unit.cluster.test_run import sleeper

__all__ = ["sleeper"]


def test_two_owners_who_gave_the_same_key_keep_their_jobs(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.submit(key="nightly")
    world.submit("stranger", key="nightly")
    state = world.service.state
    world.service.close()
    (state / "cluster.sqlite").write_bytes(b"damaged")
    assert rebuild(state).jobs == 2
    again = make_world()
    assert [job["id"] for job in again.ask("GET", "/api/jobs").json()] == ["j1", "j2"]


def test_a_directory_that_could_not_be_read_is_not_given_to_another_job(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.submit()
    world.submit()
    state = world.service.state
    world.service.close()
    (state / "cluster.sqlite").write_bytes(b"damaged")
    kept = state / "jobs" / "j2"
    (kept / "submission.json").write_text("torn")
    (kept / "control").mkdir()
    (kept / "final.pt").write_text("its result")
    assert rebuild(state).jobs == 1
    assert make_world().submit().json()["id"] == "j3"
    assert (kept / "final.pt").read_text() == "its result"


def test_of_two_jobs_whose_directories_name_one_device_the_one_that_runs_has_it(
    make_world: Callable[..., World], sleeper: CoordinatorProcess
) -> None:
    """The other one's coordinator was killed, and its device was given on before it had one again."""
    world = make_world()
    state = world.service.state
    for number, (pid, birth) in enumerate(((sleeper.pid, sleeper.born), (sleeper.pid, 1)), 1):
        world.submit()
        directory = state / "jobs" / f"j{number}"
        write_grant(directory, DeviceGrant(number=number, devices=(device_named("local/cpu/0"),)))
        (directory / "control" / "job.json").write_text("{}")
        announced = {"machine": machine_id(), "pid": pid, "born": birth}
        (directory / "control" / "coordinator.json").write_text(json.dumps(announced))
    world.service.close()
    (state / "cluster.sqlite").write_bytes(b"damaged")
    assert rebuild(state).jobs == 2
    again = make_world()
    assert again.service.picture().holders == {"local/cpu/0": "j1"}
    assert [job["state"] for job in again.ask("GET", "/api/jobs").json()] == ["running", "paused"]
