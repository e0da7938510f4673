"""Which versions of transformers and accelerate are held bit for bit against their own trainer, checked at import."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from isoscale.errors import UserError

__all__ = ["TESTED", "check_versions"]

#: by library: from the first version on, below the second. Private methods of `Trainer` are replaced, so another minor
#: version may change what decides the bits
TESTED = {"transformers": ((5, 22), (5, 23)), "accelerate": ((1, 15), (1, 16))}


def check_versions() -> None:
    """Raises UserError, with the range, for a version that is not installed or was not tested."""
    for name, (first, end) in TESTED.items():
        wanted = f">={_text(first)},<{_text(end)}"
        try:
            found = version(name)
        except PackageNotFoundError:
            found = "not installed"
        if not first <= _numbers(found) < end:
            raise UserError(
                field=name,
                value=found,
                problem=f"isoscale.integrations.transformers is tested with {name}{wanted} only",
                remedy="pip install 'isoscale[transformers]'",
            )


def _numbers(text: str) -> tuple[int, ...]:
    numbers = [int(part) if part.isdecimal() else -1 for part in text.split(".")[:2]]
    return tuple(numbers)


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
