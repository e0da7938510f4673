"""What the integrations cost beside the classes that they take the place of."""
