"""A run's code: kept at its start, served to every process of the run, compared where it cannot be kept.

`roots` and `collect` find it, `store` keeps it in the run's directory, `hook` serves it in a process, `launch` starts a
script so, `imports` hashes what else was imported, `first_seen` compares that. No torch, nothing of the coordinator.
"""
