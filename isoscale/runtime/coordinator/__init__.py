"""One process per job that serves the control socket, starts and watches executors and keeps the log.

`shell` performs what `membership` says. Takes no part in training, imports no torch.
"""
