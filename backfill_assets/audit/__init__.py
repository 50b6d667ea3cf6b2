"""Audit: measure each day of a frame, judge it, and show the verdict as asset checks."""
