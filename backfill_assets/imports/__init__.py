"""Imports: an append-only table of another system becomes landing files of a source.

The table is read and never written. Audit, deduplication and publication are those of any load.
"""
