"""`python -m backfill_assets.code_server`, started by `dagster_ext.supervisor`."""

from backfill_assets.dagster_ext.code_server import run_code_server

if __name__ == "__main__":
    run_code_server()
