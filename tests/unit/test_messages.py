from __future__ import annotations

import math

import msgspec
import pytest

from isoscale.protocol import messages as m
from isoscale.protocol.status import JobStatus
from isoscale.types import JobSpec, Settings

SPEC = JobSpec(workers=4, seed=7, order="tree", kinds=("cpu", "cpu-sse"), profile="sse", script_args=("--lr", "1"))
HELLO = m.Hello(executor=0, pid=12, kind="cpu", fingerprint="f", kernels={"gemm": "a"}, factors={"threads": "1"})
NEXT = {"generation": 3, "shares": (2, 1, 1), "members": (0, 4, 5), "index": 1, "store": "/tmp/store", "hold_at": 9}
FROM_COORDINATOR = [
    m.Welcome(spec=SPEC, settings=Settings(spares=2), kind="cpu-sse", executor=1, term=2),
    m.Begin(**NEXT, checkpoint="step-3.pt"),
    m.Approach(),
    m.Prepare(**NEXT, senders={1: 0, 2: 0}),
    m.Prepare(**NEXT, senders={1: -1, 2: -1}, sender=3),
    m.Abandon(id=9),
    m.Rebatch(id=4, size=64, reason="autoscaler"),
    m.Switch(generation=3, at_step=40),
    m.Recover(**NEXT),
    m.Leave(reason="scale in"),
    m.TakeCheckpoint(id=7, final=True),
    m.Abandon(id=4),
    m.GoOn(),
    m.SaveResult(),
    m.Dismiss(),
    m.Heard(count=7),
]
FROM_EXECUTOR = [
    HELLO,
    m.Rejoin(hello=HELLO, state="member", generation=2, members=(0, 1), shares=(3, 1), step=7, highest=3, waiting=True),
    m.Held(),
    m.Prepared(generation=3),
    m.Switched(generation=3, step=7, left_at=1.5, started_at=1.6, waited_s=0.0),
    m.Received(generation=3),
    m.Landed(generation=3),
    m.Sealed(generation=3, step=7, members=(0, 2), shares=(3, 1)),
    m.Broken(generation=3, reason="a peer is gone"),
    m.Beat(step=7, place="turn", place_s=0.1, steps=3, turn_s=0.01, exchange_s=0.001, step_s=0.03),
    m.Declared(sizes=(16, 32), size=16, rule="linear"),
    m.Rebatched(step=7, old=16, new=32, reason="plan", factor=2.0, learning_rates=(0.1, 0.2)),
    m.StepDone(step=1, epoch=0, loss=0.25, seconds=0.1, samples=8, generation=0, total=0),
    m.StepDone(step=1, epoch=0, loss=None, seconds=0.1, samples=8, generation=0, total=9),
    m.Logged(step=1, epoch=0, values={"a": 1, "b": 0.5, "c": "x", "d": True, "e": None}),
    m.Audited(step=100, digest="d"),
    m.Streamed(event="partitions", stream="stream 1", step=3, fields={"epoch": 0, "to": [[4, 1]]}),
    m.Uses(modules={"numpy": "ab"}, paths={"net": "/p/net.py"}, versions={"python": "3.11"}, data={"loader 1": "64"}),
    m.Recorded(step=2, values={"loss": {0: (0.1).hex(), 3: "nan"}}),
    m.CheckpointWritten(generation=1, step=2, written={"step": 2, "files": ["a"]}, blocked_s=0.1, seconds=0.2),
    m.CheckpointFailed(step=2, reason="no space left on device"),
    m.Warned(message="the disk is full"),
    m.Notice(reason="SIGTERM"),
    m.Suspect(executor=2, reason="other bits"),
    m.Left(reason="scale in"),
    m.Saved(step=2, path="final.pt", seconds=0.5),
    m.Finished(executor=0, step=9, digest="d", stop_reason=""),
    m.Failed(executor=1, error="UserCodeError", summary="s", traceback="t", logical_rank=None, exit_code=1, step=3),
]
FROM_CLIENT = [
    m.Grant(number=3, within_s=2.0, reason="reclaimed"),
    m.Scale(target="+1", away=(3,), reason="migrate"),
    m.GetStatus(),
    m.TakeCheckpoint(),
    m.Grant(number=3, within_s=2.5, reason="reclaimed"),
    m.Stop(),
    m.Stop(now=True),
]


@pytest.mark.parametrize("message", FROM_COORDINATOR, ids=lambda x: type(x).__name__)
def test_the_coordinators_messages_come_back_as_they_were(message: m.FromCoordinator) -> None:
    assert m.decode_from_coordinator(m.encode(message)) == message


@pytest.mark.parametrize("message", FROM_EXECUTOR, ids=lambda x: type(x).__name__)
def test_an_executors_messages_come_back_as_they_were(message: m.FromExecutor) -> None:
    assert m.decode_from_executor(m.encode(message)) == message


@pytest.mark.parametrize("message", FROM_CLIENT, ids=lambda x: type(x).__name__)
def test_a_clients_messages_come_back_as_they_were(message: m.FromClient) -> None:
    assert m.decode_from_client(m.encode(message)) == message


def test_a_reply_comes_back_as_it_was() -> None:
    status: JobStatus = {"job": "x.py", "state": "training", "step": 3, "loss": None, "workers": 4, "executors": []}
    reply = m.Reply(ok=False, error="no", status=status)
    assert m.decode_reply(m.encode(reply)) == reply


def test_a_status_that_is_none_is_refused() -> None:
    frame = msgspec.msgpack.encode({"type": "Reply", "ok": True, "status": {"step": "many"}})
    with pytest.raises(msgspec.ValidationError, match=r"status"):
        m.decode_reply(frame)


def test_the_samples_above_are_all_messages_there_are() -> None:
    assert {type(x) for x in FROM_CLIENT} == set(m.FromClient.__args__)
    assert {type(x) for x in FROM_COORDINATOR} == set(m.FromCoordinator.__args__)
    assert {type(x) for x in FROM_EXECUTOR} == set(m.FromExecutor.__args__)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -0.0, 5e-324, 0.1])
def test_floats_travel_as_their_bits(loss: float) -> None:
    message = m.StepDone(step=1, epoch=0, loss=loss, seconds=0.0, samples=0, generation=0, total=0)
    decoded = m.decode_from_executor(m.encode(message))
    assert isinstance(decoded, m.StepDone)
    assert isinstance(decoded.loss, float)
    assert decoded.loss.hex() == loss.hex()


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        m.decode_from_executor(m.encode(FROM_COORDINATOR[0]))
    with pytest.raises(msgspec.DecodeError):
        m.decode_from_coordinator(m.encode(FROM_EXECUTOR[0]))


@pytest.mark.parametrize("message", [*FROM_COORDINATOR, *FROM_EXECUTOR], ids=lambda x: type(x).__name__)
def test_every_truncation_is_refused(message: m.FromCoordinator | m.FromExecutor) -> None:
    frame = m.encode(message)
    decode = m.decode_from_coordinator if message in FROM_COORDINATOR else m.decode_from_executor
    for size in range(len(frame)):
        with pytest.raises(msgspec.DecodeError):
            decode(frame[:size])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"type": "Nothing"},
        {"type": "Stop"},
        {"type": "Stop", "reason": 3},
        {"type": "Begin", "generation": "1", "shares": [1], "members": [0], "index": 0, "store": ""},
        {"type": "Welcome", "kind": "cpu", "executor": 0, "term": 1, "settings": {}, "spec": {"workers": "2"}},
        {"type": "Welcome", "kind": "cpu", "executor": 0, "term": 1, "settings": {}, "spec": {}},
        {"type": "Switch", "generation": 1, "at_step": 1.5},
        7,
    ],
)
def test_what_does_not_fit_is_refused(body: object) -> None:
    with pytest.raises(msgspec.DecodeError):
        m.decode_from_coordinator(msgspec.msgpack.encode(body))


def test_messages_are_values() -> None:
    with pytest.raises(AttributeError):
        m.Audited(step=1, digest="a").digest = "b"  # type: ignore[misc]
