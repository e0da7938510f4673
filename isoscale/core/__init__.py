"""One process, one step: logical workers, their gradients, and the arithmetic that joins them."""
