"""The write path: which days differ, compute them, audit them, one commit."""
