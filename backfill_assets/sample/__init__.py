"""Landing data to try the pipeline on; nothing that the pipeline itself needs to run."""
