"""Subjects of the study: each takes a trace and gives figures for JSON and tables for people, or what is missing."""
