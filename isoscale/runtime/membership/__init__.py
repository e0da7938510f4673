"""Who trains in which generation: the rescale protocol, sans I/O.

Events in, instructions out. Knows no clock, no socket, no process and no thread; imports nothing else of `runtime`.
`state_machine` is the table of events by phases: it says what follows. `rescaling` does it, upon `generations`. Each
other module holds one piece of state or one rule.
"""
