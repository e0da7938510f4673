"""A new database from what jobs' directories say: none is lost, and none is written over."""

from __future__ import annotations

from collections.abc import Callable

from isoscale.cluster.rebuild import rebuild
from tests.unit.cluster.conftest import World


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
