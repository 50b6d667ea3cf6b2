"""Days and weeks: partitions, half-open windows, reaches, the late-data policy."""
