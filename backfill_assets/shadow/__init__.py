"""Shadow backfills: build tables beside production, compare them, switch, and undo a switch."""
