"""Whether McMisP-style guidance, attention guided by counts of words that go together, helps pre-training."""
