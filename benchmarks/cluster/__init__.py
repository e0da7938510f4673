"""The cluster service at work: how soon jobs start, move and leave, what the service itself takes, how near the
simulator comes to it, and training beside an inference server."""
