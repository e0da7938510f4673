"""What a job loses when executors come, go, die, are slow or many, and when it writes checkpoints.

Real `isoscale run`s, driven from outside; `gaps` has torchrun elastic and torchft do the same.
"""
