"""Spark and what it needs on a machine: sessions, Java and jars, servers, file systems."""
