"""Spark: sessions, clients of servers, Java, jars, file systems."""
