"""Extensions of Dagster: executor, code server, retries, storage; all of its private names."""
