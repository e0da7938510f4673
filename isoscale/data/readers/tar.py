"""Tar shards in the layout of WebDataset: files that share a name up to its first dot are one sample.

A sample is {"__key__": "dir/000017", "jpg": bytes, "cls": bytes}; what the bytes mean is for `transform`. A partition
is a shard. Positions are byte offsets of a sample's first header.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Sequence
from typing import IO, Any

from isoscale.data.readers.files import Paths, Span, find_files, identity_of, open_file

__all__ = ["TarReader", "TarSamples", "tar_samples"]

_KEY = re.compile(r"^((?:.*/)?[^./]+)\.([^/]*)$")
_CHUNK_SAMPLES = 8


def tar_samples(paths: Paths) -> TarSamples:
    """Every sample of tar shards (`shard-000.tar`, also .tar.gz) as a dict of bytes by extension, and `__key__`."""
    return TarSamples([Span(file) for file in find_files(paths, "tar_samples")])


class TarSamples:
    def __init__(self, partitions: Sequence[Span]) -> None:
        self._partitions = partitions
        self.num_partitions = len(partitions)
        self.identity = identity_of("tar samples", partitions)

    def open(self, partition: int, position: int | None) -> TarReader:
        return TarReader(self._partitions[partition], position)

    def label(self, partition: int) -> str:
        return self._partitions[partition].label

    def decode(self, stored: list[dict[str, object]]) -> Sequence[dict[str, object]]:
        return [dict(sample) for sample in stored]  # a transform may write into it, and the turn may be run again


class TarReader:
    def __init__(self, span: Span, position: int | None) -> None:
        self._file: IO[bytes] = open_file(span.file)
        self._tar: Any = tarfile.TarFile(fileobj=self._file)
        # It has looked at the first member already, and would give that one first.
        self._tar.firstmember = None  # type: ignore[attr-defined]
        self._tar.offset = position or 0
        self._file.seek(self._tar.offset)
        self._member = self._next()
        #: of the next sample's first header; behind the last one, where the archive ends
        self.position = self._start

    def read(self) -> tuple[int, list[dict[str, object]]]:
        before = self.position
        samples: list[dict[str, object]] = []
        while len(samples) < _CHUNK_SAMPLES and self._member is not None:
            samples.append(self._sample())
            self.position = self._start
        return before, samples

    def close(self) -> None:
        self._tar.close()
        self._file.close()

    def _sample(self) -> dict[str, object]:
        assert self._member is not None
        key, _ = self._member
        sample: dict[str, object] = {"__key__": key}
        while self._member is not None and self._member[0] == key and self._member[1][0] not in sample:
            _, (extension, info) = self._member
            self._file.seek(info.offset_data)
            sample[extension] = self._file.read(info.size)
            self._member = self._next()
        return sample

    def _next(self) -> tuple[str, tuple[str, tarfile.TarInfo]] | None:
        """The next file that belongs to a sample: its key, and extension and place."""
        while True:
            self._start = self._tar.offset
            info = self._tar.next()
            self._tar.members.clear()  # tarfile would remember every member of the shard
            if info is None:
                return None
            match = _KEY.match(info.name) if info.isreg() else None
            if match is not None:
                return match[1], (match[2], info)
