"""The one exception tree. Errors are separate where the reaction is separate.

    IsoscaleError
      UserError (also a ValueError)    bad input: change what was given
        DeterminismError               devices that cannot give the promised bits together
      TurnRuleError                    the training script broke a rule of the turn
      UserCodeError                    the training script raised
      PositionError                    executors stand at different places in the script
      AuditError                       executors hold different bits
      ExecutorLostError                an executor died, hung or vanished
      StartError                       a process was not started, and will not be
      CheckpointError                  a checkpoint cannot be written, found or trusted

Every error has `exit_code`, which the command line exits with, keeps its context in attributes, gives a message of
one line, and survives pickling with its attributes and notes. Constructors take keywords only, except the root's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "AuditError",
    "CheckpointError",
    "DeterminismError",
    "ExecutorLostError",
    "IsoscaleError",
    "PositionError",
    "StartError",
    "TurnRuleError",
    "UserCodeError",
    "UserError",
]

#: characters of a value, and of what is wrong with it, that a message shows: it is to be read, and sent to clients
_MAX_SHOWN, _MAX_PROBLEM = 300, 2_000


class IsoscaleError(Exception):
    """The root of the tree; catch it to catch everything that isoscale raises on purpose."""

    exit_code: ClassVar[int] = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own __reduce__ calls cls(*args), which keyword-only constructors refuse.
        return _restore, (type(self), self.args), self.__dict__


class UserError(IsoscaleError, ValueError):
    """Raised when an option, an argument, an environment variable or a file of the user's cannot be accepted.

    Without `value` nothing was given: the message names the field alone.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, *, field: str, value: object = ..., problem: str, remedy: str) -> None:
        self.field = field
        self.value = value
        self.problem = problem
        self.remedy = remedy
        given = field if value is ... else f"{field}={_one_line(value)}"
        super().__init__(f"{given}: {shortened(problem, _MAX_PROBLEM)}; {remedy}")


class DeterminismError(UserError):
    """Raised when devices are refused because together they could not give the bits that the job promises.

    `fingerprints` maps each kind (or executor) concerned to its numeric fingerprint.
    """

    def __init__(
        self, *, field: str, value: object, problem: str, remedy: str, fingerprints: Mapping[str, str] | None = None
    ) -> None:
        self.fingerprints = dict(fingerprints or {})
        if self.fingerprints:
            problem += f" ({', '.join(f'{kind}: {print_}' for kind, print_ in self.fingerprints.items())})"
        super().__init__(field=field, value=value, problem=problem, remedy=remedy)


class TurnRuleError(IsoscaleError):
    """Raised when the training script does something in a turn that stock DDP would not do the same way.

    `location` is the line of the script as "file:line".
    """

    def __init__(self, *, rule: str, logical_rank: int | None, location: str, remedy: str) -> None:
        self.rule = rule
        self.logical_rank = logical_rank
        self.location = location
        self.remedy = remedy
        where = "outside turns" if logical_rank is None else f"logical worker {logical_rank}"
        super().__init__(f"{location}: {where}: {rule}; {remedy}")


class UserCodeError(IsoscaleError):
    """Raised when the training script itself raised, in a turn (`logical_rank`) or outside turns (None).

    The message is the last line of the story; `traceback_text` is all of it.
    """

    def __init__(self, *, traceback_text: str, logical_rank: int | None, executor: int) -> None:
        self.traceback_text = traceback_text
        self.logical_rank = logical_rank
        self.executor = executor
        where = "outside turns" if logical_rank is None else f"logical worker {logical_rank}"
        super().__init__(f"executor {executor}, {where}: {_summary(traceback_text)}")


class PositionError(IsoscaleError):
    """Raised when executors that must exchange stand at different positions (loader, epoch, step, learning rates)."""

    def __init__(self, *, executor: int, position: str, other_executor: int, other_position: str) -> None:
        self.executor = executor
        self.position = position
        self.other_executor = other_executor
        self.other_position = other_position
        super().__init__(
            f"executor {executor} stands at {position}, executor {other_executor} at {other_position}; "
            "decide loops, breaks and learning rates from values that are equal on every executor"
        )


class AuditError(IsoscaleError):
    """Raised when state that must be equal differs between executors, or would after a rescale (`executors` is empty).

    `tensor` is the first one concerned, in order of names.
    """

    def __init__(self, *, tensor: str, executors: Sequence[int], remedy: str, problem: str = "") -> None:
        self.tensor = tensor
        self.executors = tuple(executors)
        self.remedy = remedy
        self.problem = problem or f"differs between executors {', '.join(map(str, self.executors))}"
        super().__init__(f"{tensor} {self.problem}; {remedy}")


class ExecutorLostError(IsoscaleError):
    """Raised when an executor is gone and the job cannot go on without it."""

    def __init__(self, *, executor: int, pid: int, generation: int, reason: str) -> None:
        self.executor = executor
        self.pid = pid
        self.generation = generation
        self.reason = reason
        super().__init__(f"executor {executor} (pid {pid}, generation {generation}) was lost: {reason}")


class StartError(IsoscaleError):
    """Raised by a backend that has no device for a process, or that the system refuses one. There is none then.

    `what` is the device or the program that was asked for.
    """

    def __init__(self, *, what: str, reason: str) -> None:
        self.what = what
        self.reason = reason
        super().__init__(f"{what}: {reason}")


class CheckpointError(IsoscaleError):
    """Raised when a checkpoint cannot be written, or when none that is whole can be found or loaded."""

    exit_code: ClassVar[int] = 2

    def __init__(self, *, path: str, problem: str, remedy: str) -> None:
        self.path = path
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{_one_line(path)}: {problem}; {remedy}")


def _restore(cls: type[IsoscaleError], args: tuple[object, ...]) -> IsoscaleError:
    """The error without its attributes, which pickle adds; does not run `__init__`."""
    return cls.__new__(cls, *args)


def shortened(text: str, most: int = _MAX_SHOWN) -> str:
    """The text, or its beginning and how long it is.

    >>> shortened("cpu*" + 1000 * "9", 8)
    'cpu*9999... (1,004 characters)'
    """
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def _one_line(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 1000:  # Python writes no more than 4300 digits
        return f"{'-' if value < 0 else ''}10**{int(value.bit_length() * 0.30103)}"
    text = shortened(str(value))
    return text if text and text.isprintable() else shortened(repr(text))


def _summary(traceback_text: str) -> str:
    """The first line after the last frame: "ValueError: ...", without further lines of its message or its notes."""
    lines = [line for line in traceback_text.splitlines() if line.strip()]
    last_frame = max((i for i, line in enumerate(lines) if line.startswith('  File "')), default=len(lines))
    return next(
        (line for line in lines[last_frame:] if not line.startswith(" ")), lines[-1] if lines else "no traceback"
    )
