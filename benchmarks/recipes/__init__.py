"""The recipes: proofs against stock DDP, whether they learn, what their steps cost, and the tables of docs/recipes.md.

Rows are kept as they come, so a run that was broken off goes on.
"""
