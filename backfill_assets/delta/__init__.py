"""Delta tables: their log as ledgers of days, commits, versions, maintenance."""
