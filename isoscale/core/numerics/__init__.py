"""What decides the bits of a process: determinism switches, accuracy-relevant factors, the numeric fingerprint."""
