"""What executors of different kinds lose by computing the same bits, over each kind at its own best."""
