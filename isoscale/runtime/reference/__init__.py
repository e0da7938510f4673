"""The training API over stock DistributedDataParallel, one process per logical worker: what `verify` compares with.

A second implementation on purpose: shares no code of the elastic path, only types.
"""
