"""The cluster service at work: how soon jobs start, move and leave, and what the service itself takes."""
