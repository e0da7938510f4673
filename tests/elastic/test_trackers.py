"""TensorBoard's files while main executors come and go, by the example's own factory; and the page that shows it."""

from __future__ import annotations

import inspect
import struct
from pathlib import Path

import pytest

from isoscale.testing import Nursery, start

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "trackers.py"


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_curves_in_tensorboard_are_those_of_the_log(nursery: Nursery, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    options = ["--no-rebalance"]
    with start(SCRIPT, out=tmp_path / "run", workers=2, script_args=["tensorboardx", "0.05"], options=options) as job:
        job.wait_step(8)
        job.kill(job.members()[0])
        job.wait_for(lambda: len(job.members()) == 2 and 0 not in job.members(), "a replacement")
        with job.handle() as handle:
            handle.stop(wait=True)
        job.wait()
        job.resume()
        assert job.wait() == 0, job.output()
        wanted = {("loss", step): loss for step, loss in job.losses().items()}
        wanted |= {("accuracy", one["step"]): one["accuracy"] for one in job.events("log")}
        assert len(wanted) == 48 + 3
        found = shown(tmp_path / "run" / "tensorboard")
        assert set(found) == set(wanted)
        assert all(found[key] == as_float32(value) for key, value in wanted.items())


def shown(directory: Path) -> dict[tuple[str, int], float]:
    """What TensorBoard shows: a session's start purges what was written of its step and later ones."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    values: dict[tuple[str, int], float] = {}
    for path in sorted(directory.glob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        data, at = path.read_bytes(), 0
        while at + 12 <= len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            body = data[at + 12 : at + 12 + size]
            at += size + 16
            if len(body) < size:
                break  # cut off by the kill
            event = Event.FromString(body)
            if event.session_log.status == SessionLog.START:
                values = {key: value for key, value in values.items() if key[1] < event.step}
            for one in event.summary.value:
                key = (one.tag, event.step)
                assert key not in values, f"{key} is shown twice"
                values[key] = one.simple_value
    return values


def as_float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_the_page_shows_the_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import trackers  # type: ignore[import-not-found]

    source = inspect.getsource(getattr(trackers, name))
    assert source in (ROOT / "docs" / "trackers.md").read_text()
