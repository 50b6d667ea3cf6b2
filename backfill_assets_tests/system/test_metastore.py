"""Tables in a Hive metastore: registered on a Spark Connect server, read by an embedded engine."""

from __future__ import annotations

import json

from backfill_assets.orders.tables import FACT
from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers.command_line import JAN, publish_facts
from backfill_assets_tests.helpers.connect_server import connect_server, run_attached

CATALOG = "spark_catalog.shop"
CODE = """
from backfill_assets.delta.catalog import register_table
from backfill_assets.orders.tables import FACT
print(register_table(lambda: spark, "{catalog}", FACT, "{url}") or "registered")
print(spark.table("shop.fact_daily_orders").count())
"""


def test_a_metastore_outlives_the_server_that_registered(tmp_path):
    publish_facts(tmp_path, dict.fromkeys(JAN[:3], "ok"))
    code = CODE.format(catalog=CATALOG, url=tmp_path / "warehouse" / FACT.name)
    database = f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true"
    conf = {
        **SMALL,
        "spark.hadoop.javax.jdo.option.ConnectionURL": database,
        "spark.sql.warehouse.dir": str(tmp_path / "schemas"),
    }
    with connect_server(tmp_path, conf, catalog=CATALOG) as server:
        assert run_attached(server, code) == ["registered", "6"]
    # Derby is of one process at a time.
    read = "print(spark.table('shop.fact_daily_orders').count())\n" + code
    environment = {
        "SPARK_REMOTE": "",
        "BACKFILL_ASSETS_CATALOG": CATALOG,
        "BACKFILL_ASSETS_SPARK_CONF": json.dumps(conf),
    }
    assert run_attached("", read, **environment) == ["6", "registered", "6"]
