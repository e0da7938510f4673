"""The live line of a run: step, loss, samples per second, executors, time left.

On a terminal one line that is redrawn; elsewhere plain lines, at most one every few seconds. Shows
facts it is told; computes nothing but rates. Never waits for the terminal (`cli.screen`).
"""

from __future__ import annotations

import functools
import time
from collections import deque
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from isoscale.cli.screen import Screen
from isoscale.protocol import messages as m

__all__ = ["Progress", "QuietProgress", "count", "duration"]

_PLAIN_EVERY_S = 5.0
_WINDOW = 30
#: shorter ones of the coordinator itself are common on a busy machine
_LONG_PAUSE_S = 5.0
#: an executor that takes so many times as long as others is slow (`Settings.straggler_ratio`)
_SLOW = 1.2
#: columns from which there is room for a bar beside the numbers
_WIDE = 100
_WORTH_A_LOOK = ("warning", "executor_lost", "suspect", "straggler", "notice", "stopping")


class Progress:
    """An observer of a run. Use as a context manager."""

    def __init__(self, console: Console, label: str = "") -> None:
        self._console = console
        self._label = f"{label}  " if label else ""
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._recent: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._last_plain = time.monotonic()
        self._last: tuple[m.StepDone, int] | None = None
        self._screen = Screen(console)
        #: news that the terminal did not take
        self._untold = 0
        #: somebody has asked for the job's end
        self._stopped = False

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._screen.say(self._live.start)
            self._redraw(Text(f"{self._label}starting executors ...", style="dim"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is None and self._last is not None:
            self._plain(*self._last)
        last = self._live.stop if self._live is not None else None
        self._screen.close(last, interrupted=error is not None, stopped=self._stopped)

    def on_output(self, line: str) -> bool:
        return self._print(line, markup=False, soft_wrap=True)

    def on_begin(self, num_executors: int) -> None:
        text = f"{self._label}training on {count(num_executors, 'executor')} ..."
        if self._live is not None:
            self._redraw(Text(text, style="dim"))
        else:
            self._print(text)

    def on_step(self, step: m.StepDone, num_executors: int) -> None:
        now = time.monotonic()
        self._recent.append((now, step.samples))
        self._last = (step, num_executors)
        if self._live is not None:
            self._redraw(self._line(step, num_executors))
        elif now - self._last_plain >= _PLAIN_EVERY_S:
            self._last_plain = now
            self._plain(step, num_executors)

    def on_log(self, logged: m.Logged) -> None:
        values = "  ".join(f"{name} {_number(value)}" for name, value in logged.values.items())
        self._tell(f"{self._label}step {logged.step}  epoch {logged.epoch}  {values}")

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        """Executors that come and go are worth a line; the rest is in the log."""
        self._stopped |= event == "stopped"
        text = _news(event, fields)
        if text:
            style = "yellow" if event in _WORTH_A_LOOK else "dim"
            self._tell(Text(f"{self._label}{text}", style=style))

    def _tell(self, text: str | Text) -> None:
        """News, or how many there were that the terminal did not take."""
        if self._untold and self._print(f"... {count(self._untold, 'message')} are in events.jsonl"):
            self._untold = 0
        self._untold += not self._print(text)

    def _print(self, text: str | Text, *, markup: bool | None = None, soft_wrap: bool | None = None) -> bool:
        def draw() -> None:
            self._console.print(text, highlight=False, markup=markup, soft_wrap=soft_wrap)

        return self._screen.say(draw)

    def _redraw(self, line: Text) -> None:
        assert self._live is not None
        self._screen.redraw(functools.partial(self._live.update, line))

    def _plain(self, step: m.StepDone, num_executors: int) -> None:
        # Without colours a bar does not tell its two parts apart.
        line = self._line(step, num_executors, bar=False).plain
        self._print(line, markup=False, soft_wrap=True)
        self._last = None

    def _line(self, step: m.StepDone, num_executors: int, *, bar: bool = True) -> Text:
        first, samples = self._recent[0][0], sum(count for _, count in list(self._recent)[1:])
        elapsed = self._recent[-1][0] - first
        steps_per_s = (len(self._recent) - 1) / elapsed if elapsed > 0 else 0.0
        parts = [f"step {step.step}{f'/{step.total}' if step.total else ''}", f"epoch {step.epoch}"]
        if step.loss is not None:
            parts.append(f"loss {_number(step.loss)}")
        if elapsed > 0:
            parts.append(f"{samples / elapsed:,.0f} samples/s")
        parts.append(count(num_executors, "executor"))
        if step.total and step.total > step.step and steps_per_s > 0:
            parts.append(f"{duration((step.total - step.step) / steps_per_s)} left")
        # One line, however narrow the terminal: two that are redrawn as one make it jump.
        line = Text(self._label, style="bold", no_wrap=True, overflow="ellipsis")
        if step.total and bar and self._console.width >= _WIDE:
            filled = round(16 * min(1.0, step.step / step.total))
            line.append("━" * filled, style="green").append("─" * (16 - filled), style="bright_black").append("  ")
        elif len("  ".join(parts)) + len(self._label) > self._console.width:
            parts.remove(f"epoch {step.epoch}")  # steps tell it, too
        return line.append("  ".join(parts), style="default")


class QuietProgress(Progress):
    """Shows steps and warnings: of a script that runs several times, nobody wants to read the rest several times."""

    def on_output(self, line: str) -> bool:
        return True

    def on_log(self, logged: m.Logged) -> None:
        pass

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        if event in ("warning", "stopped"):
            super().on_event(event, fields)


def _news(event: str, fields: dict[str, Any]) -> str:
    match event:
        case "warning":
            return f"warning: {fields['message']}"
        case "stopping":
            return str(fields["message"])
        case "executor_lost":
            return f"executor {fields['executor']} lost: {fields['reason']}"
        case "coordinator_paused" if fields["seconds"] >= _LONG_PAUSE_S:
            return f"the coordinator itself was not running for {duration(fields['seconds'])}; nobody is blamed for it"
        case "notice":
            return f"executor {fields['executor']} was told to go ({fields['reason']})"
        case "straggler":
            shares = "+".join(map(str, fields["shares"]))
            if fields.get("set_aside"):
                who = ", ".join(map(str, fields["set_aside"]))
                return (
                    f"executor {fields['executor']} is {fields['ratio']:.1f}x slower: {who} set aside, "
                    f"{fields['gain']:.2f}x faster without; logical workers now {shares}"
                )
            if fields["ratio"] <= _SLOW:  # one that was slow is not any more, or was only thought to be
                return f"logical workers now {shares}: no executor is much slower than the others"
            return f"executor {fields['executor']} is {fields['ratio']:.1f}x slower; logical workers now {shares}"
        case "suspect":
            return f"executor {fields['executor']} computes wrong bits: {fields['reason']}"
        case "batch":
            rates = ", ".join(f"{rate:.4g}" for rate in fields["learning_rates"][:4])
            since = f", learning rate {rates}" if rates else ""
            return f"step {fields['step']}: batch size {fields['from']} -> {fields['to']} ({fields['reason']}){since}"
        case "rescale":
            before, after = fields["from"], count(fields["to"], "executor")
            waited = f", after waiting {fields['wait_s']:.1f} s" if fields["wait_s"] >= 0.05 else ""
            return f"step {fields['step']}: {before} -> {after}, pause {1000 * fields['pause_s']:.0f} ms{waited}"
    return ""


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "executor"), count(3, "process")
    ('1 executor', '3 processes')
    """
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def duration(seconds: float) -> str:
    """
    >>> duration(9.4), duration(75), duration(3700)
    ('9 s', '1 min 15 s', '1 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
