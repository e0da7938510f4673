"""The first version of everything that a job's executors import and read, and what one of them has otherwise. Pure.

Whatever was seen first, on executors that train, is the job's: modules by their hashes, Python by its version, data by
size and fingerprint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isoscale.protocol import messages as m

__all__ = ["FirstSeen", "shown"]

#: names in one line
_SHOWN = 4


@dataclass(slots=True)
class FirstSeen:
    modules: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, fields: Any) -> FirstSeen:
        """What an earlier coordinator has kept. Raises ValueError if it is something else."""
        kinds = ("modules", "versions", "data")
        if not isinstance(fields, dict) or not all(isinstance(fields.get(kind), dict) for kind in kinds):
            raise ValueError("no record of what was imported")
        return cls(**{kind: {str(k): str(v) for k, v in fields[kind].items()} for kind in kinds})

    def to_json(self) -> dict[str, Any]:
        return {"format": 1, "modules": self.modules, "versions": self.versions, "data": self.data}

    def forget(self, package: str) -> None:
        """From here on it may be of another version."""
        self.modules = {name: v for name, v in self.modules.items() if name.partition(".")[0] != package}
        self.versions.pop(package, None)

    def news(self, uses: m.Uses) -> m.Uses:
        """What of it is not known yet."""
        return m.Uses(
            modules={k: v for k, v in uses.modules.items() if k not in self.modules},
            paths={k: v for k, v in uses.paths.items() if k not in self.modules},
            versions={k: v for k, v in uses.versions.items() if k not in self.versions},
            data={k: v for k, v in uses.data.items() if k not in self.data},
        )

    def learn(self, uses: m.Uses) -> bool:
        """From an executor that trains: whatever is new is the job's from now on. True if something was."""
        news = self.news(uses)
        self.modules |= news.modules
        self.versions |= news.versions
        self.data |= news.data
        return bool(news.modules or news.versions or news.data)

    def differences(self, uses: m.Uses, *, libraries: bool = True) -> list[str]:
        """What an executor has otherwise, in words. Without `libraries` any version of those will do."""
        words = [
            f"{name} has {theirs}, the job's has {self.data[name]}"
            for name, theirs in uses.data.items()
            if self.data.get(name, theirs) != theirs
        ]
        differing = [n for n, version in sorted(uses.modules.items()) if self.modules.get(n, version) != version]
        words += [f"module {name} ({uses.paths[name]})" for name in differing if name in uses.paths]
        if not libraries:
            return words
        mine, theirs = self.versions.get("python"), uses.versions.get("python")
        if mine and theirs and mine != theirs:
            words.append(f"Python {theirs}, the job has {mine}")
        counts = Counter(name.partition(".")[0] for name in differing if name not in uses.paths)
        return words + [self._package_words(package, count, uses.versions) for package, count in sorted(counts.items())]

    def _package_words(self, package: str, count: int, versions: Mapping[str, str]) -> str:
        mine, theirs = self.versions.get(package.lower(), ""), versions.get(package.lower(), "")
        if mine != theirs:
            return f"{package} {theirs or 'of another version'}, the job has {mine or 'another'}"
        return f"{package} {theirs}".rstrip() + f" ({count} file{'s' if count != 1 else ''} differ{'s' * (count == 1)})"


def shown(words: list[str]) -> str:
    """The first few, and how many more."""
    more = len(words) - _SHOWN
    return "; ".join(words[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
