"""Tests that fail when what users rely on changes; snapshots in `__snapshots__`."""
