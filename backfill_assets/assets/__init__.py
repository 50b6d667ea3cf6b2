"""The Dagster assets of each layer, their jobs and IO: thin code around pure transforms."""
