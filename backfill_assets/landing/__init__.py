"""Landing files: listing, size limits, formats, and the manifest of what is loaded."""
