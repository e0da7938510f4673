"""How a job is reached: the control directory, the control socket, and both ends of a connection.

Knows who may come in and how messages travel; not what they mean, and not who trains.
"""
