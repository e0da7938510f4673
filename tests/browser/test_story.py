"""A job's whole life as a person sees it: submitted, growing, shrinking, losing a process, finished; a service that
dies and comes back meanwhile; two tabs that agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import Served, Visitor

pytestmark = [pytest.mark.processes]


@pytest.fixture(scope="module")
def served(browser: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("story") / "state")
    made.serve("--interval", "0.2", devices="cpu*2")
    yield made
    made.end()


@pytest.mark.timeout(300)
def test_a_job_is_watched_from_submission_to_its_digest(
    served: Served, visit: Callable[..., Visitor], tmp_path: Path
) -> None:
    visitor = visit(served.url, served.token)
    jobs, cluster = visitor.tab("/jobs"), visitor.tab("/")
    job = served.submit(3, 4, "wait", name="watched", max_devices=2)
    row = f'table[data-table=jobs] tr[data-id="{job}"]'
    jobs.see(row)
    page = visitor.tab(f"/jobs/{job}")
    page.see("[data-state=running]")
    # Grown to both devices: the page, the table and the map agree.
    held = cluster.page.locator("[data-device]").filter(has_text="watched")
    cluster.until(lambda: held.count() == 2, "it grew")
    served.until_step(job, 3)
    page.see("figure[data-chart=loss] canvas")
    # Shrunk on demand of a person who looks at the page; then one of the two devices is free.
    with served.client() as client:
        client.scale(job, 1)
    cluster.until(lambda: held.count() == 1, "it shrank")
    with served.client() as client:
        client.scale(job, 2)
    cluster.until(
        lambda: cluster.page.locator("[data-device]").filter(has_text="watched").count() == 2, "it grew again"
    )
    # A process is killed: the page tells of a loss, and of the pause that it cost.
    served.until_step(job, served.job(job).step + 2)
    served.kill_executors(job)
    page.see("body", "lost")
    # The service dies while three pages are open: each says so, and goes on by itself when it is back.
    served.kill()
    for tab in (page, jobs, cluster):
        tab.page.bring_to_front()
        tab.see("#connection[data-state=gone]")
        tab.see("#notice", "does not answer")
        tab.complaints.clear()  # what Chromium itself says of a connection that is refused
    served.serve("--interval", "0.2", devices="cpu*2")
    for tab in (page, jobs, cluster):
        tab.page.bring_to_front()
        tab.see("#connection[data-state=live]")
        tab.see("#notice", "restarted")
        tab.complaints.clear()
    served.hurry(job)
    digest = served.until_state(job, "finished").digest
    page.see("[data-state=finished]")
    page.page.bring_to_front()
    page.see('a[href="?tab=details"]').click()
    page.see("body", digest[:12])
    jobs.see(f"{row} [data-state=finished]")
    cluster.until(lambda: held.count() == 0, "all is free")
    for tab in visitor.tabs:
        tab.check()


@pytest.mark.timeout(300)
def test_what_one_tab_asks_for_the_other_one_shows(served: Served, visit: Callable[..., Visitor]) -> None:
    job = served.submit(2, 2, "wait", name="shared")
    served.until_state(job, "running")
    visitor = visit(served.url, served.token)
    one, other = visitor.tab(f"/jobs/{job}"), visitor.tab(f"/jobs/{job}")
    one.page.bring_to_front()
    one.see("button[data-action=pause]").click()
    one.see("dialog[open] button[data-confirm]").click()
    one.see("[data-state=paused]")
    other.page.bring_to_front()
    other.see("[data-state=paused]")
    other.see("button[data-action=resume]").click()
    one.page.bring_to_front()
    one.see("[data-state=running]")
    one.see("button[data-action=cancel]").click()
    one.see("dialog[open] button[data-confirm]").click()
    one.see("[data-state=cancelled]")
    other.page.bring_to_front()
    other.see("[data-state=cancelled]")
    # Only what makes sense is offered: of a job that is over, nothing.
    assert one.page.locator("button[data-action=cancel]").count() == 0
    assert served.job(job).state == "cancelled"
    for tab in visitor.tabs:
        tab.check()
