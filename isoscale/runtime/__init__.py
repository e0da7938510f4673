"""One job, many processes: the training API, executors, the coordinator, the reference."""
