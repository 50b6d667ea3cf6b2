"""Lookups: requests to HTTP services, their shared quota, and the cache of answers."""
