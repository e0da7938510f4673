"""What a newcomer gets to know of facts that no coordinator may have heard, so that it can tell them."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from isoscale.protocol import messages as m
from isoscale.runtime.executor.link_sink import LinkSink
from isoscale.runtime.training.sink import Facts
from isoscale.types import Settings


class Link:
    def __init__(self) -> None:
        self.sent: list[m.FromExecutor] = []
        self.heard_until = 0.0

    def send_fact(self, message: m.FromExecutor) -> None:
        self.sent.append(message)

    def unheard_since(self) -> float:
        return self.heard_until


def a_sink(link: Link) -> LinkSink:
    member: Any = SimpleNamespace(generation=1, members=(0,), settings=Settings(heartbeat_s=0.5))
    return LinkSink(link, member, record=False)  # type: ignore[arg-type]


def steps(link: Link) -> list[int]:
    return [one.step for one in link.sent if isinstance(one, m.Logged)]


def test_a_newcomer_tells_them_if_it_is_the_first_one_by_then() -> None:
    giver, newcomer, facts, its = Link(), Link(), Facts(), Facts()
    sink = a_sink(giver)
    for step in (1, 2, 3):
        facts.tell(partial(sink.logged, step=step, epoch=0, values={"loss": 0.5}), is_main=True)
    assert steps(giver) == [1, 2, 3]
    frames = sink.unheard(facts)
    assert steps(giver) == [1, 2, 3], "nothing is told twice by that"
    for frame in frames:
        its.tell(partial(newcomer.send_fact, m.decode_from_executor(frame)), is_main=False)
    assert newcomer.sent == []
    its.tell(partial(a_sink(newcomer).logged, step=4, epoch=0, values={}), is_main=True)
    assert steps(newcomer) == [1, 2, 3, 4]
    sink.logged(step=4, epoch=0, values={})
    assert steps(giver) == [1, 2, 3, 4]


def test_what_was_heard_long_ago_is_left_out() -> None:
    link, facts = Link(), Facts()
    sink = a_sink(link)
    facts.tell(partial(sink.logged, step=1, epoch=0, values={}), is_main=True)
    link.heard_until = (
        facts._told[0].at + 0.4
    )  # another executor's word: less than a heartbeat says nothing of the first
    assert len(sink.unheard(facts)) == 1
    link.heard_until += 0.2
    assert sink.unheard(facts) == []
