"""Imports: an append-only table of somebody else's becomes landing files of a source, and goes on.

The table is read and never written. Audit, deduplication and publication are those of any load.
"""
