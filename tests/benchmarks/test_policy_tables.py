"""Tables of docs/policies.md are what the kept results say."""

from __future__ import annotations

import re

from benchmarks.lib.generated import filled
from benchmarks.simulate import page


def test_tables_are_generated_from_the_results() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert re.findall(r"<!-- generated: (\w+) -->", text) != []
    assert filled(text, page.MAKERS) == text, "run: python -m benchmarks.simulate.page"
