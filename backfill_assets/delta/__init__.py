"""Delta tables: the log as ledgers of days, commits, versions, migrations, maintenance."""
