"""Which days are behind their inputs, and which of them may change."""
