"""The tables of a report: what a timeline holds, as rows of text and shares. No markup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from isoscale.analysis.palette import SIGNS
from isoscale.analysis.words import duration
from isoscale.timelines.values import Life, Timeline

__all__ = ["Cell", "Share", "Table", "tables"]

#: of a table, this many rows are shown at either end
_MAX_ROWS = 150


@dataclass(frozen=True, slots=True)
class Share:
    """A number from 0 to 1, shown as a bar too."""

    value: float

    @property
    def words(self) -> str:
        return f"{self.value:.0%}"


Cell = str | Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    name: str
    columns: tuple[str, ...]
    #: those columns that hold numbers
    numbers: frozenset[str]
    rows: list[tuple[Cell, ...]]

    @property
    def hidden(self) -> int:
        """Rows in the middle of a long table, which are not shown."""
        return max(0, len(self.rows) - 2 * _MAX_ROWS)

    @property
    def first(self) -> list[tuple[Cell, ...]]:
        return self.rows[:_MAX_ROWS] if self.hidden else self.rows

    @property
    def last(self) -> list[tuple[Cell, ...]]:
        """Those after the hidden ones."""
        return self.rows[-_MAX_ROWS:] if self.hidden else []

    def without_empty_columns(self) -> Table:
        """A log may have measured nothing: then there is nothing to show."""
        kept = [index for index in range(len(self.columns)) if any(row[index] != "" for row in self.rows)]
        columns = tuple(self.columns[index] for index in kept)
        return replace(self, columns=columns, rows=[tuple(row[index] for index in kept) for row in self.rows])


def tables(shown: Timeline) -> Iterator[Table]:
    """In the order of the page; some may be empty."""
    yield _rescales(shown)
    yield Table(
        name="Batch sizes",
        columns=("time", "at step", "of a logical worker", "factor", "learning rates", "reason"),
        numbers=frozenset({"time", "at step", "of a logical worker", "factor", "learning rates"}),
        rows=[
            (
                _time(b.t),
                _text(b.step),
                f"{_text(b.before) or '?'} → {_text(b.after) or '?'}",
                "" if b.factor is None else f"{b.factor:.6g}",
                ", ".join(f"{rate:.6g}" for rate in b.learning_rates[:8]),
                b.reason,
            )
            for b in shown.batches
        ],
    )
    yield _executors(shown)
    yield Table(
        name="Faults and warnings",
        columns=("time", "what", "executor", "words"),
        numbers=frozenset({"time", "executor"}),
        rows=[(_time(m.t), SIGNS[m.kind].label, _text(m.executor), m.text) for m in shown.marks],
    )
    yield Table(
        name="Checkpoints",
        columns=("time", "step", "written in", "path"),
        numbers=frozenset({"time", "step", "written in"}),
        rows=[(_time(c.t), _text(c.step), duration(c.seconds), c.path) for c in shown.checkpoints],
    )
    yield Table(
        name="Audits",
        columns=("time", "step", "digest"),
        numbers=frozenset({"time", "step"}),
        rows=[(_time(audit.t), _text(audit.step), audit.digest) for audit in shown.audits],
    )


def _rescales(shown: Timeline) -> Table:
    columns = ("time", "generation", "executors", "at step", "pause", "waited", "gap", "logical workers", "reason")
    rows: list[tuple[Cell, ...]] = [
        (
            _time(r.t),
            _text(r.generation),
            f"{_text(r.num_before) or '?'} → {_text(r.num_after) or '?'}",
            _text(r.step),
            duration(r.pause_s),
            duration(r.wait_s) if r.wait_s else "",
            duration(r.gap_s),
            _shares(r.shares),
            r.reason,
        )
        for r in shown.rescales
    ]
    return Table(name="Rescales", columns=columns, numbers=frozenset(columns[:7]), rows=rows)


def _executors(shown: Timeline) -> Table:
    columns = ("executor", "kind", "pid", "from", "until", "end", "logical workers", "a turn", "waiting a step", "idle")
    numbers = frozenset({"executor", "pid", "from", "until", "a turn", "waiting a step"})
    return Table(name="Executors", columns=columns, numbers=numbers, rows=[_executor(life) for life in shown.lives])


def _executor(life: Life) -> tuple[Cell, ...]:
    end = ", ".join(part for part in (life.ending, life.reason) if part)
    return (
        _text(life.executor),
        life.kind,
        _text(life.pid),
        _time(life.started),
        _time(life.ended) if life.ending else "",
        end,
        _workers(life),
        duration(life.turn_s),
        duration(life.exchange_s),
        "" if life.idle is None else Share(life.idle),
    )


def _workers(life: Life) -> str:
    """What it hosted, one after another; of many, the last."""
    if life.joined is None:
        return "none: it never joined"
    blocks = [
        str(stay.first) if stay.first == stay.last else f"{stay.first}-{stay.last}"
        for stay in life.stays
        if stay.first is not None
    ]
    return ", ".join(["...", *blocks[-8:]] if len(blocks) > 8 else blocks)


def _shares(shares: tuple[int, ...]) -> str:
    """
    >>> _shares((3, 3, 2)), _shares((2,) * 12), _shares(tuple(range(1, 15)))
    ('3 + 3 + 2', '12 times 2', '1 to 14 on 14 executors')
    """
    if len(shares) <= 8:
        return " + ".join(map(str, shares))
    low, high = min(shares), max(shares)
    return f"{len(shares)} times {low}" if low == high else f"{low} to {high} on {len(shares)} executors"


def _time(t: float) -> str:
    return f"{t:,.3f} s" if t < 600 else duration(t)


def _text(value: object) -> str:
    return "" if value is None else str(value)
