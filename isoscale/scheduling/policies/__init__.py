"""Every policy; importing this package registers them all."""

from __future__ import annotations

from isoscale.scheduling.policies import autoscaling, deadline, easyscale, fifo, flow, optimus, pollux, rigid, tiresias

__all__ = ["autoscaling", "deadline", "easyscale", "fifo", "flow", "optimus", "pollux", "rigid", "tiresias"]
