"""Times of traces as seconds: wall clocks without a zone, and the zones that some write behind them."""

from __future__ import annotations

import math
from datetime import datetime

__all__ = ["EPOCH", "NOTHING", "seconds"]

#: second 0 of every trace with dates; a wall clock is taken as it stands, whatever its zone
EPOCH = datetime(1970, 1, 1)
#: ways of writing that there is no time
NOTHING = frozenset({"", "None", "NA", "null", "nan", "NaT"})


def seconds(text: str) -> float:
    """Seconds of the wall clock; NaN for nothing. Raises ValueError for what is no time.

    A zone is dropped: PDT and PST, +08:00. Files of one cluster share one, and submissions are compared with starts.

    >>> seconds("1970-01-02 00:00:10"), seconds("1970-01-02 00:00:10 PDT"), seconds("1970-01-02 00:00:10+08:00")
    (86410.0, 86410.0, 86410.0)
    """
    text = text.strip()
    if text in NOTHING:
        return math.nan
    if len(text) > 20 and text[19] == " " and text[20:].isalpha():
        text = text[:19]
    if len(text) < 19 or len(text) > 40:
        raise ValueError(text)
    return (datetime.fromisoformat(text).replace(tzinfo=None) - EPOCH).total_seconds()
