"""The orders pipeline: a source, the facts that are made of it, and the list of all its tables."""
