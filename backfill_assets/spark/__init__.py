"""Spark: sessions, servers, Java, jars, file systems."""
