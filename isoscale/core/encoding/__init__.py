"""State as bytes and as digests: nested values and tensors to one block and back, without pickle."""
