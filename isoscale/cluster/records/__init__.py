"""What a run's directory tells, read as it grows: series, timeline, events, comparisons. Knows no service."""
