"""The audit: measure each day of a frame in one aggregation, judge it, show it as checks."""
