"""Tests that fail when what users rely on changes; the snapshots are in `__snapshots__`."""
