"""The queue, or a day of it, under other policies: the simulator in a process of its own, bounded in every way."""
