"""`make bench-peers`: other tools over the same landing, for the same three tables and truth."""
