"""`python -m backfill_assets.code_server`: what `deployment` starts. See `dagster_ext.forking`."""

from backfill_assets.dagster_ext.code_server import run_code_server

if __name__ == "__main__":
    run_code_server()
