"""Balanced Sparsity's claims: how fast packed weights are, and what the pattern costs in accuracy."""
