"""A real Chromium, driven by Playwright, and what no page may do in it: break its own rules, or fail without a word.

Where there is no Chromium or no Playwright these tests are skipped and say so; where `CI` is set they fail instead.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
#: a name that a page of somebody else's would rebind to this machine
EVIL = "evil.example"
PATIENCE_MS = 60_000
VENDOR = Path(__file__).parent / "vendor"

# What a page itself would not tell: violations of its content security policy.
WATCH = """
globalThis.__violations = [];
document.addEventListener("securitypolicyviolation",
    (event) => globalThis.__violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""


def why_not() -> str:
    """Why no browser can be driven here; "" if one can."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed: scripts/setup --browser"
    if not any(map(shutil.which, BROWSERS)):
        return "no Chromium is installed: scripts/setup --browser"
    return ""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if reason := why_not():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    from playwright.sync_api import sync_playwright

    path = next(found for name in BROWSERS if (found := shutil.which(name)))
    arguments = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--host-resolver-rules=MAP {EVIL} 127.0.0.1",
    ]
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=arguments)
        yield made
        made.close()


@dataclass
class Tab:
    """A page, and everything that it complained about."""

    page: Any
    url: str
    complaints: list[str] = field(default_factory=list)

    def go(self, path: str) -> Any:
        answer = self.page.goto(self.url + path)
        self.ready()
        return answer

    def ready(self) -> None:
        self.page.wait_for_selector('body[data-ready="yes"]')

    def see(self, selector: str, text: str = "", **options: Any) -> Any:
        """Waits until it is there, with the text."""
        found = self.page.locator(selector)
        found = found.filter(has_text=text) if text else found
        found.first.wait_for(**options)
        return found.first

    def until(self, done: Callable[[], Any], what: str = "it") -> Any:
        deadline = time.monotonic() + PATIENCE_MS / 1e3
        while not (found := done()):
            assert time.monotonic() < deadline, f"{what} did not happen; the page shows: {self.text()[:2000]}"
            self.page.wait_for_timeout(50)
        return found

    def text(self) -> str:
        return str(self.page.inner_text("body"))

    def check(self) -> None:
        """Nothing went wrong that nobody was told of."""
        violations = self.page.evaluate("globalThis.__violations")
        assert violations == [], violations
        assert self.complaints == []


@dataclass
class Visitor:
    """A browser's profile that is signed in at a service."""

    context: Any
    url: str
    tabs: list[Tab] = field(default_factory=list)

    def tab(self, path: str = "") -> Tab:
        tab = Tab(self.context.new_page(), self.url)
        tab.page.on("console", lambda said: said.type in ("error", "warning") and tab.complaints.append(said.text))
        tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
        self.tabs.append(tab)
        if path:
            tab.go(path)
        return tab

    def sign_in(self, token: str) -> None:
        answer = self.context.request.post(f"{self.url}/login", data={"token": token}, headers={"origin": self.url})
        assert answer.ok, answer.text()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visitor]]:
    """`visit(url, token, **options of the profile)`; at the end no tab may have complained."""
    made: list[Visitor] = []

    def make(url: str, token: str = "", **options: Any) -> Visitor:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(WATCH)
        visitor = Visitor(context, url)
        made.append(visitor)
        if token:
            visitor.sign_in(token)
        return visitor

    yield make
    for visitor in made:
        visitor.context.close()


class Served(Cluster):
    """A service on one port, that comes back to it."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def serve(self, *options: str, **more: Any) -> None:
        super().serve("--port", str(self.port), *options, **more)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return (self.state / "token").read_text().strip()
