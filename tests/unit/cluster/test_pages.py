"""The dashboard as files and routes: what is served, to whom, and that nothing of it is inline or foreign."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from isoscale.cluster import pages
from isoscale.cluster.api.app import make_app
from isoscale.cluster.api.guards import COOKIE, allowed_hosts
from isoscale.cluster.auth import Caller
from isoscale.cluster.dashboard import Door, run_routes
from isoscale.cluster.links import LINK_S, Links
from isoscale.cluster.one_run import RunDesk
from isoscale.cluster.pages.assets import load_assets
from isoscale.cluster.pages.shell import PAGES, shell
from isoscale.cluster.records.commands import commands_of
from isoscale.errors import UserError
from tests.unit.cluster.asgi import Answer, call
from tests.unit.cluster.conftest import World

VENDOR = Path(pages.__path__[0]) / "static" / "vendor"
SOMEBODY = Caller(token=1, name="a", role="viewer", tenant="")


def test_scripts_are_small_and_what_is_vendored_is_what_was_published() -> None:
    assets = load_assets()
    assert sum(len(assets.files[name].body) for name in (*assets.scripts, "theme.js")) < 150_000
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    for line in lines:
        digest, name = line.split()
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    assert {line.split()[1] for line in lines} == {
        one.name for one in VENDOR.iterdir() if one.suffix in (".js", ".css")
    }
    assert "MIT License" in (VENDOR / "uPlot.LICENSE").read_text()


def test_every_module_imports_what_is_there_and_makes_no_markup() -> None:
    files = load_assets().files
    for name in load_assets().scripts:
        text = files[name].body.decode()
        for imported in re.findall(r'from "\./([^"]+)"', text):
            assert imported in files, (name, imported)
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "http://",
            "https://",
        ):
            assert word not in text or (word == "http://" and "www.w3.org" in text), (name, word)
    for page in PAGES:
        assert f"page-{page.name}.js" in files


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_a_shell_without_inline_code(page: Any) -> None:
    text = shell(page).decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:|//[a-z]", text)


def test_pages_and_assets_need_no_token_and_tell_nothing(world: World) -> None:
    world.submit("user", name="secret-name")
    for page in PAGES:
        answer = world.ask("GET", page.path.replace("{id}", "j1"), "")
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/html")
        assert b"secret-name" not in answer.body
    version = load_assets().version
    answer = world.ask("GET", f"/assets/{version}/app.js", "")
    assert "immutable" in answer.headers["cache-control"]
    assert answer.body == load_assets().files["app.js"].body
    assert "immutable" not in world.ask("GET", "/assets/old/app.js", "").headers["cache-control"]
    assert (
        world.ask("GET", f"/assets/{version}/app.js", "", headers={"accept-encoding": "gzip"}).body[:2] == b"\x1f\x8b"
    )
    for name in ("..%2fshell.py", "SHA256SUMS", "nothing.js", "%2e%2e%2f%2e%2e%2fauth.py"):
        assert world.ask("GET", f"/assets/{version}/{name}", "").status == 404, name


def test_a_link_signs_in_once_and_as_its_maker(world: World) -> None:
    assert world.ask("GET", "/session", "").json() == {"signed_in": False, "info": None}
    code = world.ask("POST", "/api/links", "viewer").json()["code"]
    answer = world.ask("POST", "/login", "", body={"code": code})
    assert answer.status == 200
    session = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
    info = world.ask("GET", "/session", "", headers=session).json()["info"]
    assert (info["role"], info["tenant"]) == ("viewer", "team-a")
    assert world.ask("POST", "/login", "", body={"code": code}).status == 400
    # A token that was revoked since then opens nothing by the links that it made.
    code = world.ask("POST", "/api/links", "user").json()["code"]
    token = next(one["id"] for one in world.ask("GET", "/api/tokens").json() if one["name"] == "user")
    assert world.ask("DELETE", f"/api/tokens/{token}").status == 200
    assert world.ask("POST", "/login", "", body={"code": code}).status == 400
    assert world.service.first_link()


def test_links_expire_and_are_bounded() -> None:
    links = Links()
    first = links.make(SOMEBODY, 0.0)
    assert links.take(first, LINK_S + 1) is None
    codes = [links.make(SOMEBODY, 0.0) for _ in range(300)]
    assert links.take(codes[0], 1.0) is None
    assert links.take(codes[-1], 1.0) == SOMEBODY
    assert links.take("", 1.0) is None


def test_commands_are_those_that_a_shell_takes(tmp_path: Path) -> None:
    spec = {
        "workers": 4, "seed": 7, "threads": 1, "order": "ddp", "determinism": "elastic", "until": 0, "module": "",
        "script": "/a dir/$(rm).py", "script_args": ["--lr", "0.1; rm -rf /"],
        "batch_plan": [{"step": 0, "size": 32}, {"step": 400, "size": 64}],
    }  # fmt: skip
    assert commands_of(tmp_path, 3).verify == ""
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "job.json").write_text(json.dumps({"spec": spec}))
    found = commands_of(tmp_path, 3)
    words = shlex.split(found.verify)
    assert words[:3] == ["isoscale", "verify", "/a dir/$(rm).py"]
    assert words[3:] == ["--workers", "4", "--seed", "7", "--batch-plan", "0:32,400:64", "--", "--lr", "0.1; rm -rf /"]
    assert shlex.split(found.replay) == ["isoscale", "replay", str(tmp_path), "--step", "3"]
    assert f"--like {tmp_path}" in found.again
    (tmp_path / "control" / "job.json").write_text('{"spec": []}')
    assert commands_of(tmp_path, 3).verify == ""


class Alone:
    """The app of `isoscale dashboard DIR`, and a reader who signed in by its link."""

    def __init__(self, directory: Path) -> None:
        self.desk, self.door = RunDesk(directory), Door("run-token")
        self.routes = run_routes(self.desk, self.door, "1")
        self.app = make_app(self.routes, self.door.authenticate, allowed_hosts("127.0.0.1"))
        self.cookie = ""

    def ask(self, method: str, path: str, **options: Any) -> Answer:
        headers = {**({"cookie": f"{COOKIE}={self.cookie}"} if self.cookie else {}), **options.pop("headers", {})}
        return call(self.app, method, path, headers=headers, **options)

    def login(self, **body: str) -> int:
        answer = self.ask("POST", "/login", body=body)
        self.cookie = answer.headers.get("set-cookie", "=").partition(";")[0].partition("=")[2]
        return answer.status


@pytest.fixture
def alone(tmp_path: Path) -> Alone:
    events = [
        {"t": 1.0, "event": "coordinator_started", "pid": 1, "term": 1},
        *(
            {"t": 2.0 + step, "event": "step", "step": step, "loss": 1 / 2**step, "executors": 2}
            for step in range(1, 6)
        ),
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "executor-0.log").write_text("<b>hello</b>\x1b[31m\n")
    return Alone(tmp_path)


def test_a_run_alone_lets_in_by_link_or_token_and_nobody_else(alone: Alone) -> None:
    for route in alone.routes:
        path = route.path.replace("{id}", "run")
        answer = alone.ask(route.method, path, limit=1 if path == "/events" else 10**6)
        assert answer.status == 401 or route.role is None, path
        assert call(alone.app, route.method, path, host="evil.example").status == 421, path
    assert alone.login(token="wrong") == 400
    assert alone.login(token="") == 400
    code = alone.door.link()
    assert alone.login(code=code) == 200
    assert alone.ask("GET", "/session").json()["info"]["role"] == "viewer"
    cookie = alone.cookie
    assert alone.login(code=code) == 400
    alone.cookie = cookie
    assert alone.ask("POST", "/logout", headers={"sec-fetch-site": "cross-site"}).status == 403
    assert alone.ask("POST", "/logout", headers={"sec-fetch-site": "same-origin"}).status == 200
    assert alone.ask("GET", "/api").status == 401
    assert alone.login(token="run-token") == 200


def test_a_run_alone_is_a_job_that_can_be_read(alone: Alone) -> None:
    alone.login(token="run-token")
    job = alone.ask("GET", "/api/jobs/run").json()
    assert (job["id"], job["state"], job["actions"]) == ("run", "paused", [])
    assert "isoscale resume" in job["why"]["text"]
    series = alone.ask("GET", "/api/jobs/run/series?names=loss").json()["series"]
    assert series[0]["value"] == [0.5, 0.25, 0.125, 0.0625, 0.03125]
    assert alone.ask("GET", "/api/jobs/run/timeline").json()["step"] == 5
    assert alone.ask("GET", "/api/jobs/run/log?source=0").json()["text"].startswith("<b>hello")
    assert b"event: run" in alone.ask("GET", "/events", limit=30).body
    for path in ("/api/jobs/j1", "/api/jobs/j1/log", "/api/jobs/..%2f/log"):
        assert alone.ask("GET", path).status == 404, path


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no run"):
        RunDesk(tmp_path)
    with pytest.raises(UserError, match="no such directory"):
        RunDesk(tmp_path / "nowhere")
