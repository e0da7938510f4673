"""Many jobs in virtual time: traces in, event logs out, driven by the same decisions as a live cluster."""
