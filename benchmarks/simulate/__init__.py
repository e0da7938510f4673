"""Cluster schedulers in virtual time: published results reproduced, policies compared, and how fast the simulator is.

CPU time and results of simulations only; no training. Public traces are named by `--data` (see `tools`).
"""
