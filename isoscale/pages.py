"""HTML pages from templates: values are text, never markup, and a name that nobody gave is an error.

A package keeps its templates in a folder `templates` beside its modules; they extend `page.html` of this package, which
loads nothing and runs nothing. Knows nothing of what is on a page.
"""

from __future__ import annotations

import base64
import functools
from dataclasses import dataclass

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

__all__ = ["Image", "environment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture that is part of the page, and what it shows in words."""

    png: bytes
    words: str

    @property
    def base64(self) -> str:
        return base64.b64encode(self.png).decode("ascii")


@functools.cache
def environment(package: str) -> Environment:
    """Templates of `package`, and those that all pages share.

    >>> environment("isoscale").from_string('<b title="{{ x }}">{{ x }}</b>').render(x='"<i>')
    '<b title="&#34;&lt;i&gt;">&#34;&lt;i&gt;</b>'
    """
    loaders = [PackageLoader(name) for name in dict.fromkeys((package, "isoscale"))]
    return Environment(
        loader=ChoiceLoader(loaders),
        # For every template, whatever its name ends with.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
