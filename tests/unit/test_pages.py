"""Pages from templates: values are text wherever they stand, and nothing is left out without a word."""

from __future__ import annotations

import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from isoscale.analysis.report import page
from isoscale.pages import Image, environment
from isoscale.timelines.timeline import timeline
from tests.unit.analysis.logs import story

PACKAGE = Path(__file__).resolve().parents[2] / "isoscale"
TEMPLATES = sorted(path for path in PACKAGE.glob("**/templates/*") if path.is_file())
SCRIPT = "<script>alert(1)</script>.py"
QUOTES = """a" onload="alert(1)' onerror='alert(2) & <b>"""


class Elements(HTMLParser):
    """Every tag with its attributes, as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_script_with_markup_for_a_name_is_shown_by_its_name() -> None:
    text = page([timeline(story(), job=SCRIPT)])
    assert "script" not in [tag for tag, _ in Elements(text).found]
    assert f"<h1>{SCRIPT}" not in text
    assert "<h1>&lt;script&gt;alert(1)&lt;/script&gt;.py" in text


def test_quotes_do_not_end_an_attribute() -> None:
    elements = Elements(page([timeline(story(), job=QUOTES)])).found
    images = [attributes for tag, attributes in elements if tag == "img"]
    assert all(set(image) == {"alt", "src"} for image in images)
    assert any(str(image["alt"]).startswith(f"timeline of {QUOTES}") for image in images)
    assert not [tag for tag, attributes in elements if {"onload", "onerror"} & set(attributes)]


@pytest.mark.parametrize("suffix", [".html", ".css", ".txt", ""])
def test_values_are_escaped_whatever_the_template_is_called(suffix: str) -> None:
    # jinja2's own rule goes by the name, and takes a name that it does not know for one without markup.
    made = environment("isoscale").from_string("{{ value }}")
    made.name = f"page{suffix}"
    assert made.render(value="<b>") == "&lt;b&gt;"
    assert environment("isoscale").autoescape is True


def test_a_value_that_nobody_gave_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'title' is undefined"):
        environment("isoscale").get_template("page.html").render()
    with pytest.raises(UndefinedError, match="no attribute 'png_'"):
        environment("isoscale").from_string("{{ image.png_ }}").render(image=Image(png=b"", words=""))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_trusts_a_value(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\|\s*safe\b|\bautoescape\b|Markup", text)
    assert not re.search(r"=\s*\{\{", text), "attributes stand in quotes"
    # No script in a page; the dashboard's come from the service itself.
    assert not re.search(r'<script(?![^>]*\bsrc="/assets/)|https?://|@import|url\(', text)


def test_a_wheel_holds_every_template() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    globs = project["tool"]["setuptools"]["package-data"]["isoscale"]
    assert {path.name for path in TEMPLATES} >= {"page.html", "report.html", "report.css", "simulation.html"}
    assert set(TEMPLATES) <= {path for glob in globs for path in PACKAGE.glob(glob)}
