"""Sample landing data; the pipeline does not need it."""
