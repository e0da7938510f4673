"""A job whose control socket has a certificate: its own executors and commands trust it, nobody else is let in."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidMessage
from websockets.sync.client import connect

from isoscale.runtime.control.job_handle import JobHandle
from tests.security.jobs import PACED, Running, isoscale, running

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl"),
]


def certificate(directory: Path, name: str, *, names: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """Self-signed: a file to show, which is also the one to trust, and its key."""
    path, key = directory / f"{name}.pem", directory / f"{name}.key"
    _openssl("req", "-x509", *_NEW_KEY, key, "-addext", f"subjectAltName={names}", "-days", 2, "-out", path)
    return path, key


def expired_certificate(directory: Path) -> tuple[Path, Path]:
    """`openssl req` of today cannot date back; `openssl ca` always could."""
    path, key, request = directory / "expired.pem", directory / "expired.key", directory / "request.pem"
    _openssl("req", "-new", *_NEW_KEY, key, "-out", request)
    for name, text in (("index", ""), ("serial", "01\n")):
        (directory / name).write_text(text)
    config = directory / "ca.cnf"
    config.write_text(
        f"[ca]\ndefault_ca=d\n[d]\ndatabase={directory}/index\nserial={directory}/serial\nnew_certs_dir={directory}\n"
        "default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n[x]\nsubjectAltName=IP:127.0.0.1\n"
    )
    period = ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"]
    options = ["-config", config, "-in", request, "-keyfile", key, "-extensions", "x", "-out", path]
    _openssl("ca", "-selfsign", "-batch", "-notext", *options, *period)
    return path, key


_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=isoscale", "-keyout"]


def _openssl(*arguments: object) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Iterator[Running]:
    path, key = certificate(files, "good")
    with running(tmp_path_factory.mktemp("job"), "--executors", 2, "--certificate", path, "--key", key) as run:
        run.until(lambda: run.step() >= 1, "the first step")
        yield run


def test_its_own_executors_trust_it(job: Running) -> None:
    assert job.url.startswith("wss://127.0.0.1:")
    assert len(job.events("executor_joined")) == 2


def test_a_client_without_tls_is_refused(job: Running) -> None:
    with pytest.raises((InvalidMessage, EOFError, OSError)):
        connect(job.url.replace("wss://", "ws://"), proxy=None, open_timeout=60).__enter__()
    job.train(1)


def test_garbage_and_silence_in_the_handshake(job: Running) -> None:
    host, port = job.url.removeprefix("wss://").split(":")
    silent = [socket.create_connection((host, int(port)), timeout=60) for _ in range(200)]
    for number, one in enumerate(silent):
        if number % 2:
            one.sendall(b"\x16\x03\x01\x02\x00" + bytes([number]) * 50)
    job.train(1)
    with JobHandle(job.out, ca_file=_ca(job)) as handle:
        assert handle.status()["state"] == "training"
    for one in silent:
        one.close()


def _ca(job: Running) -> Path:
    return Path(job.process.args[job.process.args.index("--certificate") + 1])  # type: ignore[index, union-attr]


def test_commands_trust_what_they_are_told_to(job: Running) -> None:
    status = isoscale("status", job.out, "--json", "--ca", _ca(job))
    assert status.returncode == 0, status.stdout
    refused = isoscale("status", job.out, "--json")
    assert refused.returncode == 2
    assert refused.stdout.startswith("isoscale: --ca=")
    assert len(refused.stdout.splitlines()) == 1


@pytest.mark.parametrize("which", ["foreign", "missing", "key"])
def test_another_certificate_is_not_trusted(job: Running, files: Path, which: str) -> None:
    path, key = certificate(files, "foreign")
    ca = {"foreign": path, "missing": files / "missing.pem", "key": key}[which]
    refused = isoscale("scale", job.out, "1", "--ca", ca)
    assert refused.returncode == 2
    assert refused.stdout.startswith("isoscale: --ca=")
    assert len(refused.stdout.splitlines()) == 1


def test_an_executor_joins_with_it(job: Running, tmp_path: Path) -> None:
    token = job.out / "control" / "token"
    refused = isoscale("executor", "--join", job.url, "--token-file", token)
    assert refused.returncode == 2
    assert refused.stdout.startswith("isoscale: --ca=")
    shutil.copy(_ca(job), tmp_path / "ca.pem")
    job.join("--ca", "ca.pem", cwd=tmp_path)
    with JobHandle(job.out, ca_file=_ca(job)) as handle:
        handle.wait_for(lambda s: s["executors"][-1]["state"] == "spare", 100)


def test_the_bits_are_those_of_an_undisturbed_run(job: Running, undisturbed: str) -> None:
    assert job.finish()["digest"].startswith(undisturbed)
    job.joined[0].wait(60)  # a spare ends with the job
    assert "Traceback" not in job.printed


@pytest.mark.parametrize("which", ["expired", "elsewhere", "not its key"])
def test_a_certificate_that_the_jobs_executors_could_not_trust_is_refused_at_once(tmp_path: Path, which: str) -> None:
    if which == "expired":
        path, key = expired_certificate(tmp_path)
    elif which == "elsewhere":
        path, key = certificate(tmp_path, "elsewhere", names="IP:10.1.2.3,DNS:example.org")
    else:
        path, key = certificate(tmp_path, "one")[0], certificate(tmp_path, "other")[1]
    refused = isoscale("run", PACED, "--certificate", path, "--key", key, "--out", tmp_path / "out", "--", 3)
    assert refused.returncode == 2, refused.stdout
    assert refused.stdout.startswith("isoscale: --certificate="), refused.stdout
    assert len(refused.stdout.splitlines()) == 1
    assert not (tmp_path / "out").exists()
