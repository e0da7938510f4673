"""Decisions: which job gets which devices, and how a job spreads over them. Pure functions, NumPy only."""
