"""What a process needs as files, where the machine does not have them."""

from __future__ import annotations

from pathlib import Path

from isoscale.backends.delivery import Delivery
from isoscale.backends.seam import Launch


def launch(token: Path, contents: bytes, log: Path, cwd: Path) -> Launch:
    return Launch(command=("true",), environment={"TOKEN": str(token)}, files={"TOKEN": contents}, log=log, cwd=cwd)


def test_files_that_are_there_are_used(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_bytes(b"secret")
    asked = launch(token, b"secret", tmp_path / "log", tmp_path)
    given = Delivery().deliver(asked)
    assert (given.environment, given.log, given.cwd) == (asked.environment, asked.log, asked.cwd)
    assert given.files == {}


def test_files_that_are_not_there_or_are_others_come_with_the_request(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"another run's")
    for token in (tmp_path / "token", tmp_path / "nowhere" / "token"):
        delivery = Delivery()
        given = delivery.deliver(launch(token, b"secret", tmp_path / "nowhere" / "log", tmp_path / "nowhere"))
        place = Path(given.environment["TOKEN"])
        assert place.read_bytes() == b"secret"
        assert place.stat().st_mode & 0o077 == place.parent.stat().st_mode & 0o077 == 0
        assert given.log.parent == given.cwd == place.parent
        delivery.close()
        assert not place.parent.exists()


def test_nothing_is_done_where_nothing_is_to_be_delivered(tmp_path: Path) -> None:
    asked = Launch(command=("true",), log=tmp_path / "nowhere" / "log", cwd=tmp_path / "nowhere")
    assert Delivery().deliver(asked) is asked
