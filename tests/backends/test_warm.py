"""Warm parents that die, hang or differ, and keepers that strangers talk to: the process comes all the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from isoscale.backends import warm, warm_sharing
from isoscale.backends.local import LocalBackend, training_environment
from isoscale.backends.seam import Launch
from isoscale.backends.system import born, can_lower_priority
from isoscale.backends.warm import UnavailableError, WarmParent, WarmParents, read_at_import
from isoscale.backends.warm_sharing import Keeper, Lender, installed
from isoscale.errors import UserError
from isoscale.kinds import profile_named
from isoscale.testing.conformance import program

pytestmark = pytest.mark.processes

#: a warm parent that has imported next to nothing: what is tested here does not depend on it
LIGHT = "gc:collect"
TEXT = "import os; print(os.getppid())"


@pytest.fixture
def parents() -> Iterator[WarmParents]:
    one = WarmParents(LIGHT, Path(os.devnull))
    yield one
    one.close()


def the_one(parents: WarmParents, launch: Launch) -> WarmParent:
    return parents.begun(launch.environment)


async def started(parents: WarmParents, launch: Launch) -> tuple[str, str]:
    """How it ended and what it printed."""
    backend = LocalBackend(warm=parents)
    process = await backend.start(launch, backend.free_device("cpu", ()))
    async with asyncio.timeout(200):
        reason = await process.wait()
    return reason, process.tail()


#: what it gets of the machine, as its session and alone; then the same once it has joined
PRIORITY = """
import os
from pathlib import Path
from isoscale.backends.system import restore_priority
def shown():
    share = Path("/proc/self/autogroup")
    words = share.read_text().split() if share.exists() else []
    return f"{(words or ['-'])[-1]} {os.getpriority(os.PRIO_PROCESS, 0)}"
before = shown()
restore_priority()
print(before, shown())
"""


def sessions_have_shares() -> bool:
    """Asked of a new session: one that began with the system has none, also where others do."""
    asked = ["cat", "/proc/self/autogroup"]
    return bool(subprocess.run(asked, start_new_session=True, capture_output=True, check=False).stdout.strip())


@pytest.mark.parametrize("is_warm", [True, False])
@pytest.mark.parametrize("newcomer", [True, False])
def test_a_newcomer_gets_less_of_the_machine_until_it_joins(
    parents: WarmParents, tmp_path: Path, is_warm: bool, newcomer: bool
) -> None:
    launch = replace(program(PRIORITY, tmp_path), newcomer=newcomer)
    backend = LocalBackend(warm=parents if is_warm else None)

    async def run() -> str:
        process = await backend.start(launch, backend.free_device("cpu", ()))
        await process.wait()
        return process.tail().strip()

    lowered = str(warm.NEWCOMER_NICE) if newcomer else "0"
    share, back = (lowered, "0") if sessions_have_shares() else ("-", "-")
    own = lowered if can_lower_priority() else "0"
    assert asyncio.run(run()) == f"{share} {own} {back} 0"


def test_the_parent_of_a_forked_process_is_the_owner(parents: WarmParents, tmp_path: Path) -> None:
    assert asyncio.run(started(parents, program(TEXT, tmp_path))) == ("exit code 0", str(os.getpid()))
    assert not the_one(parents, program(TEXT, tmp_path)).is_dead


def kill_while_it_imports(parent: WarmParent) -> None:
    os.kill(parent.pid or 0, signal.SIGKILL)


def kill_when_it_is_ready(parent: WarmParent) -> None:
    while not parent.is_ready:
        time.sleep(0.01)
    os.kill(parent.pid or 0, signal.SIGKILL)


def stop_when_it_is_ready(parent: WarmParent) -> None:
    while not parent.is_ready:
        time.sleep(0.01)
    os.kill(parent.pid or 0, signal.SIGSTOP)


@pytest.mark.parametrize("harm", [kill_while_it_imports, kill_when_it_is_ready, stop_when_it_is_ready])
def test_a_process_comes_though_its_warm_parent_does_not(
    harm: Callable[[WarmParent], None], parents: WarmParents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "_FORK_S", 0.5)
    launch = program(TEXT, tmp_path)
    first = the_one(parents, launch)
    harm(first)
    assert asyncio.run(started(parents, launch)) == ("exit code 0", str(os.getpid()))
    second = the_one(parents, launch)
    assert second is not first, "a warm parent that failed is replaced"
    assert not second.is_dead


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP])
def test_a_warm_parent_that_fails_between_request_and_fork(
    signal_: signal.Signals, parents: WarmParents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request lies in its socket and nobody will read it."""
    monkeypatch.setattr(warm, "_FORK_S", 1.0)
    launch = program(TEXT, tmp_path)
    parent = the_one(parents, launch)
    while not parent.is_ready:
        time.sleep(0.01)
    pid = parent.pid or 0
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(0.3, os.kill, (pid, signal_))
    timer.start()
    assert asyncio.run(started(parents, launch)) == ("exit code 0", str(os.getpid()))
    timer.join()


def test_processes_outlive_their_warm_parent_and_their_end_is_told(parents: WarmParents, tmp_path: Path) -> None:
    async def story() -> None:
        backend = LocalBackend(warm=parents)
        texts = {"exit code 9": "sys.exit(9)", "killed by SIGABRT": "os.abort()"}
        running = {}
        for number, (reason, last) in enumerate(texts.items()):
            wait = f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)"
            text = f"import os, sys, time\nprint('up')\n{wait}\n{last}"
            launch = program(text, tmp_path, log=tmp_path / str(number))
            running[reason] = await backend.start(launch, backend.free_device("cpu", {str(number)}))
        parent = the_one(parents, launch)
        assert parent.pid is not None
        os.kill(parent.pid, signal.SIGKILL)
        while not parent.is_dead:
            await asyncio.sleep(0.01)
        (tmp_path / "go").touch()
        for reason, process in running.items():
            assert await process.wait() == reason

    asyncio.run(story())


def test_after_three_failures_nobody_is_forked_any_more(tmp_path: Path) -> None:
    parents = WarmParents("no_such_module:function", Path(os.devnull))
    for _ in range(3):
        assert asyncio.run(started(parents, program(TEXT, tmp_path)))[0] == "exit code 0"
    with pytest.raises(UnavailableError):
        parents.begun(program(TEXT, tmp_path).environment)


def test_a_failure_that_several_meet_is_one(parents: WarmParents, tmp_path: Path) -> None:
    launch = program(TEXT, tmp_path)

    async def story() -> None:
        parent = the_one(parents, launch)
        assert parent.pid is not None
        os.kill(parent.pid, signal.SIGSTOP)
        backend = LocalBackend(warm=parents)
        starts = [backend.start(launch, backend.free_device("cpu", {str(n)})) for n in range(4)]
        waiting = [asyncio.ensure_future(start) for start in starts]
        await asyncio.sleep(0.2)
        os.kill(parent.pid, signal.SIGKILL)
        for process in await asyncio.gather(*waiting):
            assert await process.wait() == "exit code 0"

    asyncio.run(story())
    assert not the_one(parents, launch).is_dead, "there is another warm parent"


def test_a_warm_parent_ends_with_its_owner(tmp_path: Path) -> None:
    code = f"""
import os, sys, pathlib, signal
from isoscale.backends.warm import WarmParents
parent = WarmParents({LIGHT!r}, pathlib.Path(os.devnull)).begun(dict(os.environ))
print(parent.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    pid, deadline = int(done.stdout), time.monotonic() + 60
    while born(pid):
        assert time.monotonic() < deadline, "the warm parent is left"
        time.sleep(0.02)


def test_what_is_read_at_import_needs_another_warm_parent(parents: WarmParents, tmp_path: Path) -> None:
    plain = training_environment({}, profile_named("native"), 1)
    sse = training_environment({}, profile_named("sse"), 1)
    two = training_environment({}, profile_named("native"), 2)
    first = parents.begun(plain)
    assert parents.begun({**plain, "ISOSCALE_EXECUTOR": "1", "WANDB_MODE": "offline", "PATH": "/bin"}) is first
    assert len({id(parents.begun(one)) for one in (plain, sse, two, {**plain, "LD_PRELOAD": ""})}) == 4
    with pytest.raises(UnavailableError):  # so many and no more
        parents.begun({**plain, "PYTHONPATH": "/somewhere"})


@pytest.mark.parametrize(
    "name", ["PYTHONPATH", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "MKL_CBWR", "ATEN_CPU_CAPABILITY"]
)
def test_variables_that_libraries_read_when_they_are_loaded(name: str) -> None:
    assert read_at_import({name: "1"}) == {(name, "1")}


# ---- sharing ----


def answers(directory: Path) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
        one.connect(str(directory / "socket"))
        return True
    return False


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lender, Path, int]]:
    """A keeper in a process of its own, which can be killed."""
    directory = tmp_path_factory.mktemp("k") / "d"
    code = (
        "import sys, time, pathlib\n"
        "from isoscale.backends.warm import WarmParents\n"
        "from isoscale.backends.warm_sharing import Keeper\n"
        f"Keeper(pathlib.Path(sys.argv[1]), WarmParents({LIGHT!r}, pathlib.Path('/dev/null')))"
        ".serve(None, time.monotonic)"
    )
    keeper = subprocess.Popen([sys.executable, "-c", code, str(directory)])
    while not answers(directory):
        assert keeper.poll() is None
        time.sleep(0.01)
    yield Lender(directory), directory, keeper.pid
    keeper.kill()
    keeper.wait()


def test_a_borrowed_parent_forks_and_its_keeper_knows_how_it_ended(
    shared: tuple[Lender, Path, int], tmp_path: Path
) -> None:
    lender, _, keeper = shared
    parents = WarmParents(LIGHT, Path(os.devnull), lender)
    text = f"{TEXT}\nimport sys; sys.exit(4)"
    assert asyncio.run(started(parents, program(text, tmp_path))) == ("exit code 4", str(keeper))
    assert the_one(parents, program(text, tmp_path)).pid is None, "it was borrowed"
    parents.close()


def test_a_keeper_that_dies_takes_no_process_with_it(shared: tuple[Lender, Path, int], tmp_path: Path) -> None:
    lender, _, keeper = shared
    parents = WarmParents(LIGHT, Path(os.devnull), lender)

    async def story() -> None:
        backend = LocalBackend(warm=parents)
        text = "import time, sys\nprint('up')\ntime.sleep(1)\nsys.exit(3)"
        process = await backend.start(program(text, tmp_path), backend.free_device("cpu", ()))
        os.kill(keeper, signal.SIGKILL)
        assert await process.wait() in ("ended", "exit code 3"), "nobody is left who could tell"
        assert process.tail() == "up"
        assert (await started(parents, program("import sys; sys.exit(6)", tmp_path)))[0] == "exit code 6"

    asyncio.run(story())
    parents.close()


def test_other_code_in_memory_is_not_lent(
    shared: tuple[Lender, Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lender, _, _ = shared
    environment = training_environment({}, profile_named("native"), 1)
    lender.borrow(environment).close()
    monkeypatch.setattr(warm_sharing, "installed", lambda: "something else")
    with pytest.raises(UnavailableError):
        lender.borrow(environment)


def test_a_changed_file_is_another_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package" / "backends"
    package.mkdir(parents=True)
    (package / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(warm_sharing, "__file__", str(package / "a.py"))
    before = installed()
    (package / "a.py").write_text("x = 12\n")
    assert installed() != before


def test_a_relative_import_path_means_another_directory_elsewhere(shared: tuple[Lender, Path, int]) -> None:
    with pytest.raises(UnavailableError):
        shared[0].borrow({**training_environment({}, profile_named("native"), 1), "PYTHONPATH": "lib"})


def test_only_its_user_can_reach_a_keeper(shared: tuple[Lender, Path, int]) -> None:
    _, directory, _ = shared
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "socket").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707])
def test_a_directory_that_others_can_enter_is_not_used(mode: int, tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(UserError, match="only its user can enter"):
        Keeper(directory, WarmParents(LIGHT, Path(os.devnull)))
    with pytest.raises(UnavailableError):
        Lender(directory).borrow({})


def test_there_is_one_keeper(shared: tuple[Lender, Path, int]) -> None:
    with pytest.raises(UserError, match="another process keeps"):
        Keeper(shared[1], WarmParents(LIGHT, Path(os.devnull)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x02{]",
        b"\0\0\0\x02[]",
        b"\0\0\0\x10{",
        b"\0\0\0\x14" + json.dumps({"what": "ended"}).encode().ljust(20),
        b"\0\0\0\x21" + json.dumps({"what": "parent", "pid": "none"}).encode().ljust(33),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_hostile_words_do_not_harm_a_keeper(data: bytes, shared: tuple[Lender, Path, int], tmp_path: Path) -> None:
    lender, directory, keeper = shared
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(directory / "socket"))
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            assert len(stranger.recv(1000)) < 100
    parents = WarmParents(LIGHT, Path(os.devnull), lender)
    assert asyncio.run(started(parents, program(TEXT, tmp_path))) == ("exit code 0", str(keeper))
    parents.close()
