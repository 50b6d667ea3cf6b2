"""Asking services over HTTP: their shared quota, the calls, and the answers that are kept."""
