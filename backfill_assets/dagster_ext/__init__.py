"""Extensions of Dagster: executor, launcher, retries, storage; all of its private names."""
