"""Declarations of sources and tables, and what follows from them as a whole."""
