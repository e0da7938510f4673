"""How soon every page of the dashboard is there, and shows what has changed, with 10,000 jobs and 64 devices.

A real Chromium opens every page of a real service again and again. *Paint* is the browser's own first contentful paint,
*data* the moment at which the page has drawn its first data, both from the beginning of the navigation; a new profile
each time has nothing in its cache. An update is timed from the call that changes a job to the page that shows it.

    python -m benchmarks.cluster.pages
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cluster.served import Served, serve
from benchmarks.lib.measure import rounded
from benchmarks.lib.options import Options, options
from benchmarks.lib.result import Rows
from isoscale.cluster.pages.shell import PAGES
from isoscale.cluster.values import State
from isoscale.testing.past import past_job, write_past, write_run

RESULT, MINUTES = "cluster_pages", 3
STARTS = ("isoscale.cli.serve", "isoscale.cluster.server", "isoscale.cluster.pages")

_PAINT_MS, _UPDATE_S = 200.0, 1.0
_DEVICES = 64
#: the job whose page is opened has so many steps
_STEPS = 1_000_000
# The page marks its body when it has drawn its first data; when that was only the page itself can tell.
_WATCH = """
new MutationObserver((_, watcher) => {
    if (document.body?.dataset.ready !== "yes") return;
    globalThis.__drawn = performance.now();
    watcher.disconnect();
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-ready"] });
"""
_TIMES = """
() => [performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null, globalThis.__drawn ?? null]
"""


def main() -> None:
    chosen = options(__doc__)
    if (missing := _missing()) and chosen.smoke:
        print(f"{missing}; nothing to measure with")
        return
    if missing:
        raise SystemExit(missing)
    rows = Rows(RESULT, chosen, ("what",))
    with _cluster(chosen) as served, _chromium() as browser:
        for page in PAGES:
            if rows.find(what=page.name) is None:
                rows.put(_paint(browser, served, page.name, _address(page.path), chosen))
                print(rows.all()[-1], flush=True)
        if rows.find(what="update") is None:
            rows.put(_update(browser, served, chosen))
            print(rows.all()[-1], flush=True)
    rows.finish()


@contextlib.contextmanager
def _cluster(options: Options) -> Iterator[Served]:
    count, steps = (
        options.pick(smoke=100, quick=10_000, full=10_000),
        options.pick(smoke=200, quick=20_000, full=_STEPS),
    )
    states: tuple[State, ...] = ("finished", "finished", "finished", "failed", "cancelled")
    now = time.time()
    with tempfile.TemporaryDirectory(prefix="pages-") as directory:
        state = Path(directory) / "state"
        jobs = [past_job(n, "queued" if n % 50 == 0 else states[n % 5], now) for n in range(1, count + 1)]
        write_past(state, jobs, now)
        for job in ("j1", "j2"):
            write_run(state, job, steps=steps, lines=[f"line {n}" for n in range(min(steps, 200_000))])
        with serve(state=state, devices=f"cpu*{_DEVICES}") as served:
            yield served


def _path() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


def _missing() -> str:
    """Of what drives a browser; "" if all is there."""
    if importlib.util.find_spec("playwright") is None or _path() is None:
        return "no Playwright or no Chromium: scripts/setup --browser"
    return ""


@contextlib.contextmanager
def _chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_path(), args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextlib.contextmanager
def _visitor(browser: Any, served: Served, *, signed_in: bool = True) -> Iterator[tuple[Any, str]]:
    """A page of a new profile, and the service's address."""
    url = (served.state / "address").read_text().strip()
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script(_WATCH)
    if signed_in:
        token = (served.state / "token").read_text().strip()
        answer = context.request.post(f"{url}/login", data={"token": token}, headers={"origin": url})
        assert answer.ok, answer.text()
    yield context.new_page(), url
    context.close()


def _address(path: str) -> str:
    return "/compare?a=j1&b=j2" if path == "/compare" else path.replace("{id}", "j1")


def _paint(browser: Any, served: Served, name: str, path: str, options: Options) -> dict[str, Any]:
    paints, drawn = [], []
    # The first visit is not counted: it reads a log of a million steps.
    uncounted = options.pick(smoke=0, quick=1, full=1)
    for visit in range(uncounted + options.pick(smoke=1, quick=3, full=10)):
        with _visitor(browser, served, signed_in=name != "sign-in") as (page, url):
            page.goto(url + path)
            page.wait_for_selector('body[data-ready="yes"]')
            # Asked by the debugger again and again: the pages' policy lets nothing be evaluated inside them.
            while None in (times := page.evaluate(_TIMES)):
                page.wait_for_timeout(10)
            paint, data = times
            if visit >= uncounted:
                paints.append(paint)
                drawn.append(data)
    return {
        "what": name,
        "visits": len(paints),
        "paint_ms": rounded(median(paints)),
        "worst_paint_ms": rounded(max(paints)),
        "data_ms": rounded(median(drawn)),
        "worst_data_ms": rounded(max(drawn)),
        "limit_ms": _PAINT_MS,
        "meets": median(paints) < _PAINT_MS,
    }


def _update(browser: Any, served: Served, options: Options) -> dict[str, Any]:
    """From the call that changes a queued job's priority to the table that shows it."""
    job = next(one.id for one in served.client.jobs(limit=1) if one.state == "queued")
    waits = []
    with _visitor(browser, served) as (page, url):
        page.goto(f"{url}/jobs?state=live&sort=number&descending=false")
        row = f'table[data-table=jobs] tr[data-id="{job}"]'
        page.wait_for_selector(row)
        for change in range(options.pick(smoke=2, quick=5, full=20)):
            priority = 4_000 + change
            begun = time.perf_counter()
            served.client.priority(job, priority)
            page.locator(row).filter(has_text=str(priority)).wait_for()
            waits.append(time.perf_counter() - begun)
    return {
        "what": "update",
        "changes": len(waits),
        "median_s": rounded(median(waits)),
        "worst_s": rounded(max(waits)),
        "limit_s": _UPDATE_S,
        "meets": max(waits) < _UPDATE_S,
    }


if __name__ == "__main__":
    main()
