"""Reads event logs, of real runs and simulated ones, and shows them: timelines, figures, pages. Writes no log."""
