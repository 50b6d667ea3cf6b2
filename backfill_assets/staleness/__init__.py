"""Stale days: which days differ from their inputs, and which may still change."""
