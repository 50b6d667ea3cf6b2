"""Days, weeks and months: partitions, half-open windows, reaches, the late-data policy."""
