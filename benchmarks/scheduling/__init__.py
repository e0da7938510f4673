"""How long scheduling decisions take: CPU time of the pure deciders."""
