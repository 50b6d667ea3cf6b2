"""Backfills: plan, stages, state, history, reconcile, verify, undo, export."""
