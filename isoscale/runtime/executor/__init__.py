"""One process per device that runs the user's script as a member of the job.

`process` is its life, `member` its side of the rescale protocol. Decides nothing about who trains.
"""
