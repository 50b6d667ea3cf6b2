"""The write path: what an asset hands over is compared, computed, audited and committed."""
