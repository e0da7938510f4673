"""Which sample, when: a function of seed, epoch and logical identity, never of placement."""
