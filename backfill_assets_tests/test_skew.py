"""Skew: what is recorded of a day, and what a plan says of it."""

from __future__ import annotations

from typing import Annotated, Any

import dagster as dg
import msgspec
import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from pandera.pyspark import Field
from pyspark.sql import DataFrame

from backfill_assets import Reads, Source, nullable_column, table
from backfill_assets.audit.profile import count_values
from backfill_assets.backfills.backfill_plan import (
    BackfillPlan,
    BackfillRequest,
    Skew,
    find_skews,
    plan_facts,
)
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.records import CommitRecord, ExternalCommit
from backfill_assets.orders.tables import STAGED, OrderLine
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.spark import tasks as module
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.invented_logs import days, ledger, record
from backfill_assets_tests.helpers.pipeline import Pipeline, day, make_plan, order


class Visit(pa.DataFrameModel):
    """A visit."""

    run_date: T.DateType = Field(description="Day.")
    shop: T.LongType = nullable_column(1.0, 1.0, "Where.")
    customer: T.StringType = nullable_column(1.0, 1.0, "Whose.")


VISITS = Table("visits", Visit, partition="run_date", key=[], skew={"customer": 0.2, "shop": 0.5})


def test_the_rows_of_the_most_frequent_key_are_counted_by_day(spark):
    rows = [
        *[(day(1), 1, "a")] * 3,
        *[(day(1), 2, None)] * 4,
        (day(1), None, "b"),
        *[(day(2), None, None)] * 2,
        (day(3), 7, ""),
    ]
    frame = spark.createDataFrame(rows, VISITS.struct_type)
    names = "most rows of one customer", "most rows of one shop"
    days = [day(1), day(2), day(3), day(4)]
    assert count_values(frame, [VISITS], days, (), VISITS.skew)[""].most_rows == {
        day(1): dict(zip(names, (3, 4), strict=True)),
        day(2): dict(zip(names, (0, 0), strict=True)),
        day(3): dict(zip(names, (1, 1), strict=True)),
        day(4): dict(zip(names, (0, 0), strict=True)),
    }
    assert count_values(frame, [STAGED], [day(1)], (), ())[""].most_rows == {}, (
        "nobody asked for it"
    )


def with_key_counts(commit_record: CommitRecord, most: int, nulls: int) -> CommitRecord:
    """A commit that says so of each of its days."""
    counted_days = {
        day_key: msgspec.structs.replace(
            day_record, numbers={"most rows of one customer": most}, nulls={"customer": nulls}
        )
        for day_key, day_record in commit_record.days.items()
    }
    return msgspec.structs.replace(commit_record, days=counted_days)


def find_skew(*commits: CommitRecord, external=(), read=(1, 9)) -> list[Skew]:
    visits = ledger(VISITS, *commits, external=external)
    return [*find_skews([("visits", days(read)), ("visits", days(read))], {"visits": visits})]


def test_a_plan_says_which_inputs_are_skewed():
    even = with_key_counts(record(1, days((1, 4)), rows=100), 20, 20)
    hot = with_key_counts(record(2, days(2), rows=100), 60, 20)
    nulls = with_key_counts(record(3, days(4), rows=100), 1, 30)
    assert find_skew(even) == [], "a share that is not above is not told"
    (skew,) = find_skew(even, hot)
    assert f"{skew.table}.{skew.column}: {skew}" == (
        "visits.customer: 60% of the rows of 2024-01-02 have one key, 20% have none; above 20%"
    )
    (both,) = find_skew(even, hot, nulls)
    assert str(both) == (
        "60% of the rows of 2024-01-02 have one key, 20% have none; above 20% on 2 days: "
        "2024-01-02, 2024-01-04"
    )
    assert find_skew(even, hot, read=(3, 9)) == [], "of the days that it reads"
    assert find_skew(even, hot, record(4, days(2), rows=100)) == [], "nothing was recorded of it"
    assert find_skew(with_key_counts(record(1, days(1), rows=0), 0, 0)) == []
    other = ExternalCommit(3, "DELETE", days(2))
    assert find_skew(even, hot, external=[other]) == [], "another writer has changed the day"


def test_a_plan_keeps_it():
    skews = tuple(find_skew(with_key_counts(record(2, days(2), rows=100), 60, 20)))
    plan = BackfillPlan(
        id="p",
        parameters=BackfillRequest(days=f"{day(1)}...{day(20)}"),
        **dict.fromkeys(("code_version", "code", "config_digest", "landing"), ""),
        versions={},
        tables={},
        **dict.fromkeys(("files", "size", "commits", "runs", "seconds"), 0),
        skews=skews,
    )
    assert dict(plan_facts(plan))["skew"].startswith("visits.customer: 60% of the rows of")
    assert BackfillPlan.model_validate_json(plan.model_dump_json()) == plan
    assert BackfillPlan.model_validate(plan.model_dump(exclude={"skews"})).skews == ()


def visits(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame: ...


def test_what_cannot_be_watched_is_refused():
    with pytest.raises(DeclarationError) as error:
        table(Visit, partition="run_date", key=[], skew={"x": 0.1, "shop": 0.2})(visits)
    assert str(error.value).startswith(
        "visits: skew of x, which is no column of it that can be a key ("
    )


ORDERS_OF = {"key": ["order_id"], "event_time": "order_ts", "version_time": "ingestion_ts"}


def test_the_staging_of_a_source_is_watched():
    source = Source("watched", OrderLine, skew={"customer_id": 0.2}, **ORDERS_OF)
    assert source.staged.skew == {"customer_id": 0.2}
    assert source.raw.skew == source.late.skew == {}
    with pytest.raises(DeclarationError, match="stg_watched: skew of customer, which is no col"):
        Source("watched", OrderLine, skew={"customer": 0.2}, **ORDERS_OF)


@pytest.fixture(scope="module")
def watched(engine, spark, tmp_path_factory) -> Pipeline:
    """Of 40 orders of the first day, 24 are of one customer and 8 of none; of the second, 1 is."""
    place = "backfill_assets_tests.skewed_tables:TABLES"
    pipeline = Pipeline(engine, tmp_path_factory.mktemp("watched"), tables=place)
    for n, hot in ((1, 24), (2, 1)):
        customers = ["c"] * hot + [None] * 8 + [f"c{i}" for i in range(32 - hot)]
        pipeline.land(n, [order(f"o-{n}-{i}", n, "1.00", to) for i, to in enumerate(customers)])
    pipeline.run(1, 2, ["raw_orders", "raw_orders_rejected", "stg_orders", "taken"])
    return pipeline


def test_from_the_rows_to_the_plan(watched):
    published = read_ledgers(watched.deployment)["taken"].latest
    most = {day_key: record.days[day_key].numbers for day_key, record in published.items()}
    assert most == {day(n): {"most rows of one customer_id": m} for n, m in ((1, 24), (2, 1))}
    plan = make_plan(watched, f"{day(1)}...{day(2)}", tables=("order_counts",))
    assert dict(plan_facts(plan))["skew"] == (
        f"taken.customer_id: 60% of the rows of {day(1)} have one key, 20% have none; above 50%"
    )
    only = make_plan(watched, str(day(2)), tables=("order_counts",))
    assert only.skews == ()


def task_times(pipeline: Pipeline, n: int, **tags: str) -> dict[str, Any]:
    """What Dagster is told of the tasks that compute a day."""
    pipeline.run(n, assets=["weighed"], tags=tags)
    (record,) = pipeline.instance.fetch_materializations(dg.AssetKey("weighed"), limit=1).records
    materialization = record.asset_materialization
    assert (
        materialization
        and materialization.partition == str(day(n))
        and materialization.metadata["dagster/partition_row_count"].value > 8
    )
    return {name: value.value for name, value in materialization.metadata.items() if "task" in name}


def test_a_run_over_skewed_rows_has_a_task_that_is_longer_than_the_others(watched, monkeypatch):
    skewed, even = (task_times(watched, n) for n in (1, 2))
    longest, middle, plot = "longest_task_seconds", "median_task_seconds", "task_times"
    assert {*skewed} == {*even} == {longest, middle, plot}
    assert skewed[longest] > 24 * 0.04
    assert skewed[longest] > 5 * skewed[middle]
    assert even[longest] < 4 * even[middle]
    first, second = skewed[plot].splitlines()[3:5]
    assert first.count("█") > 2 * second.count("█")

    # On an engine without the listener.
    monkeypatch.setattr(module, "TASK_TIMES", "spark.not.there")
    assert task_times(watched, 2, **{REWRITE_TAG: "true"}) == {}
