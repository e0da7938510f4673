"""What every backend must do (`backends.seam`), as checks that any of them can be held against.

A check is a coroutine that gets a `Harness` and an empty directory, and raises AssertionError. `CHECKS` has all of them
by name:

    @pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
    def test_my_backend(check, tmp_path):
        asyncio.run(check(MyHarness(), tmp_path))
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from isoscale.backends.local import training_environment
from isoscale.backends.seam import (
    Backend,
    Device,
    DeviceGone,
    ExecutorProcess,
    Identity,
    Launch,
    Notice,
)
from isoscale.backends.system import born
from isoscale.errors import StartError
from isoscale.kinds import profile_named

__all__ = ["CHECKS", "Check", "Harness", "abandon", "program", "run_text"]

_PATIENCE_S = 150.0


class Harness(Protocol):
    """One sort of backend. Its class is importable, takes no arguments, and can be made in another process."""

    #: devices that a fresh backend has; at least two, the first two of one kind
    def make(self) -> Backend: ...

    def kind(self) -> str:
        """Of which there are at least two devices."""

    async def vanish(self, backend: Backend, device: Device) -> None:
        """Take a device away without waiting for anybody, by whatever means this backend has for that."""


Check = Callable[[Harness, Path], Coroutine[Any, Any, None]]


def program(text: str, directory: Path, variables: Mapping[str, str] | None = None, **options: Any) -> Launch:
    """A Python program as a launch, told in both ways; its output is `directory`/log."""
    text = textwrap.dedent(text)
    environment = training_environment(variables or {}, profile_named("native"), 1)
    return Launch(
        command=(sys.executable, "-c", text),
        entry="isoscale.testing.conformance:run_text",
        arguments=(text,),
        environment=options.pop("environment", environment),
        log=options.pop("log", directory / "log"),
        **options,
    )


def run_text(arguments: list[str]) -> None:
    """`python -c TEXT`, in a process that is there already."""
    sys.argv[:] = ["-c"]
    exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    sys.exit(0)


async def _start(backend: Backend, harness: Harness, launch: Launch) -> ExecutorProcess:
    return await backend.start(launch, backend.free_device(harness.kind(), ()))


async def _reason(process: ExecutorProcess) -> str:
    async with asyncio.timeout(_PATIENCE_S):
        return await process.wait()


async def _until(condition: Callable[[], object], what: str) -> None:
    for _ in range(int(_PATIENCE_S / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{what} did not come in {_PATIENCE_S:.0f} s")


async def exit_codes(harness: Harness, directory: Path) -> None:
    """Whatever way a program ends in is told as the system tells it, and what it says is in its log."""
    backend = harness.make()
    cases = {
        "pass": ("exit code 0", ""),
        "import sys; sys.exit(3)": ("exit code 3", ""),
        "import sys; sys.exit('no way')": ("exit code 1", "no way"),
        "raise ValueError('odd')": ("exit code 1", "ValueError: odd"),
        "import os; os._exit(7)": ("exit code 7", ""),
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)": ("killed by SIGSEGV", ""),
    }
    for number, (text, (reason, said)) in enumerate(cases.items()):
        process = await _start(backend, harness, program(text, directory, log=directory / str(number)))
        found = await _reason(process)
        assert found == reason, f"{text!r} ended with {found!r}, not {reason!r}"
        assert said in process.tail(), f"{text!r} wrote {process.tail()!r}"
        await process.sweep()
    await backend.close()


async def output(harness: Harness, directory: Path) -> None:
    """Both streams go to the end of the log, in order, without anybody's help."""
    backend = harness.make()
    (directory / "log").write_text("before\n")
    text = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('x' * 100_000)\nprint('last')"
    process = await _start(backend, harness, program(text, directory))
    await _reason(process)
    lines = (directory / "log").read_text().splitlines()
    assert lines == ["before", "out", "err", "x" * 100_000, "last"], [line[:20] for line in lines]
    assert process.tail().endswith("last")
    await backend.close()


async def signals(harness: Harness, directory: Path) -> None:
    """A signal reaches the process; one that it does not handle ends it; a stopped one is known to be."""
    backend = harness.make()
    text = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        print("ready")
        time.sleep(1000)
    """
    process = await _start(backend, harness, program(text, directory))
    await _until(lambda: "ready" in process.tail(), "the program")
    process.signal(signal.SIGSTOP)
    await _until(process.is_stopped, "a process that is stopped")
    process.signal(signal.SIGCONT)
    await _until(lambda: not process.is_stopped(), "a process that goes on")
    process.signal(signal.SIGTERM)
    assert await _reason(process) == "exit code 5"
    process.signal(signal.SIGTERM)  # it is gone: nothing happens, to nobody
    other = await _start(backend, harness, program("import time; print('ready'); time.sleep(1000)", directory))
    await _until(lambda: other.tail().count("ready") == 2, "the program")
    other.signal(signal.SIGTERM)
    assert await _reason(other) == "killed by SIGTERM"
    await backend.close()


async def kill_9(harness: Harness, directory: Path) -> None:
    """Killed from here or from elsewhere, all who wait are told; nothing that it started is left."""
    backend = harness.make()
    text = """
        import os, subprocess, time
        child = subprocess.Popen(["sleep", "1000"])
        away = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        print("children", child.pid, away.pid)
        time.sleep(1000)
    """
    for by_backend in (True, False):
        log = directory / f"log-{by_backend}"
        variables = {"ISOSCALE_EXECUTOR": "0", "ISOSCALE_TOKEN_FILE": str(log)}
        process = await _start(backend, harness, program(text, directory, variables, log=log))
        await _until(lambda: "children" in log.read_text(), "the program")  # noqa: B023 - asked before the next round
        children = [int(word) for word in process.tail().split()[1:3]]
        waits = [asyncio.ensure_future(process.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        process.kill() if by_backend else os.kill(process.identity.pid, signal.SIGKILL)
        async with asyncio.timeout(_PATIENCE_S):
            assert await asyncio.gather(*waits) == ["killed by SIGKILL"] * 3
        await process.sweep()
        assert not any(map(born, children)), f"children {children} of a killed process are left"
    await backend.close()


async def owner_dies(harness: Harness, directory: Path) -> None:
    """A process outlives the death of whoever started it, at once and unharmed, and is found again and ended."""
    arguments = [type(harness).__module__, type(harness).__qualname__, str(directory)]
    code = "import sys; from isoscale.testing.conformance import abandon; abandon(*sys.argv[1:])"
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", code, *arguments)
    async with asyncio.timeout(_PATIENCE_S):
        assert await owner.wait() == -signal.SIGKILL
    identity = Identity(**json.loads((directory / "identity").read_text()))
    count = (directory / "log").stat().st_size
    await _until(lambda: (directory / "log").stat().st_size > count, "a sign of life")
    backend = harness.make()
    process = backend.find(identity, directory / "log")
    assert process is not None, "a process that lives was not found"
    assert backend.lives(identity)
    assert process.identity == identity
    process.kill()
    await _reason(process)
    await process.sweep()
    assert backend.find(identity, directory / "log") is None, "a process that is dead was found"
    assert not backend.lives(identity)
    await backend.close()


def abandon(module: str, name: str, directory: str) -> None:
    """In a process of its own: start a process, write down who it is, die."""
    import importlib

    async def begin() -> None:
        harness: Harness = getattr(importlib.import_module(module), name)()
        backend = harness.make()
        text = "import time\nwhile True:\n    print('alive')\n    time.sleep(0.05)"
        process = await _start(backend, harness, program(text, Path(directory)))
        await _until(lambda: "alive" in process.tail(), "the program")
        (Path(directory) / "identity").write_text(json.dumps(asdict(process.identity)))
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(begin())


async def devices(harness: Harness, directory: Path) -> None:
    """Nobody gets a device that is taken; identities name it; a device that vanishes takes its process with it."""
    backend = harness.make()
    heard: list[Notice] = []
    backend.listen(heard.append)
    first = backend.free_device(harness.kind(), ())
    second = backend.free_device(harness.kind(), {first.id})
    assert first.id != second.id
    sleep = "import time; time.sleep(1000)"
    one = await backend.start(program(sleep, directory), first)
    other = await backend.start(program(sleep, directory), second)
    assert (one.identity.device, other.identity.device) == (first.id, second.id)
    await harness.vanish(backend, first)
    assert (await _reason(one)).startswith(("killed by", "ended"))
    await _until(lambda: any(isinstance(n, DeviceGone) and n.device == first.id for n in heard), "the notice")
    assert all(notice.device == first.id for notice in heard), heard
    assert born(other.identity.pid), "the process on the other device is gone, too"
    await other.end()
    await backend.close()


async def never_comes(harness: Harness, directory: Path) -> None:
    """What cannot be started is said so, in time; and then there is no process."""
    backend = harness.make()
    launch = Launch(command=("/nowhere/program",), environment={}, log=directory / "log")
    with contextlib.suppress(StartError):
        async with asyncio.timeout(_PATIENCE_S):
            await _start(backend, harness, launch)
        raise AssertionError("a program that does not exist was started")
    await backend.close()


_FACTS = """
    import json, os, resource, signal, sys
    signals = [s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)]
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    print(json.dumps({
        "environment": dict(os.environ),
        "shown": open("/proc/self/environ").read(),
        "cwd": os.getcwd(),
        "umask": oct(os.umask(0)),
        "files": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:3],
        "num_files": len(os.listdir("/proc/self/fd")),
        "stdin": os.readlink("/proc/self/fd/0"),
        "leads": os.getsid(0) == os.getpid() == os.getpgid(0),
        "ignored": [int(s) for s in signals if signal.getsignal(s) == signal.SIG_IGN],
        "ctrl_c": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "blocked": [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "limits": [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")],
        "cores": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "path": sys.path,
        "flags": list(sys.flags),
        "hash": hash("a string"),
        "threads": len(os.listdir("/proc/self/task")),
    }))
"""


async def inherited(harness: Harness, directory: Path) -> None:
    """Environment, working directory, limits, signals, files and import path are those of a child of this process."""
    backend = harness.make()
    variables = {"SOME_VARIABLE": "some \u00fc value", "ISOSCALE_EXECUTOR": "5"}
    launch = program(_FACTS, directory, variables, cwd=directory)
    process = await _start(backend, harness, launch)
    assert await _reason(process) == "exit code 0", process.tail()
    facts = json.loads((directory / "log").read_text())
    fresh = await asyncio.create_subprocess_exec(
        *launch.command,
        env=dict(launch.environment),
        cwd=directory,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    expected = json.loads((await fresh.communicate())[0])
    for one in (facts, expected):
        one["shown"] = sorted(one["shown"].split("\0"))
        one["path"] = [entry for entry in one["path"] if entry]  # `-c` has an entry for the working directory
    different = {name: (facts[name], expected[name]) for name in expected if facts[name] != expected[name]}
    assert not different, f"differs from a child, which has the second value: {different}"
    await backend.close()


async def fingerprints(harness: Harness, directory: Path) -> None:
    """At a numeric profile that is not the machine's own a process computes what a fresh one of that profile does."""
    await _same_fingerprints(harness, directory, [("sse", 1)])


async def other_fingerprints(harness: Harness, directory: Path) -> None:
    """The same at the machine's own, with one thread and with two."""
    await _same_fingerprints(harness, directory, [("native", 1), ("native", 2)])


async def _same_fingerprints(harness: Harness, directory: Path, profiles: list[tuple[str, int]]) -> None:
    backend = harness.make()
    text = "from isoscale.core.numerics import determinism, fingerprint\n"
    for name, threads in profiles:
        environment = training_environment({}, profile_named(name), threads)
        body = f"determinism.apply('elastic', {threads}, {name!r}); print(fingerprint.fingerprint())"
        launch = program(text + body, directory, environment=environment, log=directory / f"{name}-{threads}")
        process = await _start(backend, harness, launch)
        assert await _reason(process) == "exit code 0", process.tail()
        expected = await _printed_afresh(launch)
        assert process.tail().splitlines()[-1] == expected, f"another fingerprint at profile {name}, {threads} threads"
    await backend.close()


#: what a fresh process printed, by its command and environment: it is the same for every backend
_printed: dict[tuple[tuple[str, ...], frozenset[tuple[str, str]]], str] = {}


async def _printed_afresh(launch: Launch) -> str:
    key = (tuple(launch.command), frozenset(launch.environment.items()))
    if key not in _printed:
        fresh = await asyncio.create_subprocess_exec(
            *launch.command,
            env=dict(launch.environment),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        _printed[key] = (await fresh.communicate())[0].decode().strip()
    return _printed[key]


async def fresh_streams(harness: Harness, directory: Path) -> None:
    """Two processes draw different numbers, as long as nobody seeds them."""
    backend = harness.make()
    text = "import random, uuid, numpy, torch, multiprocessing\nprint(random.random(), numpy.random.rand(), "
    text += "torch.rand(1).item(), uuid.uuid4(), multiprocessing.current_process().authkey.hex())"
    drawn = []
    for number in range(2):
        process = await _start(backend, harness, program(text, directory, log=directory / str(number)))
        assert await _reason(process) == "exit code 0", process.tail()
        drawn.append(process.tail().split())
    same = [one for one, other in zip(*drawn, strict=True) if one == other]
    assert not same, f"two processes have both drawn {same}"
    await backend.close()


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        exit_codes,
        output,
        signals,
        kill_9,
        owner_dies,
        devices,
        never_comes,
        inherited,
        fingerprints,
        other_fingerprints,
        fresh_streams,
    )
}
