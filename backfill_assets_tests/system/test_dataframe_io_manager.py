"""Ordinary Dagster assets that return a DataFrame: audited and published day by day."""

import warnings
from collections.abc import Mapping
from datetime import date, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import dagster as dg
import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from deltalake import DeltaTable
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, build_defs, delta_io_manager, load_settings, publishes, table
from backfill_assets.calendar.partitions import Grain
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.deployment import IO_MANAGER_KEY
from backfill_assets.orders.tables import FACT
from backfill_assets.publish.io_manager import MODEL, tables_of_assets
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.pipeline import START, Pipeline, day, order
from backfill_assets_tests.own_tables import my_asset

DAYS = dg.DailyPartitionsDefinition(str(START), end_date=str(day(31)))


class Visits(pa.DataFrameModel):
    """Visits of a page."""

    visited: T.DateType = Field(description="The day.")
    page: T.StringType = Field(description="The page.")
    visits: T.LongType = Field(ge=0, description="How many.")


class Spread(pa.DataFrameModel):
    """Customers by day."""

    run_date: T.DateType = Field(description="The day.")
    customers: T.LongType = Field(description="How many had orders.")


OF_PAGE = {"partition": "visited", "key": ["page"], "totals": ["visits"]}
VISITS = publishes(Visits, **OF_PAGE)
#: The day that is wrong, and how.
BAD: dict[date, str] = {}


def asset(metadata, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # of the backfill policy
        return dg.asset(
            partitions_def=DAYS,
            backfill_policy=dg.BackfillPolicy.single_run(),
            metadata=metadata,
            **more,
        )


@asset(VISITS, required_resource_keys={"engine"})
def page_visits(context: dg.AssetExecutionContext) -> DataFrame:
    spark = context.resources.engine.spark_session
    rows = []
    for key in context.partition_keys:
        wrong = BAD.get(date.fromisoformat(key))
        rows += [(key, "home" if wrong == "twice" else page, 7) for page in ("home", "shop")]
        if wrong == "stray":
            rows.append((str(START - timedelta(days=9)), "home", 1))
    frame = spark.createDataFrame(rows, "visited STRING, page STRING, visits BIGINT")
    return frame.withColumn("visited", F.col("visited").cast("date"))


@asset(publishes(Spread, partition="run_date", key=[]))
def customers_a_day(fact_daily_orders: DataFrame) -> DataFrame:
    return fact_daily_orders.groupBy("run_date").agg(F.count("*").alias("customers"))


@asset(VISITS)
def home_visits(page_visits: DataFrame) -> DataFrame:
    return page_visits.where("page = 'home'")


@asset(VISITS, required_resource_keys={"engine"})
def forgotten(context: dg.AssetExecutionContext) -> DataFrame:
    return context.resources.engine.spark_session.range(1)


@asset(VISITS, required_resource_keys={"engine"})
def slow_visits(context: dg.AssetExecutionContext) -> DataFrame:
    spark = context.resources.engine.spark_session
    rows = f"'home' AS page, 1L AS visits, DATE'{context.partition_key}' AS visited"
    return spark.range(1).selectExpr(*rows.split(", ")).where(f"{SLEPT} = 'null'")


#: Work that is done once, as the rows are kept for the write.
SLEPT = "reflect('java.lang.Thread', 'sleep', 700L)"
ASSETS = [page_visits, home_visits, customers_a_day, slow_visits]


class Plain:
    """The assets in definitions of somebody's own."""

    def __init__(self, engine, settings):
        self.settings = settings
        self.instance = dg.DagsterInstance.ephemeral()
        # A table of merged definitions has an IO manager of its own.
        facts = dg.AssetSpec(FACT.name, partitions_def=DAYS).with_io_manager_key(IO_MANAGER_KEY)
        self.defs = dg.Definitions(
            assets=[*ASSETS, forgotten, facts],
            resources={
                "engine": engine,
                "io_manager": delta_io_manager(settings, ASSETS, engine),
                IO_MANAGER_KEY: build_defs(settings, engine=engine).resources[IO_MANAGER_KEY],
            },
        )

    def run(
        self,
        name: str,
        first: int,
        last: int,
        *,
        fails: bool = False,
        backfill: str = "",
        tags: Mapping[str, str] = MappingProxyType({}),
    ):
        job = self.defs.get_repository_def().get_implicit_global_asset_job_def()
        result = job.execute_in_process(
            instance=self.instance,
            asset_selection=[dg.AssetKey(name)],
            tags={
                "dagster/asset_partition_range_start": str(day(first)),
                "dagster/asset_partition_range_end": str(day(last)),
                **({"dagster/backfill": backfill} if backfill else {}),
                **tags,
            },
            raise_on_error=False,
        )
        assert result.success is not fails
        return result

    def ledger(self, name):
        return read_ledger(self.settings.table(name), tables_of_assets(ASSETS)[name])

    def materializations(self, name):
        records = self.instance.fetch_materializations(dg.AssetKey(name), limit=1000).records
        return [r.asset_materialization for r in records]


@pytest.fixture
def plain(engine, tmp_path):
    BAD.clear()
    settings = load_settings(warehouse=str(tmp_path / "warehouse"), start=START, end=day(31))
    return Plain(engine, settings)


def failure_message(result) -> str:
    (event,) = (e for e in result.all_events if e.is_step_failure)
    failure_data = event.step_failure_data
    return str(
        failure_data.user_failure_data.description
        if failure_data.user_failure_data
        else failure_data.error
    )


def test_29_of_30_days_are_published_with_a_verdict_each(plain):
    BAD[day(17)] = "twice"
    result = plain.run("page_visits", 1, 30, fails=True)
    message = failure_message(result)
    assert f"page_visits[{day(17)}]  unique_key" in message
    rows = DeltaTable(plain.settings.table("page_visits")).to_pyarrow_table().to_pylist()
    assert {row["visited"] for row in rows} == {day(n) for n in range(1, 31)} - {day(17)}
    materializations = plain.materializations("page_visits")
    assert len(materializations) == 29, "one for each day, and none of Dagster's own"
    assert {m.metadata["outcome"].value for m in materializations} == {"written"}
    assert all(m.tags["dagster/data_version"] for m in materializations)
    events = (e for e in result.all_events if e.event_type_value == "ASSET_CHECK_EVALUATION")
    judged = [e.asset_check_evaluation_data for e in events]
    assert {e.partition for e in judged} == set(DAYS.get_partition_keys())
    failed = {(e.partition, e.check_name) for e in judged if not e.passed}
    assert failed == {(str(day(17)), "unique_key")}
    ledger = plain.ledger("page_visits")
    assert ledger.published_days == {row["visited"] for row in rows}

    BAD.clear()
    plain.run("page_visits", 17, 17)
    assert len(plain.ledger("page_visits").published_days) == 30


def test_days_are_computed_each_time_and_written_where_they_differ(plain):
    plain.run("page_visits", 1, 3)
    before = plain.ledger("page_visits")
    plain.run("page_visits", 1, 3)
    after = plain.ledger("page_visits")
    (first, second) = after.records
    assert first.written_days == {day(1), day(2), day(3)}
    assert second.written_days == frozenset()
    assert {d: after.content_key(d) for d in after.published_days} == {
        d: before.content_key(d) for d in before.published_days
    }


def test_of_days_with_gaps_these_alone_are_published(plain):
    """Although the asset returns rows of all days of the range."""
    plain.run("page_visits", 1, 5)
    days = {day(1), day(4), day(5)}
    tags = Grain.DAILY.run_tags(days)
    result = plain.run("home_visits", 1, 5, tags=tags)
    assert plain.ledger("home_visits").published_days == days
    checks = result.get_asset_check_evaluations()
    assert {check.partition for check in checks} == {*map(str, days)}
    before = plain.ledger("page_visits").records
    plain.run("page_visits", 1, 5, tags={**tags, REWRITE_TAG: "true"})
    assert plain.ledger("page_visits").records[-1].written_days == days
    assert len(before) == 1


def test_rows_outside_of_the_run_are_refused(plain):
    BAD[day(2)] = "stray"
    assert "RefusedError" in failure_message(plain.run("page_visits", 1, 3, fails=True))
    assert plain.ledger("page_visits").version is None


def test_an_asset_that_the_io_manager_does_not_know_is_refused_with_the_way(plain):
    message = failure_message(plain.run("forgotten", 1, 1, fails=True))
    assert "forgotten: the IO manager does not know this asset. Nothing was written" in message
    assert "delta_io_manager(settings, [forgotten, ...])" in message


def declare_asset(
    partitions: dg.PartitionsDefinition | None, metadata: Mapping[str, Any] = VISITS
) -> dg.AssetsDefinition:
    @dg.asset(partitions_def=partitions, metadata=metadata)
    def visits_of_shops() -> DataFrame: ...

    return visits_of_shops


REGIONS = dg.StaticPartitionsDefinition(["eu", "us"])


@pytest.mark.parametrize(
    "partitions",
    [
        dg.MultiPartitionsDefinition({"day": DAYS, "region": REGIONS}),
        REGIONS,
        dg.DynamicPartitionsDefinition(name="shops"),
        dg.HourlyPartitionsDefinition("2024-01-01-00:00"),
        dg.WeeklyPartitionsDefinition("2024-01-01"),
        dg.MonthlyPartitionsDefinition("2024-01-01"),
        dg.DailyPartitionsDefinition("01.01.2024", fmt="%d.%m.%Y"),
        None,
    ],
    ids=lambda partitions: type(partitions).__name__,
)
def test_other_partitions_than_days_are_refused_when_the_definitions_load(partitions):
    assets_def = declare_asset(partitions)
    kind = type(partitions).__name__ if partitions else "no partitions"
    for definition in (assets_def, *assets_def.specs):
        with pytest.raises(DeclarationError) as refused:
            delta_io_manager(load_settings(), [definition])
        text = str(refused.value)
        assert f"visits_of_shops: the asset has {kind}" in text
        assert "one commit replaces a day of a table, for all regions" in text
        assert "Partition it by day alone, and put the others into the key" in text


def test_an_asset_without_a_model_is_refused_when_the_definitions_load():
    said = r"visits_of_shops: the asset has no .* Add metadata=publishes\(Model, partition="
    for metadata in ({}, {MODEL: Visits}):
        with pytest.raises(DeclarationError, match=said):
            delta_io_manager(load_settings(), [declare_asset(DAYS, metadata)])


class Outdated(Visits):
    """With the options in the model, where they are no longer read."""

    class Config:
        metadata: ClassVar = {"partition": "visited", "key": ["page"], "owner": "shops"}


def test_options_in_a_model_are_refused_with_the_call_to_write():
    said = (
        r"write {}\(Outdated, partition='visited', key=\['page'\]\), and take it out of the model"
    )
    with pytest.raises(DeclarationError, match=said.format("publishes")):
        publishes(Outdated, partition="visited")
    with pytest.raises(DeclarationError, match=said.format("metadata=publishes")):
        delta_io_manager(load_settings(), [declare_asset(DAYS, {MODEL: Outdated})])


@pytest.mark.parametrize(
    ("partition", "said"),
    [
        (
            ["visited", "page"],
            r"\['visited', 'page'\]: give the column of the day",
        ),
        (None, "partition is None: give the column of the day"),
        ("month", "partition is 'month', which is no column"),
        ("page", "the partition column page is a string, not a date. A run publishes whole days"),
    ],
)
def test_a_table_of_two_dimensions_is_refused_when_it_is_declared(partition, said):
    options = {**OF_PAGE, "partition": partition}
    with pytest.raises(DeclarationError, match=f"home: .*{said}"):
        Table("home", Visits, **options)
    with pytest.raises(DeclarationError, match=f"visits_of_shops: .*{said}"):
        delta_io_manager(load_settings(), [declare_asset(DAYS, publishes(Visits, **options))])

    def by_region(orders: Annotated[DataFrame, Reads(FACT)]) -> DataFrame: ...

    by_region.__qualname__ = by_region.__name__
    with pytest.raises(DeclarationError, match=f"by_region: .*{said}"):
        table(Visits, **options)(by_region)


def test_bounds_of_columns():
    class Bounded(Visits):
        visits: T.LongType = Field(ge=0, gt=-1, lt=10, le=9)

    assert {*Table("home", Bounded, **OF_PAGE).check_constraints.values()} == {
        f"visits {bound}" for bound in (">= 0", "> -1", "< 10", "<= 9")
    }


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"skew": {"month": 0.2}}, "skew of month, which is no column of it that can be a key"),
        ({"skew": {"page": 20}}, "skew of 'page' is 20: give a share between 0 and 1"),
        ({"drift": {"page": 0.2}}, "drift of page, which is no number and no boolean column"),
        ({"rules": {"a b": ("visits > 0", "Some.")}}, "a rule cannot be named 'a b'"),
    ],
)
def test_what_cannot_be_watched_is_refused(wrong, said):
    metadata = publishes(Visits, **OF_PAGE, **wrong)
    with pytest.raises(DeclarationError, match=f"visits_of_shops: .*{said}"):
        delta_io_manager(load_settings(), [declare_asset(DAYS, metadata)])


def test_a_day_that_lacks_its_input_is_not_published(engine, tmp_path):
    pipeline = Pipeline(engine, tmp_path)
    for n in (1, 2, 3):
        pipeline.land(n, [order(f"o{n}", n), order(f"p{n}", n, customer="c2")])
    pipeline.run(1, 3)
    plain = Plain(engine, pipeline.settings)
    message = failure_message(plain.run("customers_a_day", 1, 4, fails=True))
    assert (
        f"customers_a_day[{day(4)}]  conservation: fact_daily_orders[{day(4)}] has never" in message
    )
    rows = DeltaTable(plain.settings.table("customers_a_day")).to_pyarrow_table().to_pylist()
    assert {row["run_date"]: row["customers"] for row in rows} == dict.fromkeys(
        (day(1), day(2), day(3)), 2
    )
    (record,) = plain.ledger("customers_a_day").records
    assert record.inputs[FACT.name] == pipeline.log(FACT.name).version()


def test_one_backfill_builds_an_asset_and_the_one_that_reads_it(plain):
    plain.run("page_visits", 1, 3, backfill="together")
    plain.run("home_visits", 1, 3, backfill="together")
    rows = DeltaTable(plain.settings.table("home_visits")).to_pyarrow_table().to_pylist()
    assert {(row["visited"], row["page"]) for row in rows} == {(day(n), "home") for n in (1, 2, 3)}


def test_the_times_of_tasks_are_those_of_the_audit_as_well(plain):
    plain.run("slow_visits", 1, 1)
    (materialization,) = plain.materializations("slow_visits")
    assert materialization.metadata["longest_task_seconds"].value >= 0.7


def test_the_asset_of_the_page(engine, tmp_path):
    dg.Definitions.validate_loadable(my_asset.DEFINITIONS)
    pipeline = Pipeline(engine, tmp_path, tables="my_asset:TABLES")
    amounts = {"c1": "101.00", None: "102.00", "c2": "100.00"}
    pipeline.land(1, [order(f"o{c}", 1, amount, c) for c, amount in amounts.items()])
    pipeline.run(1, 1, ["raw_orders", "stg_orders", my_asset.customer_spend_7d.name])
    settings, assets = pipeline.settings, [my_asset.big_spenders]
    resources = {"io_manager": delta_io_manager(settings, assets, engine)}
    definitions = dg.Definitions.merge(
        build_defs(settings, engine=engine), dg.Definitions(assets=assets, resources=resources)
    )
    job = definitions.get_repository_def().get_implicit_global_asset_job_def()
    ends = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
    job.execute_in_process(
        instance=pipeline.instance,
        asset_selection=[dg.AssetKey("big_spenders")],
        tags=dict.fromkeys(ends, str(day(1))),
    )
    rows = {(row["customer_id"], row["spend"]) for row in pipeline.rows("big_spenders")}
    assert rows == {("c1", Decimal("101.00")), ("unknown", Decimal("102.00"))}
