"""Examples: pipelines of other sources than orders, to read and to copy."""
