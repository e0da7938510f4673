"""The training API as a script sees it, in one process: job, loaders, state, snapshots.

Joins `core` and `data`. Never learns how many executors there are, and talks to nobody: facts go out through a `Sink`,
changes of executors come in through `Elastic`.
"""
