"""What isoscale would cost on ten to ten thousand executors, and how much of its time a job trains while devices fail.

Messages and bytes are counted by driving the real state machines of both sides; processor times are measured here; what
this machine cannot have, a network and ten thousand devices, is a model that says so. The page is docs/scale.md.
"""
