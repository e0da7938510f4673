"""Checkpoints as files: what one is called, what must agree for it to count, how it is written and read whole.

When one is written is `executor.checkpoint_writer`'s affair, which of them count `coordinator.checkpoint_book`'s.
"""
