"""`python -m backfill_assets.code_server`: what `deployment` starts. See `dagster_ext.forking`."""

from backfill_assets.dagster_ext.forking import serve

if __name__ == "__main__":
    serve()
