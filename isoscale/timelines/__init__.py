"""A job's life as its event log tells it: executors, rescales, faults, curves. Pure."""
