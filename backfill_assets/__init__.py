"""Daily-partitioned Dagster assets on PySpark and Delta Lake; nothing is wired up on import."""
