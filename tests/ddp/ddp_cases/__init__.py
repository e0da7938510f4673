"""Training functions in which stock DDP has a corner, by subject. Importing the package fills `CASES`."""

from ddp_cases import basics, buffers, data, gradients, models, numerics, progress
from ddp_cases.toolkit import CASES, Case

__all__ = ["CASES", "Case", "basics", "buffers", "data", "gradients", "models", "numerics", "progress"]
