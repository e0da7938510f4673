"""Classes of failures, as the study shows them: those by which schedulers decide about retries."""

from __future__ import annotations

from isoscale.scheduling.failures import (
    CLASSES,
    NO_SIGNATURE,
    FailureClass,
    Origin,
    classify,
    should_retry,
)

__all__ = ["CLASSES", "NO_SIGNATURE", "FailureClass", "Origin", "classify", "should_retry"]
