"""Checks of a deployment, part by part; they write and start nothing."""
