"""The catalog: registers tables under names where they lie, by Spark's SQL.

A registration is a name, a location and a comment. Columns and their comments stay in the Delta
log, which whoever reads the name reads as well: a schema change needs no other registration.
"""

from threading import Thread

from pyspark.sql import SparkSession

from backfill_assets.delta.table_schema import SessionFactory, escape_sql
from backfill_assets.settings import normalize_location
from backfill_assets.spark.session import first_error_line
from backfill_assets.tables.table import Table

#: Seconds to wait for a catalog, which may be a server that does not answer.
_PATIENCE = 30.0
#: What this process has registered: locations by name. And the catalogs that did not answer a run.
_registered: dict[str, str] = {}
_silent: set[tuple[str, str]] = set()


def register_table(
    session: SessionFactory, catalog: str, table: Table, url: str, run_id: str
) -> str:
    """Register a table, unless this process has, or the catalog was silent in this run.

    Returns:
        What went wrong; empty if the name is registered with this location.
    """
    name = f"{catalog}.{table.asset_name}"
    if _registered.get(name) == url or (catalog, run_id) in _silent:
        return ""
    results: list[str] = []

    def register() -> None:
        try:
            results.append(_register(session(), catalog, table, url))
        except Exception as error:  # noqa: BLE001 - no publish may fail with a catalog
            results.append(first_error_line(error))

    # A daemon thread: a call that hangs must not keep the process alive.
    thread = Thread(target=register, name="catalog", daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    if not results:
        _silent.add((catalog, run_id))
        return f"no answer within {_PATIENCE:g} s, and this run does not ask again"
    if not results[0]:
        _registered[name] = url
    return results[0]


def _register(spark: SparkSession, catalog: str, table: Table, url: str) -> str:
    name = f"{catalog}.`{table.asset_name}`"
    if problem := misplaced(spark, name, url):
        return problem
    if not spark.catalog.tableExists(name):
        if not spark.catalog.databaseExists(catalog):
            spark.sql(f"CREATE SCHEMA IF NOT EXISTS {catalog}")
        comment = " ".join((table.model.__doc__ or "").split())
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {name} USING DELTA COMMENT '{escape_sql(comment)}' "
            f"LOCATION '{escape_sql(url)}'"
        )
    return ""


def misplaced(spark: SparkSession, name: str, url: str) -> str:
    """Where a name is registered, if that is not this location; empty if it is, or is not."""
    if not spark.catalog.tableExists(name):
        return ""
    details = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    # After the columns, one of which may have this name as well.
    places = [row["data_type"] for row in details if row["col_name"] == "Location"]
    place = places[-1] if places else "no location"
    try:
        is_same = normalize_location(place).rstrip("/") == url.rstrip("/")
    except ValueError:
        is_same = False
    return "" if is_same else f"{name} is registered at {place}, and the table is at {url}"
