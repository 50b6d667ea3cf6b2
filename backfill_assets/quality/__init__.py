"""The audit of days before they are published, and how Dagster shows it."""
