"""Executors on machines of their own, and trouble on the network between them. The bits are always the same."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.security.jobs import Running, digest_alone, isoscale, running
from tests.security.network import Network, network, why_not

pytestmark = [pytest.mark.processes, pytest.mark.network, pytest.mark.timeout(600)]

STEPS = 40


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digest_alone(STEPS, tmp_path_factory.mktemp("alone"))


@pytest.fixture
def machines() -> Iterator[Network]:
    with network(4) as made:
        yield made


@contextlib.contextmanager
def spread_out(directory: Path, machines: Network, *options: object, executors: int = 2) -> Iterator[Running]:
    """A run whose coordinator is on the first machine and its executors on the next ones, at its first step."""
    first = machines.machines[0]
    with running(
        directory,
        *("--listen", first.address, "--no-spawn", "--executors", executors),
        *options,
        steps=STEPS,
        prefix=first.prefix,
    ) as run:
        run.until(lambda: (run.out / "control" / "coordinator.json").exists(), "a coordinator")
        for machine in machines.machines[1 : executors + 1]:
            run.join(prefix=machine.own_processes, cwd=directory)
        run.until(lambda: run.step() >= 1, "the first step")
        yield run


def test_machines_of_their_own(tmp_path: Path, machines: Network, expected: str) -> None:
    """They meet at their own addresses, and one more comes in."""
    with spread_out(tmp_path, machines) as run:
        before = machines.passed
        run.train(3)
        assert machines.passed > before, "gradients cross the network"
        run.join(prefix=machines.machines[3].own_processes)
        asked = isoscale("scale", run.out, "3", prefix=machines.machines[0].prefix)
        assert asked.returncode == 0, asked.stdout
        run.until_held(2, machines.machines[0].prefix)
        run.until(lambda: run.train(1) or run.events("rescale"), "three executors")
        assert run.finish()["digest"].startswith(expected)
        assert [one.wait(60) for one in run.joined] == [0, 0, 0]


@pytest.mark.parametrize(("delay", "loss"), [(0.01, 0.0), (0.0, 0.05), (0.005, 0.02)])
def test_delay_and_loss(tmp_path: Path, machines: Network, expected: str, delay: float, loss: float) -> None:
    with spread_out(tmp_path, machines, "--lost-after", 60) as run:
        machines.delay, machines.loss = delay, loss
        summary = run.finish()
        assert summary["digest"].startswith(expected)
        assert (machines.lost > 0) == (loss > 0)
        assert run.events("executor_lost") == []


@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_partition_that_heals_in_time(tmp_path: Path, machines: Network, expected: str, who: int) -> None:
    """The coordinator's machine, or one executor's, is gone for a while; nobody is given up."""
    with spread_out(tmp_path, machines, "--lost-after", 60) as run:
        run.train(2)
        machines.cut_off = {who}
        run.allow(run.step() + 5)
        _pass_time(run, 3.0)
        machines.cut_off = set()
        run.until(lambda: run.step() >= 8, "it goes on")
        assert run.finish()["digest"].startswith(expected)
        assert run.events("executor_lost") == []
        assert len(run.events("generation")) == 1


@pytest.mark.parametrize("who", [1, 2])
def test_one_that_comes_back_after_it_was_given_up(tmp_path: Path, machines: Network, expected: str, who: int) -> None:
    """It finds that the others have gone on, ends, and has changed nothing; another one takes its place."""
    with spread_out(tmp_path, machines, "--lost-after", 3, "--checkpoint-every", 2) as run:
        run.train(2)
        machines.cut_off = {who}
        run.allow(run.step() + 6)
        run.until(lambda: run.events("executor_lost"), "it is given up")
        assert run.events("executor_lost")[0]["reason"].startswith("no heartbeat")
        run.until(lambda: run.step() >= 8, "the other one goes on alone")
        machines.cut_off = set()
        gone = run.joined[who - 1]
        run.until(lambda: gone.poll() is not None, "it ends")
        assert gone.poll() == 0
        run.join(prefix=machines.machines[3].own_processes)
        run.until_held(2, machines.machines[0].prefix)
        run.until(lambda: run.train(1) or run.events("rescale")[-1]["to"] == 2, "another one")
        assert run.finish()["digest"].startswith(expected)
        assert [event["step"] for event in run.events("step")] == list(range(1, STEPS + 1))


def test_a_coordinator_that_is_cut_off_for_long(tmp_path: Path, machines: Network, expected: str) -> None:
    """Executors train on without it, and it does not take them for lost: it is the one that is gone."""
    with spread_out(tmp_path, machines, "--lost-after", 2) as run:
        run.train(2)
        machines.cut_off = {0}
        run.allow(run.step() + 10)
        _pass_time(run, 8.0)
        machines.cut_off = set()
        run.until(lambda: run.step() >= 13, "it hears of what was done without it")
        assert run.finish()["digest"].startswith(expected)
        assert run.events("executor_lost") == []
        assert len(run.events("generation")) == 1


def test_nobody_reaches_anybody(tmp_path: Path, machines: Network, expected: str) -> None:
    with spread_out(tmp_path, machines, "--lost-after", 60) as run:
        run.train(2)
        machines.cut_off = {0, 1, 2}
        run.allow(run.step() + 5)
        _pass_time(run, 3.0)
        machines.cut_off = set()
        assert run.finish()["digest"].startswith(expected)
        assert run.events("executor_lost") == []


def test_those_who_are_left_cannot_reach_each_other(tmp_path: Path, machines: Network, expected: str) -> None:
    """The coordinator reaches both. One of them is left out, by name, and the other one goes on."""
    with spread_out(tmp_path, machines, executors=3) as run:
        run.train(2)
        machines.apart = {frozenset((2, 3))}
        run.joined[0].kill()
        run.allow(10**6)
        run.until(lambda: len(run.events("executor_lost")) >= 2, "one is left out", patience=120)
        assert "cannot reach each other" in run.events("executor_lost")[1]["reason"]
        assert run.finish()["digest"].startswith(expected)
        assert [event["step"] for event in run.events("step")] == list(range(1, STEPS + 1))


def test_a_newcomer_that_cannot_reach_a_member(tmp_path: Path, machines: Network, expected: str) -> None:
    """It is left out; training goes on all the time."""
    with spread_out(tmp_path, machines) as run:
        run.train(2)
        machines.apart = {frozenset((2, 3))}
        run.join(prefix=machines.machines[3].own_processes)
        asked = isoscale("scale", run.out, "3", prefix=machines.machines[0].prefix)
        assert asked.returncode == 0, asked.stdout
        run.until_held(2, machines.machines[0].prefix)
        run.until(lambda: run.events("executor_lost"), "it is left out", patience=120)
        run.train(2)
        assert "cannot reach each other" in run.events("executor_lost")[0]["reason"]
        assert run.finish()["digest"].startswith(expected)
        assert len(run.events("generation")) == 1
        assert [one.wait(60) for one in run.joined] == [0, 0, 0]


def test_another_coordinator_takes_over_executors_of_other_machines(
    tmp_path: Path, machines: Network, expected: str
) -> None:
    with spread_out(tmp_path, machines) as run:
        run.train(2)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        with ThreadPoolExecutor(1) as pool:
            resumed = pool.submit(isoscale, "resume", run.out, prefix=machines.machines[0].prefix)
            while len(run.events("generation")) < 2 and not resumed.done():
                time.sleep(0.1)
            run.allow(10**6)
            assert resumed.result().returncode == 0, resumed.result().stdout
        assert run.summary()["digest"].startswith(expected)
        assert run.events("executor_lost") == []
        assert [one.wait(60) for one in run.joined] == [0, 0]


def _pass_time(run: Running, seconds: float) -> None:
    """While nothing can happen."""
    step = run.step()
    with contextlib.suppress(AssertionError):
        run.until(lambda: run.step() > step + 1, "nothing", patience=seconds)
    assert run.process.poll() is None
