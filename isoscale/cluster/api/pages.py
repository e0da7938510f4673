"""Routes of the dashboard: its pages and assets are the same bytes for everybody, so they need no token.

A page that was opened from somebody else's link comes without the session's cookie (SameSite=Strict): were pages behind
it, such links would lead to the sign-in. `GET /session` is what a page asks first, as itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from isoscale.cluster.api.route import Call, Route
from isoscale.cluster.auth import NotFoundError
from isoscale.cluster.pages.assets import load_assets
from isoscale.cluster.pages.shell import PAGES, Page, shell

__all__ = ["page_routes"]

_HTML = "text/html; charset=utf-8"
#: an address with the present version never changes what it means
_FOR_EVER = "public, max-age=31536000, immutable"


def page_routes(*, alone: bool = False) -> tuple[Route, ...]:
    """`alone`: of a single run; its page is at "/"."""
    pages = [page for page in PAGES if not alone or page.name in ("job", "sign-in")]
    return (
        *(
            Route(
                method="GET",
                path="/" if alone and page.name == "job" else page.path,
                role=None,
                summary=f"Page: {page.title}",
                handler=_page(page, alone),
                answer=str,
                media=_HTML,
            )
            for page in pages
        ),
        Route(
            method="GET",
            path="/assets/{version}/{name}",
            role=None,
            summary="Styles and scripts of the pages",
            handler=_asset,
            answer=str,
            media="text/plain",
            raw=True,
            errors=(404,),
        ),
    )


def _page(page: Page, alone: bool) -> Callable[[Call], bytes]:
    def handler(call: Call) -> bytes:
        return shell(page, alone=alone)

    return handler


async def _asset(call: Call, request: Request) -> Any:
    assets = load_assets()
    found = assets.files.get(call.path["name"])
    if found is None:
        raise NotFoundError("no such asset; reload the page")
    headers = {"vary": "accept-encoding"}
    if call.path["version"] == assets.version:
        headers["cache-control"] = _FOR_EVER
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(found.gzipped, media_type=found.media, headers=headers)
    return Response(found.body, media_type=found.media, headers=headers)
