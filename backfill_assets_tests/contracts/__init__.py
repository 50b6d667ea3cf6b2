"""Tests that fail when what users and their scripts rely on changes."""
