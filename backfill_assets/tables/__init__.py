"""Declarations of sources and tables, their graph, and their code versions."""
