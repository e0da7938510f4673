"""The stories that `scripts/demo` tells: one job to which things happen, and three jobs that share devices."""
