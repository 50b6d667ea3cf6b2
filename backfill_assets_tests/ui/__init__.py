"""The project as a person meets it: in Dagster's own pages."""
