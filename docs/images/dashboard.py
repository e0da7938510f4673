"""Takes pictures of every page of the dashboard, with real jobs, in both themes and on a narrow screen.

    python docs/images/dashboard.py [--out DIR]        # all of them, and those of the documentation beside this file

Starts a service of its own in a temporary directory and ends it afterwards. Needs `scripts/setup --browser`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isoscale.cluster.client import Client
from isoscale.cluster.process import live_executors
from isoscale.testing import short_job_path

HERE = Path(__file__).parent
SERVE = "from isoscale.cli import main; main()"
PAGES = {
    "cluster": "/",
    "jobs": "/jobs",
    "job": "/jobs/j2",
    "job-logs": "/jobs/j2?tab=logs",
    "job-events": "/jobs/j2?tab=events",
    "job-details": "/jobs/j1?tab=details",
    "what-if": "/what-if",
    "history": "/history",
    "compare": "/compare?a=j1&b=j4",
    "analysis": "/analysis",
    "settings": "/settings",
}
SCREENS = (("light", 1280, 800), ("dark", 1280, 800), ("light", 390, 844))
#: in docs/images: page, theme, width
KEPT = {
    ("cluster", "light", 1280),
    ("cluster", "dark", 1280),
    ("job", "light", 1280),
    ("jobs", "dark", 1280),
    ("what-if", "light", 1280),
}
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
#: (name, tenant, workers, options, epochs, seconds per turn); the first and the fourth are the same job
JOBS = (
    ("digits", "vision", 4, {"max_devices": 2}, "2", "0.01"),
    ("resnet-finetune", "vision", 4, {}, "200", "0.15"),
    ("bert-tiny", "language", 2, {"priority": 5}, "300", "0.2"),
    ("digits-again", "vision", 4, {"max_devices": 1}, "2", "0.01"),
    ("gpt-mini", "language", 8, {"min_devices": 4}, "100", "0.1"),
    ("ablation-a", "research", 4, {"min_devices": 2}, "50", "0.1"),
    ("ablation-b", "research", 4, {"min_devices": 2}, "50", "0.1"),
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, help="also keep every picture here")
    out = options.parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        state = Path(scratch) / "cluster"
        log = (Path(scratch) / "serve.log").open("wb")
        command = [sys.executable, "-c", SERVE, "serve", "--state", str(state), "--devices", "cpu*6"]
        service = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until(lambda: (state / "address").exists())
            with Client(state) as client:
                try:
                    begin(client, state)
                    pictures(client, out)
                finally:  # jobs would outlive the service
                    for job in client.jobs():
                        client.cancel(job.id)
                    until(lambda: all(job.ended_s for job in client.jobs()))
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(30)


def begin(client: Client, state: Path) -> None:
    """Jobs that train, wait and are over; one of them grows, loses an executor and shrinks."""
    for name, tenant, workers, options, *arguments in JOBS:
        job = client.submit(
            short_job_path(), workers=workers, name=name, tenant=tenant, script_args=tuple(arguments), **options
        )
        if name.startswith("digits"):
            client.wait(job.id, timeout_s=300)
    until(lambda: client.job("j2").step > 20)
    os.kill(live_executors(state / "jobs" / "j2")[-1].pid, signal.SIGKILL)
    until(lambda: client.job("j2").step > 60)
    client.scale("j2", 2)
    until(lambda: client.job("j2").step > 120 and client.job("j3").step > 20)


def pictures(client: Client, out: Path | None) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(FLAGS))
        for theme, width, height in SCREENS:
            context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": height})
            page = context.new_page()
            link = client.link()
            page.goto(link)
            page.wait_for_selector('body[data-page="cluster"][data-ready="yes"]')
            for name, path in PAGES.items():
                show(page, link.partition("/sign-in")[0] + path, name)
                data = page.screenshot(full_page=True)
                if out is not None:
                    out.mkdir(parents=True, exist_ok=True)
                    (out / f"{name}-{theme}-{width}.png").write_bytes(data)
                if (name, theme, width) in KEPT:
                    (HERE / f"dashboard-{name}-{theme}.png").write_bytes(data)
            context.close()
        browser.close()


def show(page: Any, address: str, name: str) -> None:
    page.goto(address)
    page.wait_for_selector('body[data-ready="yes"]')
    if name == "what-if" and not page.query_selector("[data-table=whatif]"):
        page.click("[data-action=simulate]")
        page.wait_for_selector("[data-table=whatif] tbody tr")
    page.wait_for_timeout(1500)  # charts are drawn when their library is there


def until(done: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit("the jobs did not get there in time")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
