"""The first words of an executor that nobody has started: may I join, as whom, and with which code?

Where the run's directory can be seen, the code is what the run has kept. Elsewhere it is this machine's own, which must
be the same: by path from the script's directory, and by the versions of what is installed.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from isoscale.errors import UserError
from isoscale.protocol import messages as m
from isoscale.runtime.code.collect import code_of_script
from isoscale.runtime.code.fetching import fetch_code
from isoscale.runtime.code.first_seen import shown
from isoscale.runtime.code.libraries import installed_versions, is_library, library_directories
from isoscale.runtime.code.manifest import MANIFEST, Damaged, Manifest
from isoscale.runtime.code.store import code_directory, manifest_of
from isoscale.runtime.control.executor_link import open_socket
from isoscale.runtime.storage.client import open_storage
from isoscale.runtime.storage.private import run_directory

__all__ = ["CodeHere", "ask_to_join", "code_here", "code_in_storage"]


@dataclass(frozen=True, slots=True)
class CodeHere:
    """What an executor runs that joins from here."""

    script: Path
    #: None if the job has kept no code
    manifest: Path | None


def ask_to_join(url: str, token: str, kind: str, ca_file: Path | None) -> m.Welcome:
    """Raises UserError if there is no coordinator, or it says no."""
    try:
        with open_socket(f"{url.rstrip('/')}/join?kind={quote(kind)}", token, ca_file) as socket:
            frame = socket.recv(timeout=10)
            message = m.decode_from_coordinator(frame if isinstance(frame, bytes) else frame.encode())
            assert isinstance(message, m.Welcome)
            return message
    except UserError:
        raise
    except ConnectionClosed as error:
        reason = error.rcvd.reason if error.rcvd is not None else "it closed the connection"
        raise UserError(field="--join", value=url, problem=reason, remedy="see isoscale status") from None
    except InvalidStatus:
        raise UserError(
            field="--token-file", value="its token", problem="refused", remedy="give DIR/control/token of that run"
        ) from None
    except (OSError, WebSocketException, ValueError, TimeoutError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            field="--join",
            value=url,
            problem=f"no coordinator answers ({why})",
            remedy="give the address in DIR/control/coordinator.json of a job that runs",
        ) from None


def code_here(address: str, welcome: m.Welcome, given: Path | None, usual: Path) -> CodeHere:
    """What one runs that was welcomed at `address`: `given` is the script's path on this machine, if somebody named it,
    `usual` where it should be.

    Raises UserError if there is none, or if it is not the job's, with the names of what differs.
    """
    spec, path = welcome.spec, given if given is not None else usual
    _check_versions(address, welcome)
    kept = code_directory(spec.out) / MANIFEST
    same_place = given is None or given.resolve() == Path(spec.script)
    if spec.code and same_place and _is_kept(kept, spec.code):
        return CodeHere(Path(spec.script), kept.resolve())
    if not path.is_file():
        raise UserError(field="--script", value=path, problem="no such file here", remedy="give its path with --script")
    if not welcome.code:
        return CodeHere(path, None)
    here = manifest_of(code_of_script(str(path.resolve()), module=spec.module))
    mine, name = here.beside_script(), path.name
    words = [] if here.script_sha256 == spec.script_sha256 else [f"{name} differs"]
    for relative, sha256 in sorted(welcome.code.items()):
        if mine.get(relative, sha256) != sha256 and relative != name:
            words.append(f"{relative} differs")
        elif relative not in mine and relative != Path(spec.script).name:
            words.append(f"{relative} is missing")
    if words:
        raise UserError(
            field="--script",
            value=path,
            problem=f"not the code that the job began with: {shown(words)}",
            remedy="give this machine the job's files, such as they are in DIR/code of the run",
        )
    # For the process that this one becomes, which reads and removes it.
    with tempfile.NamedTemporaryFile("w", prefix="isoscale-code-", suffix=".json", delete=False) as file:
        file.write(here.to_json())
    return CodeHere(path.resolve(), Path(file.name))


def code_in_storage(address: str, welcome: m.Welcome) -> CodeHere | None:
    """The run's own code, brought from its storage; None if it has none. Raises UserError."""
    url, digest = welcome.settings.storage, welcome.spec.code
    if not url or not digest:
        return None
    _check_versions(address, welcome)
    try:
        path = fetch_code(open_storage(url), digest, run_directory(url))
    except (OSError, Damaged) as error:
        problem = f"the job's code cannot be had from {url} ({error})"
        remedy = "check that this machine reaches the storage, and its credentials"
        raise UserError(field="--join", value=address, problem=problem, remedy=remedy) from None
    return CodeHere(Path(welcome.spec.script), path)


def _is_kept(path: Path, digest: str) -> bool:
    """Whether the run's directory is here, and holds the code of this very job."""
    try:
        return Manifest.read(path).digest == digest
    except (OSError, Damaged):
        return False


def _check_versions(address: str, welcome: m.Welcome) -> None:
    found = installed_versions([*library_directories(), *(one for one in sys.path if is_library(one))])
    here = {"python": sys.version.split()[0], **found}
    words = [
        f"{name} {here.get(name, 'is missing')}, the job has {version}"
        for name, version in sorted(welcome.versions.items())
        if here.get(name) != version
    ]
    if words:
        raise UserError(
            field="--join",
            value=address,
            problem=f"other versions than the job's are installed here: {shown(words)}",
            remedy="install the job's versions here",
        )
