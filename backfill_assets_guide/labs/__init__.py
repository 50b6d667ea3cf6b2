"""Labs: small experiments, each with one mistake and its result, on their own tables."""
