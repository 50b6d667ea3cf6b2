"""What teaches: examples of pipelines, labs that show one mistake each, drills of outages."""
