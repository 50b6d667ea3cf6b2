"""`python -m backfill_assets.webserver`: what `deployment` starts. See `dagster_ext.webserver`."""

from backfill_assets.dagster_ext.webserver import serve

if __name__ == "__main__":
    serve()
