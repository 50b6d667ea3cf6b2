"""What `make drill` and `make soak` do to a deployment."""
