"""How executor processes are started. Launches by command line; knows nothing of training."""
