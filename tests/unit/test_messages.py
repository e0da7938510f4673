from __future__ import annotations

import math

import msgspec
import pytest

from isoscale.protocol import messages as m
from isoscale.types import JobSpec

SPEC = JobSpec(workers=4, seed=7, order="tree", kinds=("cpu", "cpu-sse"), profile="sse", script_args=("--lr", "1"))
FROM_COORDINATOR = [
    m.Welcome(spec=SPEC, kind="cpu-sse"),
    m.Begin(generation=3, shares=(2, 1, 1), index=1, store="/tmp/store"),
]
FROM_EXECUTOR = [
    m.Hello(executor=0, pid=12, kind="cpu", fingerprint="f", kernels={"gemm": "a"}, factors={"threads": "1"}),
    m.StepDone(step=1, epoch=0, loss=0.25, seconds=0.1, samples=8, generation=0, total=0),
    m.StepDone(step=1, epoch=0, loss=None, seconds=0.1, samples=8, generation=0, total=9),
    m.Logged(step=1, epoch=0, values={"a": 1, "b": 0.5, "c": "x", "d": True, "e": None}),
    m.Audited(step=100, digest="d"),
    m.Recorded(step=2, values={"loss": {0: (0.1).hex(), 3: "nan"}}),
    m.Saved(step=2, path="final.pt", seconds=0.5),
    m.Finished(executor=0, step=9, digest="d", stop_reason=""),
    m.Failed(executor=1, error="UserCodeError", summary="s", traceback="t", logical_rank=None, exit_code=1, step=3),
]


@pytest.mark.parametrize("message", FROM_COORDINATOR, ids=lambda x: type(x).__name__)
def test_the_coordinators_messages_come_back_as_they_were(message: m.FromCoordinator) -> None:
    assert m.decode_from_coordinator(m.encode(message)) == message


@pytest.mark.parametrize("message", FROM_EXECUTOR, ids=lambda x: type(x).__name__)
def test_an_executors_messages_come_back_as_they_were(message: m.FromExecutor) -> None:
    assert m.decode_from_executor(m.encode(message)) == message


def test_the_samples_above_are_all_messages_there_are() -> None:
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
        {"type": "Begin", "generation": "1", "shares": [1], "index": 0, "store": ""},
        {"type": "Welcome", "kind": "cpu", "spec": {"workers": 2, "order": "random"}},
        {"type": "Welcome", "kind": "cpu", "spec": {}},
        7,
    ],
)
def test_what_does_not_fit_is_refused(body: object) -> None:
    with pytest.raises(msgspec.DecodeError):
        m.decode_from_coordinator(msgspec.msgpack.encode(body))


def test_messages_are_values() -> None:
    with pytest.raises(AttributeError):
        m.Audited(step=1, digest="a").digest = "b"  # type: ignore[misc]
