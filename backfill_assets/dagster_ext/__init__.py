"""What extends Dagster: executor, launcher, retries, storage; and all of its private names."""
