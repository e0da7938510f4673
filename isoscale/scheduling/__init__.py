"""Decisions: who gets which devices, and how one job spreads over them. Pure; no torch, no I/O, no clock."""
