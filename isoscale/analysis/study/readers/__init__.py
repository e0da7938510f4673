"""Readers of traces, one module per format, and what they share. `study.formats` lists them."""
