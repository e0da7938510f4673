"""Where the samples of a stream come from: sources, which are cut into partitions, and readers, which read one.

A source must show the same partitions, and a partition the same samples, whenever and wherever it is opened.
"""

from __future__ import annotations

from isoscale.data.readers.source import Position, Reader, Source, is_source

__all__ = ["Position", "Reader", "Source", "is_source"]
