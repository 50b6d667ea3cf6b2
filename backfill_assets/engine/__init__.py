"""Spark and what it needs on a machine: the session, Java and jars, servers, file systems."""
