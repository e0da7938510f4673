"""What the state machine that decides a job's membership costs as executors become many; no processes, no network."""
