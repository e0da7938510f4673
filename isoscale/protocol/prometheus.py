"""The text format that Prometheus scrapes: families of samples with labels. What is unknown is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

__all__ = ["family"]


def family(
    name: str, words: str, samples: Sequence[tuple[Mapping[str, object], object]], *, kind: str = "gauge"
) -> Iterator[str]:
    """Lines of one metric; none if no sample has a value.

    >>> list(family("up", "Whether.", [({"job": "j1"}, 1)]))
    ['# HELP up Whether.', '# TYPE up gauge', 'up{job="j1"} 1']
    """
    known = [(labels, shown) for labels, value in samples if (shown := _number(value)) is not None]
    if known:
        yield f"# HELP {name} {words}"
        yield f"# TYPE {name} {kind}"
    for labels, shown in known:
        marks = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
        yield f"{name}{{{marks}}} {shown}" if marks else f"{name} {shown}"


def _number(value: object) -> str | None:
    """
    >>> _number(3), _number(0.25), _number("nan"), _number("-inf"), _number(None), _number(True)
    ('3', '0.25', 'NaN', '-Inf', None, None)
    """
    if isinstance(value, str):  # a status has no other texts for numbers
        return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(repr(value), repr(value))


def _escaped(value: object) -> str:
    r"""
    >>> print(_escaped('a "b" \\ c'))
    a \"b\" \\ c
    """
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
