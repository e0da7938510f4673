"""Every route and every method, by the table: who gets in, from where, with how much."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import struct
import time

import pytest

from isoscale.cluster import bundle
from isoscale.cluster.api import guards
from isoscale.cluster.api.route import Route
from isoscale.cluster.api.routes import make_routes
from isoscale.cluster.auth import ROLES, new_token
from isoscale.runtime.code.manifest import Kept, Manifest
from tests.unit.cluster.conftest import World

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "PROPFIND")
#: what a request must not be answered with if it is let in
REFUSED = (401, 403, 405, 421)


def paths_of(routes: tuple[Route, ...]) -> dict[str, dict[str, Route]]:
    found: dict[str, dict[str, Route]] = {}
    for route in routes:
        found.setdefault(route.path, {})[route.method] = route
    return found


def concrete(path: str, world: World) -> str:
    found = (
        path.replace("{id}", "j1")
        .replace("{node}", "local")
        .replace("{code}", world.bundle.id)
        .replace("{token}", "999")
        .replace("{task}", "w1")
    )
    return re.sub(r"{\w+}", "x", found)


def ask(world: World, method: str, path: str, who: str, **options: object):
    if path == "/events":
        options["limit"] = 1  # it would go on for ever
    return world.ask(method, concrete(path, world), who, **options)


@pytest.fixture
def routes(world: World) -> dict[str, dict[str, Route]]:
    assert world.submit().status == 201
    return paths_of(make_routes(world.service))


def test_without_a_valid_token_nobody_gets_anywhere(world: World, routes: dict[str, dict[str, Route]]) -> None:
    _, expired = new_token(
        world.service.store, name="e", role="admin", tenant="", expires_s=time.time() + 0.01, now=0.0
    )
    made, revoked = new_token(world.service.store, name="r", role="admin", tenant="", expires_s=None, now=0.0)
    assert world.ask("DELETE", f"/api/tokens/{made}").status == 200
    time.sleep(0.02)
    world.tokens |= {
        "nobody": "",
        "wrong": "isc_" + "x" * 43,
        "huge": "x" * 30_000,
        "expired": expired,
        "revoked": revoked,
    }
    for path, methods in routes.items():
        for method in METHODS:
            if method in methods and methods[method].role is None:
                continue
            for who in ("nobody", "wrong", "huge", "expired", "revoked"):
                assert ask(world, method, path, who).status == 401, (method, path, who)


def test_roles_are_what_the_table_says(world: World, routes: dict[str, dict[str, Route]]) -> None:
    for path, methods in routes.items():
        for method in METHODS:
            for role in ROLES:
                if path == "/logout":
                    continue
                status = ask(world, method, path, role).status
                if method not in methods:
                    assert status == 405, (method, path, role, status)
                    continue
                needed = methods[method].role
                if needed is not None and ROLES.index(role) < ROLES.index(needed):
                    assert status == 403, (method, path, role, status)
                else:
                    assert status not in REFUSED, (method, path, role, status)


def test_another_name_for_this_address_is_refused_everywhere(world: World, routes: dict[str, dict[str, Route]]) -> None:
    for path in [*routes, "/", "/nothing", "/static/../token"]:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "", None):
            assert ask(world, "GET", path, "admin", host=host).status == 421, (path, host)
    for host in ("localhost", "localhost:1", "127.0.0.1:9", "[::1]:3"):
        assert world.ask("GET", "/api", host=host).status == 200, host


def test_a_cookie_changes_nothing_from_another_page(world: World, routes: dict[str, dict[str, Route]]) -> None:
    answer = world.ask("POST", "/login", "", body={"token": world.tokens["admin"]})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert world.tokens["admin"] not in cookie
    session = {"cookie": cookie.partition(";")[0]}
    foreign = (
        {},
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1"},
        {"origin": "null"},
    )
    for path, methods in routes.items():
        for method in METHODS:
            for more in foreign:
                status = ask(world, method, path, "", headers={**session, **more}).status
                safe = method in guards.SAFE
                public = method in methods and methods[method].role is None
                if not safe and not public:
                    assert status == 403, (method, path, more, status)
    for more in ({"sec-fetch-site": "same-origin"}, {"origin": "http://127.0.0.1"}):
        assert world.ask("POST", "/api/jobs/j1/pause", "", headers={**session, **more}).status == 200
    assert world.ask("GET", "/api/jobs", "", headers=session).status == 200
    # A page elsewhere cannot even log somebody in.
    body = {"token": world.tokens["admin"]}
    assert world.ask("POST", "/login", "", body=body, headers={"origin": "http://evil.example"}).status == 403
    # A wrong bearer token is not made good by a cookie.
    assert world.ask("GET", "/api", "", headers={**session, "authorization": "Bearer no"}).status == 401


def test_every_answer_has_the_headers(world: World, routes: dict[str, dict[str, Route]]) -> None:
    for path in [*routes, "/nothing"]:
        for who in ("admin", ""):
            found = ask(world, "GET", path, who).headers
            assert found["content-security-policy"].startswith("default-src 'none'"), path
            assert found["x-content-type-options"] == "nosniff", path
            assert found["x-frame-options"] == "DENY", path
            assert "server" not in found


def test_bodies_are_bounded_and_must_be_what_they_are_said_to_be(
    world: World, routes: dict[str, dict[str, Route]]
) -> None:
    for path, methods in routes.items():
        for method, route in methods.items():
            large = {"content-length": str(route.max_body + 1), "content-type": "application/json"}
            assert ask(world, method, path, "admin", headers=large).status == 413, (method, path)
            # One that lies about its length is stopped by what comes.
            if route.max_body < 10**6:
                lying = {"content-length": "0", "content-type": "application/json"}
                body = b"x" * (route.max_body + 1)
                assert ask(world, method, path, "admin", headers=lying, body=body).status == 413, (method, path)
            if route.body is not None:
                form = {"content-type": "text/plain"}
                assert ask(world, method, path, "admin", headers=form, body={}).status == 415, (method, path)
                for nonsense in (b"{", b"[1]", b'"x"', b"\xff", b"[" * 10_000, b'{"nobody_knows": 1}'):
                    assert ask(world, method, path, "admin", body=nonsense).status == 400, (method, path, nonsense[:9])


def test_tenants_do_not_see_each_other(world: World) -> None:
    assert world.submit("user", name="secret-name").status == 201
    assert [job["id"] for job in world.ask("GET", "/api/jobs", "viewer").json()] == ["j1"]
    assert world.ask("GET", "/api/jobs", "stranger").json() == []
    for verb in ("", "/why", "/events", "/logs", "/log"):
        assert world.ask("GET", f"/api/jobs/j1{verb}", "stranger").status == 404
    for verb, body in (
        ("pause", None),
        ("resume", None),
        ("cancel", None),
        ("priority", {"priority": 9}),
        ("scale", {"devices": 1}),
    ):
        assert world.ask("POST", f"/api/jobs/j1/{verb}", "stranger", body=body).status == 404, verb
    assert world.submit("stranger", after=["j1"]).status == 404
    assert world.submit("stranger", tenant="team-a").status == 403
    assert b"secret-name" not in world.ask("GET", "/metrics", "stranger").body
    assert b"secret-name" not in world.ask("GET", "/events?after=0", "stranger", limit=1).body
    assert world.submit("operator", tenant="team-b").json()["tenant"] == "team-b"


@pytest.mark.parametrize("name", ["../x", "a/b", "a\x00b", "x" * 200, "-rf", "<script>", "ü", " ", "a\nb"])
def test_names_that_are_more_than_names_are_refused(world: World, name: str) -> None:
    for field in ("name", "tenant", "key"):
        assert world.submit("admin", **{field: name}).status == 400, field
    assert world.submit("admin", after=[name]).status in (400, 404)


@pytest.mark.parametrize("job", ["..", "%2e%2e", "j1/../../token", "..%2f..%2ftoken", "j" + "1" * 500, "j1%00"])
def test_no_path_leads_out_of_a_jobs_directory(world: World, job: str) -> None:
    assert world.submit().status == 201
    for verb in ("", "/log", "/logs"):
        assert world.ask("GET", f"/api/jobs/{job}{verb}").status == 404
    for source in ("../control/token", "/etc/passwd", "0/../../control/token", "coordinator.log"):
        answer = world.ask("GET", f"/api/jobs/j1/log?source={source}")
        assert answer.status == 200
        assert answer.json()["text"] == ""


def test_bundles_that_are_not_what_they_say_are_refused(world: World) -> None:
    good = world.bundle
    data = good.data()
    assert world.ask("PUT", f"/api/code/{good.id}", body=data).status == 200
    other = "0" * 64
    bad = [
        (good.id, b""),
        (good.id, data[:-2000]),
        (good.id, struct.pack("!Q", 2**63) + data[8:]),
        (other, data),
        ("..", data),
        (good.id, data.replace(b"print(1)", b"print(2)")),
    ]
    for code, body in bad:
        assert world.ask("PUT", f"/api/code/{code}", body=body).status in (400, 404), code
    for before, after in ((b'"archive": "', b'"archive": "../../'), (b'"files": {\n  "/', b'"files": {\n  "../')):
        text = good.manifest.replace(before, after)
        assert text != good.manifest
        code = hashlib.sha256(text).hexdigest()
        body = struct.pack("!Q", len(text)) + text + good.archive
        assert world.ask("PUT", f"/api/code/{code}", body=body).status == 400
    state = world.service.state
    assert {one.name for one in (state / "code").iterdir()} == {good.id}


@pytest.mark.parametrize(("step", "problem"), [(0, "when unpacked"), (1, "overlap")])
def test_many_names_for_one_piece_of_an_archive_are_refused(world: World, step: int, problem: str) -> None:
    """Little to send; gigabytes to hash, or to unpack."""
    manifest = Manifest.from_json(world.bundle.manifest)
    size = 1_000_000 if step == 0 else 1_000
    kept = {f"/code/{number}.py": Kept(sha256="0" * 64, offset=number * step, size=size) for number in range(9_000)}
    found = bundle._wrong_files(dataclasses.replace(manifest, files=kept), memoryview(bytes(size + 9_000)))
    assert problem in next(found)


def test_secrets_are_nowhere(world: World) -> None:
    secret = (world.service.state / "token").read_text().strip()
    assert (world.service.state / "token").stat().st_mode & 0o777 == 0o600
    assert len(secret) >= 43
    assert world.ask("GET", "/api", "", headers={"authorization": f"Bearer {secret}"}).json()["role"] == "admin"
    for path in ("/api/tokens", "/api", "/metrics"):
        assert secret.encode() not in world.ask("GET", path).body
    world.service.store.close()
    assert secret.encode() not in (world.service.state / "cluster.sqlite").read_bytes()


def test_a_session_ends_with_the_token_it_was_begun_with(world: World) -> None:
    store, now = world.service.store, world.service.now()

    def login(secret: str) -> str:
        answer = world.ask("POST", "/login", "", body={"token": secret})
        assert answer.status == 200
        return answer.headers["set-cookie"].partition(";")[0].partition("=")[2]

    def is_in(cookie: str) -> bool:
        return world.ask("GET", "/api", "", headers={"cookie": f"{guards.COOKIE}={cookie}"}).status == 200

    brief, secret = new_token(store, name="b", role="viewer", tenant="", expires_s=now + 60, now=now)
    first = login(secret)
    second = login(first)  # a session is no way to a longer one
    ends = {one.name: one.expires_s for one in store.tokens()}
    assert ends["b-session"] == now + 60
    assert "b-session-session" not in ends
    assert is_in(first)
    assert is_in(second)
    assert world.ask("DELETE", f"/api/tokens/{brief}").status == 200
    assert not is_in(first)
    assert not is_in(second)
    # Whoever logs out ends the session, not the token, whatever that is called.
    _, lasting = new_token(store, name="my-session", role="viewer", tenant="", expires_s=None, now=now)
    cookie = login(lasting)
    here = {"cookie": f"{guards.COOKIE}={cookie}", "sec-fetch-site": "same-origin"}
    assert world.ask("POST", "/logout", "", headers=here).status == 200
    assert not is_in(cookie)
    assert world.ask("POST", "/logout", "", headers={"authorization": f"Bearer {lasting}"}).status == 200
    assert is_in(login(lasting))


@pytest.mark.parametrize("number", ["-1", "9223372036854775808", "1" + "0" * 30])
def test_numbers_that_no_database_has_are_refused(world: World, number: str) -> None:
    world.submit()
    for path in (f"/api/jobs?before={number}", f"/api/jobs/j1/events?after={number}"):
        assert world.ask("GET", path).status == 400, path


def test_the_figures_of_a_tenant_are_its_own(world: World) -> None:
    world.submit()
    world.submit("stranger")
    assert 'isoscale_cluster_jobs{state="queued"} 2' in world.ask("GET", "/metrics").body.decode()
    assert 'isoscale_cluster_jobs{state="queued"} 1' in world.ask("GET", "/metrics", "viewer").body.decode()
