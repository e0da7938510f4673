"""How fast and in how much memory `isoscale analyze` reads a cluster's logs, generated in the public format."""
