"""The assets, a module a layer: a pure transform of DataFrames and the thin asset around it."""
