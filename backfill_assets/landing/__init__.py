"""Landed files: what lies in the folders, and their lines as fields of text."""
