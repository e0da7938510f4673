"""Other systems that `elastic.gaps` runs beside isoscale: their training scripts, and their environments.

Scripts train the same model and write down the same lines. What it takes to make the peers work is in README.md here.
"""
