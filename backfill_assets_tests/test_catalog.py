"""The catalog: what a run registers, and that no catalog breaks a publish."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from uuid import uuid4

import pytest

from backfill_assets.delta import catalog
from backfill_assets.doctor.data import _check_catalog
from backfill_assets.orders.tables import RAW, STAGED
from backfill_assets.settings import load_settings
from backfill_assets.spark.configuration import spark_config
from backfill_assets_tests.helpers.pipeline import Pipeline, order

ASSETS = (RAW.name, STAGED.name)


@pytest.fixture(autouse=True)
def _new_process() -> None:
    catalog._registered.clear()
    catalog._silent.clear()


@pytest.fixture
def schema(spark) -> Iterator[str]:
    """A schema that no other test has, in the catalog of the session."""
    name = f"shop_{uuid4().hex[:8]}"
    yield name
    spark.sql(f"DROP SCHEMA IF EXISTS spark_catalog.{name} CASCADE")


def load(pipeline: Pipeline, name: str = "a", assets: Sequence[str] = ASSETS) -> list[str]:
    """Load a line in a file of its own; what the run warns of the catalog."""
    pipeline.land(1, [order(name, 1)], f"{name}.jsonl")
    run = pipeline.run(1, 1, assets)
    logs = pipeline.instance.all_logs(run.run_id)
    return [entry.user_message for entry in logs if "catalog as" in entry.user_message]


def test_a_run_registers_its_tables_where_they_lie(engine, spark, tmp_path, schema):
    pipeline = Pipeline(engine, tmp_path, catalog=f"spark_catalog.{schema}")
    assert load(pipeline) == []
    assert {row.tableName for row in spark.sql(f"SHOW TABLES IN {schema}").collect()} == {*ASSETS}
    assert spark.table(f"{schema}.{STAGED.name}").count() == 1
    stored = spark._jsparkSession.sharedState().externalCatalog().getTable(schema, STAGED.name)
    assert stored.comment().get() == " ".join(STAGED.model.__doc__.split())
    described = spark.sql(f"DESCRIBE TABLE {schema}.{STAGED.name}").collect()
    comments = {row["col_name"]: row["comment"] for row in described}
    assert comments["amount"] == STAGED.columns["amount"].description
    # The log has our commits alone.
    operations = [entry["operation"] for entry in pipeline.log(STAGED.name).history()]
    assert {*operations} <= {"CREATE TABLE", "ADD CONSTRAINT", "WRITE"}
    assert [*_check_catalog(pipeline.deployment, spark)] == []

    # The next process registers what was dropped; readers see new rows and new columns.
    spark.sql(f"DROP TABLE {schema}.{STAGED.name}")
    catalog._registered.clear()
    assert load(pipeline, "b") == []
    assert spark.table(f"{schema}.{STAGED.name}").count() == 2
    spark.sql(f"ALTER TABLE delta.`{pipeline.warehouse / RAW.name}` ADD COLUMNS (more STRING)")
    assert "more" in spark.table(f"{schema}.{RAW.name}").columns


def test_a_name_that_points_elsewhere_stays_and_is_named(engine, spark, tmp_path, schema):
    elsewhere = tmp_path / "elsewhere"
    spark.sql(f"CREATE SCHEMA {schema}")
    name = f"{schema}.{STAGED.name}"
    spark.sql(f"CREATE TABLE {name} (n INT) USING DELTA LOCATION '{elsewhere}'")
    pipeline = Pipeline(engine, tmp_path, catalog=f"spark_catalog.{schema}")
    (warning,) = load(pipeline)
    assert f"{STAGED.name} is published, but it is not in the catalog as" in warning
    assert f"elsewhere, and the table is at {pipeline.warehouse / STAGED.name}" in warning
    (result,) = _check_catalog(pipeline.deployment, spark)
    assert str(elsewhere) in result.message
    assert f"DROP TABLE spark_catalog.{schema}.`{STAGED.name}`" in result.fix
    assert spark.table(name).columns == ["n"]


def test_a_catalog_that_fails_breaks_no_publish(engine, spark, tmp_path):
    pipeline = Pipeline(engine, tmp_path, catalog="nowhere.shop")
    (warning,) = load(pipeline, assets=[RAW.name])
    assert "The next run that publishes days of it tries again" in warning
    assert len(pipeline.rows(RAW.name)) == 1


def test_a_catalog_that_hangs_is_asked_once(monkeypatch):
    monkeypatch.setattr(catalog, "_PATIENCE", 0.1)
    monkeypatch.setattr(catalog, "_register", lambda *_: "late")
    ended = threading.Event()
    url = "/w/stg_orders"
    problem = catalog.register_table(lambda: ended.wait(60), "slow.shop", STAGED, url, "1")  # type: ignore[arg-type,return-value]
    assert problem.startswith("no answer within 0.1 s")
    assert catalog.register_table(lambda: 1 / 0, "slow.shop", STAGED, url, "1") == ""  # type: ignore[arg-type,return-value]
    # Another run of this process asks again.
    assert "division" in catalog.register_table(lambda: 1 / 0, "slow.shop", STAGED, url, "2")  # type: ignore[arg-type,return-value]
    ended.set()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, None), ({"catalog": "main.shop"}, None), ({"catalog": "spark_catalog.shop"}, "hive")],
)
def test_sparks_own_catalog_is_a_metastore_where_tables_are_registered(settings, expected):
    conf = spark_config(load_settings(**settings))
    assert conf.get("spark.sql.catalogImplementation") == expected
