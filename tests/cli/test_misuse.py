"""A command line that cannot be parsed: one line on stderr that says what, and where to look; exit code 2."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from isoscale.cli.app import command_line

HELP = "isoscale run --help"
WHOLE = "is not a whole number"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run"], f"SCRIPT is missing; {HELP} tells what it is"),
        (["plan", "split"], "--workers is missing; isoscale plan split --help tells what it is"),
        (["run", "x.py", "--workers", "two"], f"--workers=two: is not a whole number; {HELP} tells what it takes"),
        (["run", "x.py", "--workers=two"], f"--workers=two: is not a whole number; {HELP} tells what it takes"),
        (["run", "x.py", "--order", "up"], f"--order=up: 'up' is not one of 'ddp', 'tree'; {HELP} tells what it takes"),
        (["run", "x.py", "--ordre", "ddp"], f"--ordre: no such option; did you mean --order? {HELP} lists all"),
        (["run", "x.py", "--seed"], f"--seed: needs a value; {HELP} tells more"),
        (["run", "x.py", "--module=3"], f"--module: takes no value; {HELP} tells more"),
        (
            ["jobs", "priority", "j1", "x"],
            "P: is not a whole number; isoscale jobs priority --help tells what it takes",
        ),
        (["jobs", "shwo"], "shwo: no such command; did you mean show? isoscale jobs --help lists all"),
        (["stats"], "stats: no such command; did you mean status? isoscale --help lists all"),
        (["--nosuch"], "--nosuch: no such option; isoscale --help lists all"),
    ],
)
def test_one_line_names_field_value_and_remedy(words: list[str], told: str) -> None:
    done = CliRunner().invoke(command_line(), words, prog_name="isoscale")
    assert done.stderr == f"isoscale: {told}\n"
    assert done.exit_code == 2


def test_no_command_at_all_shows_the_help() -> None:
    done = CliRunner().invoke(command_line(), [], prog_name="isoscale")
    assert "Usage: isoscale" in done.output
    assert "Train one job" in done.output
    assert done.exit_code == 2
