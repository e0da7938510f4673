"""isoscale on a Ray cluster: beside Ray Train on the same nodes, and beside itself without Ray."""
