"""The help texts of the command line and their places in docs/cli.md. Run it to rewrite them."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from isoscale.cli.app import command_line

CLI_PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
_SPOT = re.compile(r"(<!-- help: (.*?) -->\n```text\n)(.*?)(```\n)", re.DOTALL)


def help_text(command: str) -> str:
    """What `COMMAND --help` prints, 100 columns wide, without colour and trailing blanks."""
    program, *words = command.split()
    environment = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    # In this process: there are many commands, and a cold start takes a second.
    done = CliRunner().invoke(command_line(), [*words, "--help"], env=environment, prog_name=program)
    assert done.exit_code == 0, done.output
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines()).strip("\n") + "\n"


def with_help_texts(page: str) -> str:
    return _SPOT.sub(lambda spot: f"{spot[1]}{help_text(spot[2])}{spot[4]}", page)


def shown_help_texts(page: str) -> dict[str, str]:
    return {command: text for _, command, text, _ in _SPOT.findall(page)}


if __name__ == "__main__":
    CLI_PAGE.write_text(with_help_texts(CLI_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
