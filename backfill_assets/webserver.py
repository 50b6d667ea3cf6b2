"""`python -m backfill_assets.webserver`, started by `dagster_ext.supervisor`."""

from backfill_assets.dagster_ext.webserver import serve

if __name__ == "__main__":
    serve()
