"""Which days differ from their inputs, must be computed, can be, and are final."""
