"""A Dagster project with an IO manager, an executor and assets of its own, and tables in it."""
