"""Days: partitions, windows, how a person says them, reaches, and the late-data policy."""
