"""Every page, in both themes: nothing inline, nothing blocked, nothing silent, nothing that a person cannot use; and
what hostile names, hostile pages and endless logs make of it."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from isoscale.cluster.pages.assets import load_assets
from isoscale.cluster.pages.shell import PAGES
from isoscale.testing.past import past_job, write_past, write_run
from tests.browser.conftest import EVIL, VENDOR, Served, Tab, Visitor

HOSTILE = '<img src=x onerror="globalThis.hacked=1"><script>globalThis.hacked=1</script>'
NUM_LINES = 200_000
PATHS = (
    *("/", "/jobs", "/what-if", "/history", "/compare?a=j1&b=j2", "/analysis", "/settings", "/sign-in"),
    *("/jobs/j1", "/jobs/j1?tab=logs", "/jobs/j1?tab=events", "/jobs/j1?tab=details"),
)


@pytest.fixture(scope="module")
def served(browser: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Sixty jobs of the past, some of them with markup wherever a person or a script can put it."""
    made, now = Served(tmp_path_factory.mktemp("pages") / "state"), time.time()
    states = ("finished", "failed", "cancelled", "queued")
    jobs = [past_job(n, states[n % 4], now) for n in range(3, 60)]
    hostile = {"name": HOSTILE, "tenant": HOSTILE, "owner": HOSTILE, "script": HOSTILE, "digest": "ab" * 32}
    jobs += [past_job(1, "finished", now, **hostile), past_job(2, "failed", now, **hostile, error=HOSTILE)]
    write_past(made.state, jobs, now)
    lines = [f"line {n} of many" for n in range(NUM_LINES)] + [HOSTILE]
    lost = {"t": 1.79e9 + 1, "event": "executor_lost", "executor": 1, "pid": 3, "reason": HOSTILE}
    write_run(made.state, "j1", steps=5_000, lines=lines, more=[lost])
    write_run(made.state, "j2", steps=500, lines=[HOSTILE], more=[lost])
    made.serve(devices="cpu*8")
    yield made
    made.end()


@pytest.fixture
def visitor(served: Served, visit: Callable[..., Visitor]) -> Visitor:
    return visit(served.url, served.token)


def test_the_list_of_pages_is_complete() -> None:
    assert {path.partition("?")[0].replace("/jobs/j1", "/jobs/{id}") for path in PATHS} == {page.path for page in PAGES}


def test_axe_is_the_one_that_was_vendored() -> None:
    wanted, name = (VENDOR / "SHA256SUMS").read_text().split()
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == wanted


@pytest.mark.timeout(300)
def test_every_page_keeps_its_rules_in_both_themes(
    served: Served, visitor: Visitor, visit: Callable[..., Visitor]
) -> None:
    signed_in, stranger, axe = visitor.tab(), visit(served.url).tab(), (VENDOR / "axe.min.js").read_text()
    findings = []
    for path in PATHS:
        tab = stranger if path == "/sign-in" else signed_in
        html = visitor.context.request.get(served.url + path).text()
        tab.go(path)
        assert "<style" not in html, path
        assert 'style="' not in html, path
        assert "javascript:" not in html, path
        scripts = tab.page.eval_on_selector_all("script", "all => all.filter((one) => !one.src).length")
        assert scripts == 0, path
        assert tab.page.eval_on_selector_all("[onclick], [onload], [onerror]", "all => all.length") == 0, path
        # Evaluated by the debugger, as no page could: a policy that allowed it to be added as a script would be none.
        tab.page.evaluate(axe)
        for theme in ("light", "dark"):
            tab.page.emulate_media(color_scheme=theme)
            found = tab.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
            findings += [
                f"{path} {theme} {one['impact']} {one['id']}: {one['nodes'][0]['html'][:200]}"
                for one in found["violations"]
                if one["impact"] in ("serious", "critical")
            ]
        assert tab.page.evaluate("globalThis.hacked") is None, path
        tab.check()
    assert findings == [], "\n".join(findings)


def test_no_page_is_wider_than_a_narrow_screen(served: Served, visit: Callable[..., Visitor]) -> None:
    tab = visit(served.url, served.token, viewport={"width": 390, "height": 844}).tab()
    for path in (one for one in PATHS if one != "/sign-in"):
        tab.go(path)
        if path == "/what-if":
            tab.see("[data-action=simulate]").click()
            tab.see("table[data-table=whatif] tbody tr")
        beyond = tab.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert beyond <= 0, f"{path} is {beyond} pixels wider than the screen"
    tab.check()


#: what of the header, the title and the actions lies under the notice, which is wholly on the screen
HIDDEN_BY_NOTICE = """() => {
  const place = (element) => element.getBoundingClientRect();
  const notice = place(document.getElementById("notice"));
  if (notice.top < 0 || notice.bottom > innerHeight || notice.left < 0 || notice.right > innerWidth) return ["screen"];
  const under = (one) => place(one).bottom > notice.top && place(one).top < notice.bottom;
  return [...document.querySelectorAll(".top, h1, [data-action], main button")].filter(
    (one) => place(one).bottom < innerHeight / 2 && under(one)).map((one) => one.outerHTML.slice(0, 80));
}"""


def test_a_page_without_a_stream_of_events_says_so_until_it_gets_one(visitor: Visitor) -> None:
    tab = visitor.tab()
    refusal = json.dumps({"error": {"text": "200 streams of events are open"}})
    tab.page.route("**/events", lambda route: route.fulfill(status=429, body=refusal))
    tab.go("/")
    tab.see("#notice", "No live updates: 200 streams of events are open. This page tries again every 15 s.")
    tab.see("#connection", "every 15 s")
    tab.go("/jobs/j2")
    for width, height in ((1280, 800), (390, 844)):  # it may stay for hours: what a page is for is not under it
        tab.page.set_viewport_size({"width": width, "height": height})
        assert tab.page.evaluate(HIDDEN_BY_NOTICE) == []
    tab.page.unroute("**/events")
    tab.see("#notice button", "Try now").click()
    tab.see("#notice", "Live again.")
    tab.see("#connection[data-state=live]")
    tab.complaints.clear()  # what Chromium itself says of a request that is refused
    tab.check()


def test_a_job_that_never_trained_has_no_time_axis(visitor: Visitor) -> None:
    tab = visitor.tab()
    tab.go("/jobs/j6")
    tab.see("#main", "not started")
    assert not tab.page.is_visible(".timeline")
    tab.go("/jobs/j1")
    tab.see(".timeline")
    tab.check()


def test_scripts_are_small(visitor: Visitor) -> None:
    files = load_assets().files
    own = {name: len(one.body) for name, one in files.items() if name.endswith(".js") and "uPlot" not in name}
    assert sum(own.values()) < 150_000, own


def test_markup_is_text_wherever_it_comes_from(visitor: Visitor) -> None:
    tab = visitor.tab()
    parts = ("", "?tab=logs", "?tab=events", "?tab=details")
    for path in ("/jobs", "/history", "/compare?a=j1&b=j2", *(f"/jobs/j2{part}" for part in parts)):
        tab.go(path)
        tab.see("body", "<img src=x onerror=")
        assert tab.page.locator('img[src="x"]').count() == 0, path
        assert tab.page.evaluate("globalThis.hacked") is None, path
    tab.check()


@pytest.mark.timeout(300)
def test_a_log_of_two_hundred_thousand_lines_is_read_from_its_end_and_searched(visitor: Visitor) -> None:
    tab = visitor.tab("/jobs/j1?tab=logs")
    tab.see("[data-log] .line", f"line {NUM_LINES - 1} of many")
    # Of all lines only those in view, and some around them, are elements.
    assert 0 < tab.page.locator("[data-log] .line").count() < 300
    search = tab.page.get_by_role("searchbox", name="Search this log")
    search.fill("LINE 77 of")
    search.press("Enter")
    tab.see(".match", "line 77 of many").click()
    tab.see("[data-log] .line", "line 77 of many")
    assert tab.page.locator("[data-log] .line").filter(has_text="line 78 of many").count() == 1
    tab.check()


def test_a_name_that_was_rebound_to_this_machine_gets_nothing(served: Served, visit: Callable[..., Visitor]) -> None:
    tab = visit(served.url).tab()
    answer = tab.page.goto(f"http://{EVIL}:{served.port}/")
    assert answer.status == 421
    assert "does not answer to that Host" in tab.text()


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A page of somebody else's: another origin, and by its name another site."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<!doctype html><title>elsewhere</title><p>hello</p>"
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{EVIL}:{server.server_port}/"
    server.shutdown()
    server.server_close()


ATTACK = """
async ([url, requests]) => {
    const told = [];
    for (const [method, path, body, type] of requests) {
        for (const mode of ["cors", "no-cors"]) {
            try {
                const headers = type ? { "content-type": type } : {};
                const answer = await fetch(url + path, { method, body, headers, mode, credentials: "include" });
                told.push(`${method} ${path} ${mode} ${answer.type} ${answer.status}`);
            } catch (error) { told.push(`${method} ${path} ${mode} ${error.name}`); }
        }
    }
    return told;
}
"""


def test_a_page_elsewhere_changes_nothing(served: Served, visitor: Visitor, elsewhere: str) -> None:
    """With the cookie of somebody who is signed in: by fetch in every mode, and by a form."""
    before = _state(visitor)
    tab = visitor.tab()
    tab.page.goto(elsewhere)
    priority = json.dumps({"priority": 7})
    requests = [
        ("POST", "/api/jobs/j3/cancel", None, None),
        ("POST", "/api/jobs/j3/priority", priority, "application/json"),
        ("POST", "/api/jobs/j3/priority", priority, "text/plain"),
        ("PUT", "/api/settings/policy", json.dumps({"policy": "fifo"}), "application/json"),
        ("DELETE", "/api/tokens/1", None, None),
        ("POST", "/logout", None, None),
    ]
    told = tab.page.evaluate(ATTACK, [served.url, requests])
    assert not any(" 200" in one or " 201" in one for one in told), told
    tab.page.evaluate(
        """(url) => { const form = document.createElement("form");
            Object.assign(form, { method: "post", action: url + "/api/jobs/j3/cancel" });
            document.body.append(form); form.submit(); }""",
        served.url,
    )
    tab.see("body", "error")
    assert _state(visitor) == before


def _state(visitor: Visitor) -> Any:
    ask = visitor.context.request.get
    job, settings = ask(f"{visitor.url}/api/jobs/j3").json(), ask(f"{visitor.url}/api/settings").json()
    tokens = ask(f"{visitor.url}/api/tokens").json()
    return job["priority"], job["state"], settings["policy"], [one["revoked_s"] for one in tokens]


def test_without_a_session_pages_lead_to_the_sign_in_and_a_token_leads_back(
    served: Served, visit: Callable[..., Visitor]
) -> None:
    tab: Tab = visit(served.url).tab()
    tab.page.goto(f"{served.url}/jobs?state=failed")
    tab.page.wait_for_url("**/sign-in*")
    tab.ready()
    tab.page.locator("input[type=password]").fill("isc_wrong")
    tab.page.keyboard.press("Enter")
    tab.see("body", "not a valid token")
    tab.complaints.clear()  # Chromium tells of every 4xx
    tab.page.locator("input[type=password]").fill(served.token)
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/jobs?state=failed")
    tab.see("table[data-table=jobs] tr[data-id]")
    tab.check()
