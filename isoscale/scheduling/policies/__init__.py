"""Every policy; importing this package registers them all."""

from __future__ import annotations

from isoscale.scheduling.policies import fifo, optimus, rigid, tiresias

__all__ = ["fifo", "optimus", "rigid", "tiresias"]
