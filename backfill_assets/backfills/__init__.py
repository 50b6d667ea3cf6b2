"""Backfills: plans and their stages, what came of them, reconciliation, undo, verification."""
