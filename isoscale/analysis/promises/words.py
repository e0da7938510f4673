"""How findings say steps, sets and times."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["count", "numbers_text", "steps_text"]

_MAX = 6


def steps_text(first: int, last: int) -> str:
    """
    >>> steps_text(3, 3), steps_text(3, 9)
    ('step 3 was', 'steps 3-9 were')
    """
    return f"step {first} was" if first == last else f"steps {first}-{last} were"


def numbers_text(numbers: Iterable[object]) -> str:
    """
    >>> numbers_text([4, 5]), numbers_text(range(9))
    ('4, 5', '0, 1, 2, 3, 4, 5 and 3 more')
    """
    texts = [str(number) for number in numbers]
    more = f" and {len(texts) - _MAX} more" if len(texts) > _MAX else ""
    return ", ".join(texts[:_MAX]) + more


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "executor"), count(3000, "step"), count(0, "request")
    ('1 executor', '3,000 steps', 'no request')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}" if number else f"no {noun}"
