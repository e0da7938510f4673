"""The HTML of every page: a shell that names its scripts. The same bytes for everybody, without any data."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from isoscale.cluster.pages.assets import load_assets
from isoscale.pages import environment

__all__ = ["PAGES", "Page", "shell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    name: str
    path: str
    title: str
    #: in the navigation, and the key that goes there after "g"
    key: str = ""


PAGES: tuple[Page, ...] = (
    Page(name="cluster", path="/", title="Cluster", key="c"),
    Page(name="jobs", path="/jobs", title="Jobs", key="j"),
    Page(name="what-if", path="/what-if", title="What if", key="w"),
    Page(name="history", path="/history", title="History", key="h"),
    Page(name="analysis", path="/analysis", title="Analysis", key="a"),
    Page(name="settings", path="/settings", title="Settings", key="s"),
    Page(name="job", path="/jobs/{id}", title="Job"),
    Page(name="compare", path="/compare", title="Compare"),
    Page(name="sign-in", path="/sign-in", title="Sign in"),
)


@functools.cache
def shell(page: Page, *, alone: bool = False) -> bytes:
    """`alone`: of a single run without a service; it has no other pages."""
    assets = load_assets()
    # What every page needs at once is fetched at once, not when the module before it has come.
    needed = ("app.js", "dom.js", "api.js", "live.js", "format.js", "keys.js", "notice.js", f"page-{page.name}.js")
    text = (
        environment("isoscale.cluster.pages")
        .get_template("shell.html")
        .render(
            page=page,
            pages=[] if alone else [one for one in PAGES if one.key],
            alone=alone,
            version=assets.version,
            preload=[name for name in needed if name in assets.files],
        )
    )
    return text.encode()
