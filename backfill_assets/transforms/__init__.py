"""Pure functions of DataFrames: latest versions, joins in time, histories, windows."""
