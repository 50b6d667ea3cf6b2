"""Serving a deployment: its processes, web server, launcher of runs, and Spark servers."""
