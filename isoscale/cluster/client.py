"""A cluster service in the hands of a program: typed values in and out, over HTTP, with the standard library only.

    with Client("cluster") as client:                     # the service's STATE, or its URL
        job = client.submit("train.py", workers=4)
        print(client.wait(job.id).digest)

A call that finds nobody is tried again for `patience_s`, with the address as it is then: a service that is restarted is
not an error. Submissions carry a key, so one that is sent twice is one job.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import secrets
import shlex
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from isoscale import env
from isoscale.cluster.bundle import Bundle, pack
from isoscale.cluster.logs import LogFile, LogPage
from isoscale.cluster.values import ENDED, Event, JobShown, NodeShown, Submission, TokenShown, Why
from isoscale.errors import IsoscaleError, UserError
from isoscale.protocol.files import read_small
from isoscale.runtime.code.collect import code_of_script

__all__ = ["DEFAULT_STATE", "Client", "Reclaimed", "ServiceError"]

T = TypeVar("T")

DEFAULT_STATE = "cluster"
_MAX_ANSWER = 256 * 2**20
_TRY_AGAIN_S = 0.2
_POLL_S = 0.5


class ServiceError(IsoscaleError):
    """Raised when the service says no; `status` is HTTP's, the message is its reason."""

    exit_code = 2

    def __init__(self, text: str, *, status: int) -> None:
        self.status = status
        super().__init__(text)


class Reclaimed(msgspec.Struct, frozen=True):
    devices: tuple[str, ...]
    seconds: float
    abandoned_s: float
    late: bool


class Client:
    def __init__(
        self,
        cluster: str | Path | None = None,
        *,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        timeout_s: float = 60.0,
        patience_s: float = 10.0,
    ) -> None:
        """`cluster`: STATE or URL; None: ISOSCALE_CLUSTER, else the directory `cluster`. Raises UserError."""
        self._where = str(cluster or env.cluster() or DEFAULT_STATE)
        self._token_file = Path(token_file) if token_file is not None else env.token_file()
        self._ca_file = ca_file
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._connection: http.client.HTTPConnection | None = None
        self._address()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # ---- jobs ----

    def submit(self, script: str | Path, *, workers: int, **options: Any) -> JobShown:
        """A script with the code that it has now; `options` are those of `Submission`."""
        bundle = pack(code_of_script(str(Path(script).resolve()), module="", out=""))
        return self.submit_bundle(bundle, Submission(code=bundle.id, workers=workers, **options))

    def submit_bundle(self, bundle: Bundle, submission: Submission) -> JobShown:
        """Code that was packed before: sent if the service does not have it yet."""
        if not submission.key:
            submission = replace(submission, key=secrets.token_hex(12))
        submission.check()
        self.upload(bundle)
        return self._call("POST", "/api/jobs", JobShown, body=msgspec.json.encode(submission))

    def upload(self, bundle: Bundle) -> None:
        path = f"/api/code/{bundle.id}"
        try:
            self._call("GET", path, object)
        except ServiceError as error:
            if error.status != 404:
                raise
            self._call("PUT", path, object, body=bundle.data(), media="application/octet-stream")

    def jobs(self, *, limit: int = 200, before: int | None = None, states: Sequence[str] = ()) -> list[JobShown]:
        """Those that are not over, and the newest ones; in order of submission."""
        query = {"limit": limit, "state": ",".join(states), **({} if before is None else {"before": before})}
        return self._call("GET", f"/api/jobs?{urlencode(query)}", list[JobShown])

    def job(self, job: str) -> JobShown:
        return self._call("GET", self._path(job), JobShown)

    def why(self, job: str) -> Why:
        return self._call("GET", self._path(job, "why"), Why)

    def pause(self, job: str) -> JobShown:
        return self._call("POST", self._path(job, "pause"), JobShown)

    def resume(self, job: str) -> JobShown:
        return self._call("POST", self._path(job, "resume"), JobShown)

    def cancel(self, job: str) -> JobShown:
        return self._call("POST", self._path(job, "cancel"), JobShown)

    def priority(self, job: str, priority: int) -> JobShown:
        return self._call("POST", self._path(job, "priority"), JobShown, body=_json(priority=priority))

    def scale(self, job: str, devices: int) -> JobShown:
        """The most devices that it may have from now on; 0: as submitted."""
        return self._call("POST", self._path(job, "scale"), JobShown, body=_json(devices=devices))

    def wait(self, job: str, timeout_s: float | None = None) -> JobShown:
        """Until it is over, however often the service is restarted meanwhile. Raises TimeoutError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(ServiceUnreachableError, NobodyServesError):
                shown = self.job(job)
                if shown.state in ENDED:
                    return shown
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"{job} is not over after {timeout_s} s")
            time.sleep(_POLL_S)

    def job_events(self, job: str, after: int = 0) -> list[Event]:
        return self._call("GET", f"{self._path(job, 'events')}?after={after}", list[Event])

    def logs(self, job: str) -> list[LogFile]:
        return self._call("GET", self._path(job, "logs"), list[LogFile])

    def log(self, job: str, source: str = "0", offset: int = -65_536) -> LogPage:
        query = urlencode({"source": source, "offset": offset})
        return self._call("GET", f"{self._path(job, 'log')}?{query}", LogPage)

    # ---- devices ----

    def devices(self) -> list[NodeShown]:
        return self._call("GET", "/api/devices", list[NodeShown])

    def lend(self, node: str, count: int = 0, *, devices: Sequence[str] = ()) -> NodeShown:
        """So many of the devices that are away, or these."""
        body = _json(count=count, devices=tuple(devices))
        return self._call("POST", f"/api/nodes/{quote(node, safe='')}/lend", NodeShown, body=body)

    def reclaim(self, node: str, count: int, within_s: float | None = None, *, force: bool = False) -> Reclaimed:
        """Returns when the devices are free, however often the service is restarted meanwhile."""
        body = _json(count=count, within_s=within_s, force=force, key=secrets.token_hex(12))
        path = f"/api/nodes/{quote(node, safe='')}/reclaim"
        wait = 3600.0 if within_s is None else within_s + 90.0
        return self._call("POST", path, Reclaimed, body=body, timeout_s=wait)

    # ---- the service ----

    def info(self) -> dict[str, Any]:
        return self._call("GET", "/api", dict[str, Any])

    def metrics(self) -> str:
        return self._exchange("GET", "/metrics", b"", "", None)[1].decode()

    def tokens(self) -> list[TokenShown]:
        return self._call("GET", "/api/tokens", list[TokenShown])

    def make_token(self, name: str, role: str, tenant: str = "", expires_s: float | None = None) -> tuple[int, str]:
        """Its id and its secret, which nobody tells again."""
        body = _json(name=name, role=role, tenant=tenant, expires_s=expires_s)
        made = self._call("POST", "/api/tokens", dict[str, Any], body=body, again=False)
        return made["id"], made["token"]

    def link(self) -> str:
        """An address that signs a browser in once, as the owner of this token."""
        # Asked twice there are two links: no harm.
        code = self._call("POST", "/api/links", dict[str, Any])["code"]
        return f"{self._address()[0]}/sign-in#{code}"

    def revoke_token(self, token: int) -> None:
        self._call("DELETE", f"/api/tokens/{token}", object)

    def events(self, after: int = -1) -> Iterator[Event]:
        """As they happen, for ever; after an interruption from where it was."""
        while True:
            connection = None
            try:
                connection = self._connect()
                headers = {**self._headers(), **({"Last-Event-ID": str(after)} if after >= 0 else {})}
                connection.request("GET", "/events", headers=headers)
                answer = connection.getresponse()
                if answer.status != 200:
                    raise _error(answer.status, answer.read(65_536))
                for line in answer:
                    if line.startswith(b"id: "):
                        after = int(line[4:])
                    elif line.startswith(b"data: "):
                        yield msgspec.json.decode(line[6:], type=Event)
            except (OSError, http.client.HTTPException, NobodyServesError):
                time.sleep(_TRY_AGAIN_S)
            finally:
                if connection is not None:
                    connection.close()

    # ---- HTTP ----

    def _path(self, job: str, *rest: str) -> str:
        if not (job.isascii() and job.isalnum()):  # a slash would make it another path
            raise ServiceError(f"ID={job[:40]}: no such job; see isoscale jobs", status=404)
        return "/".join(["/api/jobs", job, *rest])

    def _call(
        self,
        method: str,
        path: str,
        wanted: type[T],
        *,
        body: bytes = b"",
        media: str = "application/json",
        timeout_s: float | None = None,
        again: bool = True,
    ) -> T:
        deadline = math.inf
        while True:
            try:
                status, data = self._exchange(method, path, body, media, timeout_s)
                break
            except (OSError, http.client.HTTPException, NobodyServesError) as error:
                self.close()
                # From the first time that nobody answers: a call may have waited long for its answer before.
                deadline = min(deadline, time.monotonic() + self._patience_s)
                if not again or time.monotonic() > deadline:
                    if isinstance(error, NobodyServesError):
                        raise
                    raise _unreachable(self._where, error) from None
                time.sleep(_TRY_AGAIN_S)
        if status == 401:
            token_file = self._token_file or Path(self._where) / "token"
            raise ServiceError(f"--token-file={token_file}: {_error(status, data)}", status=status)
        if status >= 400:
            raise _error(status, data)
        return msgspec.json.decode(data, type=wanted)

    def _exchange(self, method: str, path: str, body: bytes, media: str, timeout_s: float | None) -> tuple[int, bytes]:
        if self._connection is None or timeout_s is not None:
            self.close()
            self._connection = self._connect(timeout_s)
        headers = {**self._headers(), **({"Content-Type": media} if body else {})}
        self._connection.request(method, path, body=body or None, headers=headers)
        answer = self._connection.getresponse()
        data = answer.read(_MAX_ANSWER)
        if timeout_s is not None:
            self.close()
        return answer.status, data

    def _headers(self) -> dict[str, str]:
        _, token = self._address()
        return {"Authorization": f"Bearer {token}", "Accept": "application/json"}

    def _connect(self, timeout_s: float | None = None) -> http.client.HTTPConnection:
        url, _ = self._address()
        parts = urlsplit(url)
        wait = timeout_s or self._timeout_s
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=self._ca_file)
            return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=wait, context=context)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=wait)

    def _address(self) -> tuple[str, str]:
        """As it is now: a service that was restarted may have another port. Raises UserError."""
        if "://" in self._where:
            _check_url(self._where)
            if self._token_file is None:
                raise UserError(
                    field="--token-file",
                    problem="a service that is named by its URL needs a token",
                    remedy=f"give --token-file, or set {env.TOKEN_FILE}",
                )
            return self._where.rstrip("/"), _token(self._token_file)
        state = Path(self._where)
        try:
            url = read_small(state / "address", 1_000).decode().strip()
        except (OSError, UnicodeDecodeError):
            if state.exists() and not state.is_dir():
                remedy = "give the STATE of isoscale serve, or its URL"
                raise UserError(field="--cluster", value=state, problem="is a file", remedy=remedy) from None
            problem = "no service runs there" if state.is_dir() else "no such directory"
            remedy = f"start one: isoscale serve --state {shlex.quote(str(state))}"
            raise NobodyServesError(field="--cluster", value=state, problem=problem, remedy=remedy) from None
        return url, _token(self._token_file or state / "token")


class NobodyServesError(UserError):
    """Raised when no service has written its address down: none was started, or one is just being restarted."""


class ServiceUnreachableError(IsoscaleError):
    """Raised when nobody answers at the service's address."""


def _check_url(url: str) -> None:
    """Raises UserError for what no service can have as its address."""
    remedy = "give http://HOST:PORT or https://HOST:PORT, as isoscale serve prints it, or its STATE"
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return
        problem = "is no address of a service"
    except ValueError as error:
        problem = f"is no address of a service ({error})"
    raise UserError(field="--cluster", value=url, problem=problem, remedy=remedy)


def _token(path: Path) -> str:
    try:
        return read_small(path, 4_096).decode("ascii", "replace").strip()
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise UserError(
            field="--token-file", value=path, problem=problem, remedy="give a file that you may read"
        ) from None


def _json(**fields: object) -> bytes:
    return msgspec.json.encode(fields)


def _error(status: int, data: bytes) -> ServiceError:
    try:
        found = msgspec.json.decode(data)["error"]
        text = str(found["text"])
        remedy = found.get("remedy")
        if remedy and str(remedy) not in text:
            text = f"{text}; {remedy}"
    except (msgspec.DecodeError, KeyError, TypeError):
        text = f"the service answers {status}"
    return ServiceError(text, status=status)


def _unreachable(where: str, error: Exception) -> ServiceUnreachableError:
    why = getattr(error, "strerror", None) or error
    return ServiceUnreachableError(f"--cluster={where}: the service does not answer ({why}); is it running?")
