"""Trainers that people already use, with loops that run on logical workers: one package per library."""
