"""A second dimension, without Spark: declaration, keys, graph, runs, records, commands, folders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import Mock

import dagster as dg
import pandera.pyspark as pa
import pyarrow
import pyspark.sql.types as T
import pytest
from dagster._core.test_utils import instance_for_test
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pandera.pyspark import Field
from pyspark.sql import DataFrame

from backfill_assets import (
    ALL,
    PREVIOUS_DAY,
    SELF,
    WEEK,
    Dimension,
    Reads,
    Source,
    corrections_table,
    external_table,
    table,
)
from backfill_assets.backfills import history, undo
from backfill_assets.backfills.downstream import undo_scopes
from backfill_assets.backfills.planner import explain_left_out, split_runs
from backfill_assets.backfills.stages import add_backfill
from backfill_assets.calendar.partitions import (
    DAY,
    DAYS_TAG,
    DaySet,
    Grain,
    Window,
    days_condition,
    days_of_run,
    parse_days_and_part,
    partitions_of_run,
    parts_of_run,
    range_of_run,
    split_key,
)
from backfill_assets.cli import cli, main, outcomes, parameters
from backfill_assets.definitions import build_defs
from backfill_assets.delta import ledger_reader, migrate
from backfill_assets.delta.commits import PartRecord, Writer
from backfill_assets.delta.delta_rs import load_log
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitRecord, encode_commit, encoding_id
from backfill_assets.deployment import Deployment
from backfill_assets.landing.listing import list_landing
from backfill_assets.landing.load_manifest import LoadManifest
from backfill_assets.monitoring.next_runs import RunPlanner, _build_requests, tables_in_progress
from backfill_assets.orders.tables import FACT, ORDER_LINES
from backfill_assets.orders.tables import TABLES as PLAIN_TABLES
from backfill_assets.settings import SettingsError, load_settings
from backfill_assets.shadow import switch
from backfill_assets.staleness.assess import assess
from backfill_assets.staleness.finality import window_closed_at
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.unloaded import refuse_closing
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.code_version import table_codes
from backfill_assets.tables.derived import Derived, PublishedDays, current_table, expand_parts
from backfill_assets.tables.graph import Graph, load_graph
from backfill_assets.tables.table import Table, run_tags
from backfill_assets_guide.examples.hours import View
from backfill_assets_guide.examples.regions import (
    ORDERS,
    REGION,
    TABLES,
    OrderLine,
    RegionOrders,
    WorldOrders,
    customer_spend,
    region_orders,
    world_orders,
)
from backfill_assets_tests.helpers.command_line import usage_error
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.invented_logs import (
    commit_metadata,
    days,
    ledger,
    make_raw_record,
    record,
)
from backfill_assets_tests.helpers.invented_runs import InventedRuns
from backfill_assets_tests.helpers.memory_instance import memory_instance
from backfill_assets_tests.helpers.pipeline import START, day

NAMES = "backfill_assets_guide.examples.regions:TABLES"
DEPLOYMENT = Deployment(load_settings(tables=NAMES, start=START, end=day(32), window_days=2))
GRAPH = DEPLOYMENT.graph
EU, US, APAC = (GRAPH.tables[f"region_orders/{part}"] for part in REGION.values)
PAIR = ("run_date", "region")


def window(first: int, last: int) -> Window:
    return Window(day(first), day(last) + DAY)


# --- the dimension and its keys -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "date", "for_day", "a b", "2nd", "_region", "größe", 3])
def test_a_dimension_has_the_name_of_a_column(name):
    with pytest.raises(ValueError, match=r"^Dimension\(.*\): give the name of a column"):
        Dimension(name, ["eu"])


@pytest.mark.parametrize(
    "values",
    [
        *([], "eu", ["eu", "eu"], ["eu", 1], [""], ["e u"], ["eu/us"], ["a|b"], ["eu\n"], [".eu"]),
        # A day is no part; and what Dagster takes for a range of keys.
        *(["2024-01-05"], ["a...b"]),
        # Folders and assets would have one name.
        *(["EU", "eu"], ["eu-west", "eu_west"]),
    ],
)
def test_parts_are_different_names(values):
    with pytest.raises(ValueError, match=r"^Dimension\('region'\): give different values of"):
        Dimension("region", values)


@pytest.mark.parametrize("starts", [{"apac": START}, {"eu": "2024-01-01"}])
def test_only_parts_begin(starts):
    with pytest.raises(ValueError, match=r"starts has a day for some of the values"):
        Dimension("region", ["eu", "us"], starts)


@pytest.mark.parametrize(("name", "key"), [("country", "eu-1|2024-01-05"), ("region", None)])
def test_a_key_of_dagster_is_split_wherever_it_has_the_day(name, key):
    """Dagster orders the dimensions of a key by name."""
    dimension = Dimension(name, ["eu-1", "2024"])
    assert dimension.partition_key(day(5), "eu-1") == (key or "2024-01-05|eu-1")
    for part in dimension.values:
        assert split_key(dimension.partition_key(day(5), part)) == (day(5), part)
    definition = dimension.partitions_def(Grain.DAILY.partitions_def(DEPLOYMENT.settings))
    keys = definition.get_partition_keys()
    assert {split_key(key) for key in keys} == {
        (d, part) for d in Window(START, day(32)) for part in dimension.values
    }
    assert Grain.from_partitions_def(definition) is Grain.DAILY


def test_a_key_of_one_dimension_has_no_part():
    assert split_key("2024-01-05") == (day(5), "")
    for key in ("", "eu", "eu|us"):
        with pytest.raises(ValueError, match="isoformat"):
            split_key(key)


@pytest.mark.parametrize("tables", [[EU], [US, APAC], [EU, US, APAC]])
@pytest.mark.parametrize("requested", [window(3, 3), window(3, 6), DaySet.from_days(days(3, 5))])
def test_the_tags_of_a_run_have_its_days_and_parts(tables, requested):
    tags = run_tags(tables, requested)
    first, last = tables[0].part, tables[-1].part
    assert range_of_run(tags) == (f"{requested.start}|{first}", f"{requested.end - DAY}|{last}")
    assert parts_of_run(tags) == [*dict.fromkeys([first, last])]
    assert days_of_run(tags) == requested
    keys = [t.partition_key(d) for t in tables for d in window(3, 6) if d < requested.end]
    assert [*partitions_of_run(keys, tags)] == [*requested]
    assert [t for t in (EU, US, APAC) if t.is_in_run(tags)] == tables
    # A table without parts is in every run; one of parts in none of days alone.
    assert GRAPH.tables["world_orders"].is_in_run(tags)
    assert not EU.is_in_run(Grain.DAILY.run_tags(requested))


def test_a_run_of_a_part_may_have_days_with_gaps(tmp_path):
    """In the storage of a deployment, which also keeps what a run is to materialize."""

    @dg.asset(partitions_def=EU.partitions_def(DEPLOYMENT.settings))
    def cells(context) -> None:
        built.extend(context.partition_keys)

    built: list[str] = []
    job = dg.Definitions([cells], jobs=[dg.define_asset_job("cells", [cells])]).resolve_job_def(
        "cells"
    )
    storage = {"custom": {"module": "backfill_assets.eventlog", "class": "LocalStorage"}}
    tags = EU.run_tags(days(1, 3))
    with instance_for_test(temp_dir=str(tmp_path), overrides={"storage": storage}) as instance:
        run = job.execute_in_process(instance=instance, tags=tags)
        assert instance.get_run_by_id(run.run_id).tags[DAYS_TAG] == "2024-01-01, 2024-01-03"
    # Dagster knows the range; the run itself leaves a day out.
    assert len(built) == 3
    assert [*partitions_of_run(built, tags)] == [day(1), day(3)]


def test_a_run_of_one_partition_of_the_ui():
    tags = {"dagster/partition": "2024-01-05|us", "dagster/partition/region": "us"}
    assert days_of_run(tags) == window(5, 5)
    assert parts_of_run(tags) == ["us"]
    assert [t.part for t in (EU, US, APAC) if t.is_in_run(tags)] == ["us"]
    for other in ({}, {"dagster/partition": "eu|us"}):
        assert days_of_run(other) is None
        assert parts_of_run(other) == []
        assert not EU.is_in_run(other)


def test_days_alone_have_the_tags_that_they_had():
    tags = {f"dagster/asset_partition_range_{end}": "2024-01-05" for end in ("start", "end")}
    assert FACT.run_tags(window(5, 5)) == run_tags([FACT], window(5, 5)) == tags
    assert parts_of_run(tags) == []
    assert FACT.job_name == "daily"
    assert FACT.partition_key(day(5)) == "2024-01-05"
    assert FACT.days_condition([day(5)]) == days_condition([day(5)], "run_date")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-05/eu", (window(5, 5), "eu")),
        ("2024-01-01...2024-01-05/eu", (window(1, 5), "eu")),
        ("2024-01-05", (window(5, 5), "")),
        ("/eu", (window(1, 31), "eu")),
        ("", (None, "")),
    ],
)
def test_days_and_a_part_of_a_person(text, expected):
    assert parse_days_and_part(text, DEPLOYMENT.settings) == expected


# --- the graph ------------------------------------------------------------------------------------


def input_names(graph: Graph, name: str) -> list[str]:
    return [dependency.source.name for dependency in graph.inputs[name]]


def test_a_part_is_a_table_of_the_graph():
    """In each place of a table with parts are its parts; each reads its own part."""
    assets = ["raw_orders", "raw_orders_rejected", "stg_orders", "late_orders", "orders_lateness"]
    assets += ["region_orders", "customer_spend"]
    expected = [f"{asset}/{part}" for asset in assets for part in REGION.values]
    assert [*GRAPH.tables] == [*expected, "world_orders"]
    assert [*GRAPH.assets] == [*assets, "world_orders"]
    for part in REGION.values:
        assert input_names(GRAPH, f"stg_orders/{part}") == [f"raw_orders/{part}"]
        assert input_names(GRAPH, f"region_orders/{part}") == [f"stg_orders/{part}"]
        own = f"customer_spend/{part}"
        assert input_names(GRAPH, own) == [f"stg_orders/{part}", own]
        assert GRAPH.tables[own].part == GRAPH.sources[f"raw_orders/{part}"].part == part
    assert input_names(GRAPH, "world_orders") == [table.name for table in (EU, US, APAC)]
    assert [x.full_name for x in GRAPH.sources_by_name.values()] == [
        f"orders/{part}" for part in REGION.values
    ]
    assert [len(parts) for parts in GRAPH.parts_of_sources] == [3]
    assert GRAPH.loaded_with("raw_orders/us") == names_of("us", *assets[:2], *assets[3:5])


def test_all_parts_share_a_table_an_asset_and_a_job():
    assert {table.asset_name for table in (EU, US, APAC)} == {"region_orders"}
    assert len({DEPLOYMENT.table_url(table.name) for table in (EU, US, APAC)}) == 1
    assert {DEPLOYMENT.asset_key(t.name).to_user_string() for t in (EU, US)} == {"region_orders"}
    assert {table.job_name for table in (EU, US, APAC)} == {"daily_by_region"}
    assert Grain.of_job("daily_by_region") is Grain.DAILY
    assert EU.partition_columns == EU.key_columns == PAIR
    assert EU.part_values == {"region": "eu"}
    assert US.days_condition([day(1)], relation="t").endswith(" AND t.`region` = 'us'")


def test_without_a_dimension_tables_are_the_same_objects():
    tables = {**PLAIN_TABLES}
    assert all(expanded is tables[name] for name, expanded in expand_parts(tables, "UTC").items())
    assert [*expand_parts(tables, "UTC")] == [*tables]
    assert all(table.asset_name == name for name, table in tables.items())


def read_all(table: Any, **more: Any) -> Reads:
    return Reads(table, parts=ALL, **more)


def declare(
    *reads: Reads,
    by: str = "",
    model: Any = RegionOrders,
    name: str = "sales",
    published: Mapping[str, PublishedDays] | None = None,
    **more: Any,
) -> Derived:
    """A table of inputs `input_0`, ...; of the dimension `by`, if it is given."""
    return Derived(
        name=name,
        model=model,
        partition="run_date",
        part_column=by,
        key=(),
        totals=["orders", "revenue"],
        modules=(__name__,),
        transform=lambda **_: None,
        reads={f"input_{n}": read for n, read in enumerate(reads)},
        published=published or {},
        **more,
    )


SHOPS = replace(ORDERS, name="visits", dimension=Dimension("shop", ["a", "b"]))
PLAIN = replace(ORDERS, name="plain", dimension=None)


def expand(*tables: Table) -> Graph:
    landed = [t for source in (ORDERS, SHOPS, PLAIN) for t in source.tables]
    declared = {table.name: table for table in (*landed, region_orders, *tables)}
    return Graph(expand_parts(declared, "UTC"), DEPLOYMENT.policy)


def test_some_parts_are_read():
    graph = expand(declare(Reads(ORDERS.staged, parts=["us", "eu"]), model=WorldOrders))
    assert input_names(graph, "sales") == ["stg_orders/us", "stg_orders/eu"]
    assert graph.tables["sales"].dimension is None


def test_parts_of_two_dimensions_may_be_joined():
    graph = expand(declare(read_all(ORDERS.staged), read_all(SHOPS.staged), model=WorldOrders))
    parts = [*(f"stg_orders/{r}" for r in REGION.values), "stg_visits/a", "stg_visits/b"]
    assert input_names(graph, "sales") == parts


def test_a_part_reads_itself_and_tables_without_parts():
    graph = expand(
        declare(Reads(ORDERS.staged), Reads(PLAIN.staged), Reads(SELF, PREVIOUS_DAY), by="region")
    )
    assert input_names(graph, "sales/us") == ["stg_orders/us", "stg_plain", "sales/us"]
    assert "sales" not in graph.tables


def test_what_is_made_of_a_table_of_several_parts_reads_that_of_the_graph():
    world = declare(read_all(ORDERS.staged), model=WorldOrders, name="world")
    graph = expand(world, declare(Reads(world), model=WorldOrders, name="after"))
    (dependency,) = graph.inputs["after"]
    assert dependency.source is graph.tables["world"]


def test_current_and_corrections_have_the_parts_of_their_table():
    facts = declare(Reads(ORDERS.staged), by="region")
    current = current_table(facts)
    corrections = corrections_table(facts, current)
    graph = expand(facts, current, corrections)
    for part in REGION.values:
        assert input_names(graph, f"sales_current/{part}") == [f"raw_orders/{part}"]
        assert input_names(graph, f"sales_corrections/{part}") == [
            f"sales/{part}",
            f"sales_current/{part}",
        ]
        for name in ("sales_current", "sales_corrections"):
            table = graph.tables[f"{name}/{part}"]
            assert (table.part, table.partition_columns) == (part, PAIR)
            assert "region" in table.columns
    assert not {"sales_current", "sales_corrections"} & graph.tables.keys()


def test_what_is_known_now_is_of_one_part():
    world = declare(read_all(ORDERS.staged), model=WorldOrders)
    with pytest.raises(DeclarationError, match="of the same day and part, can be current"):
        current_table(world)


class NoRegion(pa.DataFrameModel):
    run_date: T.DateType = Field(description="The day.")
    orders: T.LongType = Field(description="Number of orders.")
    revenue: T.LongType = Field(description="Sum.")


class RegionOrNone(NoRegion):
    region: T.StringType = Field(nullable=True, description="The region.")


class RegionNumber(NoRegion):
    region: T.LongType = Field(description="The region.")


@pytest.mark.parametrize(
    ("reads", "more", "message"),
    [
        ([PLAIN.staged], {"by": "region"}, "no input has the dimension region"),
        ([SHOPS.staged], {"by": "region"}, "no input has the dimension region"),
        ([ORDERS.staged], {}, r'add partition=\("run_date", "region"\).*Reads\(stg_orders, parts='),
        (
            [Reads(ORDERS.staged, parts=["eu", "mars"])],
            {},
            r"input_0 reads the parts \['mars'\] of stg_orders, which has \['eu', 'us', 'apac'\]",
        ),
        ([Reads(ORDERS.staged, parts=["*"])], {}, r"reads the parts \['\*'\] of stg_orders"),
        ([Reads(ORDERS.staged, parts=[])], {}, "or Reads\\(stg_orders, parts=ALL\\)"),
        ([read_all(ORDERS.staged)], {"by": "region"}, "input_0 has days of another dimension, or"),
        ([ORDERS.staged, SHOPS.staged], {"by": "region"}, "input_1 has days of another dimension"),
        (
            [ORDERS.staged, read_all(SHOPS.staged)],
            {"by": "region"},
            "input_1 has days of another dimension, or parts= although each part of sales reads",
        ),
        (
            [read_all(PLAIN.staged)],
            {},
            r"reads the parts \['\*'\] of stg_plain, which has days alone",
        ),
        (
            [PLAIN.staged, read_all(SELF, reach=PREVIOUS_DAY)],
            {},
            r"reads the parts \['\*'\] of the table itself, which has days alone",
        ),
        ([ORDERS.staged], {"by": "region", "model": NoRegion}, "needs region as a T.StringType"),
        ([ORDERS.staged], {"by": "region", "model": RegionOrNone}, "needs region as a T.StringT"),
        ([ORDERS.staged], {"by": "region", "model": RegionNumber}, "needs region as a T.StringT"),
        (
            [PLAIN.staged],
            {"published": {"days": PublishedDays(region_orders)}},
            "region_orders has days by region: add",
        ),
    ],
)
def test_a_table_has_a_dimension_of_its_inputs_or_none(reads, more, message):
    inputs = [read if isinstance(read, Reads) else Reads(read) for read in reads]
    with pytest.raises(DeclarationError, match=message):
        declare(*inputs, **more)


def test_the_parts_of_a_run_follow_each_other():
    assert GRAPH.follows_part([US.name], [EU.name])
    assert not GRAPH.follows_part([APAC.name], [EU.name])
    assert not GRAPH.follows_part([EU.name], [US.name])
    assert not GRAPH.follows_part([US.name], ["customer_spend/eu"])
    assert not GRAPH.follows_part(["world_orders"], ["world_orders"])
    both = [f"{asset}/{{}}" for asset in ("region_orders", "customer_spend")]
    us, eu = ([name.format(part) for name in both] for part in ("us", "eu"))
    assert GRAPH.follows_part(us, eu)
    assert not GRAPH.follows_part(us, eu[:1])
    shops = expand()
    assert not shops.follows_part(["stg_visits/b"], ["stg_orders/eu"])


def test_all_parts_have_the_name_of_their_table():
    names = [t.name for t in (EU, US, APAC)]
    assert GRAPH.join_parts(["world_orders", *names]) == ["world_orders", "region_orders"]
    assert GRAPH.join_parts(names[1:]) == names[1:]
    assert GRAPH.join_parts([]) == []


# --- the source -----------------------------------------------------------------------------------


class WithRegion(OrderLine):
    region: T.StringType = Field(description="The region.")


class WithAnyRegion(OrderLine):
    region: T.StringType = Field(nullable=True, description="The region.")


class WithRegionNumber(OrderLine):
    region: T.LongType = Field(description="The region.")


def source_by(name: str, lines: Any = OrderLine) -> Source:
    return replace(ORDERS, lines=lines, dimension=Dimension(name, ["eu", "us-1"]))


@pytest.mark.parametrize("lines", [OrderLine, WithRegion])
def test_all_tables_of_a_source_have_the_column_of_the_part_after_the_day(lines):
    source = source_by("region", lines).parts["us-1"]
    for built in source.tables:
        assert [*built.columns][:2] == [built.partition, "region"]
        assert [*built.columns].count("region") == 1
        assert not built.columns["region"].nullable
        assert built.partition_columns == (built.partition, "region")
    assert source.part_folder == "/region=us-1"
    assert source.page == "orders_lateness_dashboard_us_1"  # Dagster takes no other signs
    assert not source_by("region").part_folder
    assert not ORDER_LINES.part_folder
    assert not ORDER_LINES.parts


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("region", WithAnyRegion, "make that field a T.StringType that may not be null"),
        ("region", WithRegionNumber, "make that field a T.StringType that may not be null"),
        ("ordered_at", OrderLine, "make that field a T.StringType that may not be null"),
        ("log_date", OrderLine, "a table of this source has such a column: give another name"),
        ("reason", OrderLine, "a table of this source has such a column: give another name"),
        ("Reason", OrderLine, "a table of this source has such a column: give another name"),
    ],
)
def test_the_column_of_the_part_is_no_other_column(name, lines, message):
    with pytest.raises(
        DeclarationError, match=rf"^source orders: its dimension is {name}: {message}"
    ):
        source_by(name, lines)


def test_a_part_that_was_added_later_begins_later():
    source = replace(ORDERS, dimension=Dimension("region", ["eu", "us"], {"us": day(5)}))
    assert [part.start for part in source.parts.values()] == [None, day(5)]


# --- a part that has gone -------------------------------------------------------------------------

SMALLER = Dimension("region", [*REGION.values], retired={"us": day(3)})


def retired_graph(dimension: Dimension = SMALLER) -> Graph:
    source = replace(ORDERS, dimension=dimension)
    reads = {"orders": Reads(source.staged)}
    by_region = replace(region_orders, reads=reads)
    spend = replace(customer_spend, reads=reads | {"before": Reads(SELF, PREVIOUS_DAY)})
    world = replace(world_orders, reads={"regions": Reads(by_region, parts=ALL)})
    return load_graph(DEPLOYMENT.settings, [source, by_region, spend, world])


def test_nothing_is_expected_of_a_part_that_has_gone():
    """Its days end, those of the other parts and of the world do not."""
    graph, today = retired_graph(), day(20)
    ends = {name: graph.expected_days(name, today).end for name in graph.tables}
    assert {name for name, end in ends.items() if end == day(3)} == {
        name for name, table in graph.tables.items() if table.part == "us"
    }
    assert {end for name, end in ends.items() if graph.tables[name].part != "us"} == {day(20)}
    assert graph.policy_of("raw_orders/us").loadable_days(today).end == day(3)


def test_the_world_does_not_wait_for_a_part_that_has_gone():
    graph = retired_graph()
    (us,) = [d for d in graph.inputs["world_orders"] if d.source.part == "us"]
    assert [graph.required_days(us, day(n)) for n in (2, 3)] == [[day(2)], []]
    assert {log for log, _ in graph.arrivals("world_orders", day(3))} == {
        "raw_orders/eu",
        "raw_orders/apac",
    }
    filled = {t.name: ledger(t, record(1, days((1, 2)))) for t in graph.tables.values() if t.part}
    others = {
        t.name: ledger(t, record(1, days((1, 3))))
        for t in graph.tables.values()
        if t.part in ("eu", "apac")
    }
    ledgers = {"world_orders": Ledger(graph.tables["world_orders"]), **filled, **others}
    assessments = assess(Snapshot(graph, ledgers), "world_orders", [day(2), day(3)])
    assert all(a.can_change for a in assessments.values())
    ledgers["region_orders/us"] = ledger(graph.tables["region_orders/us"], record(1, days(1)))
    assessments = assess(Snapshot(graph, ledgers), "world_orders", [day(2), day(3)])
    assert [d for d, a in assessments.items() if a.can_change] == [day(3)]


def test_a_table_ends_with_the_last_part():
    gone = {part: day(2 + n) for n, part in enumerate(REGION.values)}
    graph = retired_graph(Dimension("region", [*REGION.values], retired=gone))
    assert graph.policy_of("world_orders").end == day(4)
    assert graph.policy_of("region_orders/eu").end == day(2)
    assert GRAPH.policy_of("world_orders").end == DEPLOYMENT.settings.end


def test_the_windows_of_a_part_that_has_gone_close():
    """No log day after its end is awaited; one that had come before it was retired is."""
    raw, policy = retired_graph().tables["raw_orders/us"], GRAPH.policy_of("raw_orders/us")
    assert (raw.end, policy.window_days) == (day(3), 2)

    def closed_at(table: Table, *later: CommitRecord) -> dict[int, int]:
        records = [make_raw_record(0, days(1)), make_raw_record(1, days(2)), *later]
        closed = window_closed_at(ledger(table, *records), policy)
        return {d.day: version for d, version in closed.items() if d >= START}

    came, without_folder = make_raw_record(2, days(3)), make_raw_record(3, days(4), settled=())
    assert closed_at(GRAPH.tables[raw.name], came) == {1: 2}
    assert closed_at(raw) == {1: 1, 2: 1}
    assert closed_at(raw, without_folder) == {1: 1, 2: 1}
    assert closed_at(raw, came, without_folder) == {1: 2, 2: 2, 3: 2}


class RegionWeek(pa.DataFrameModel):
    week_start: T.DateType
    region: T.StringType
    orders: T.LongType


class WorldWeek(pa.DataFrameModel):
    week_start: T.DateType
    orders: T.LongType


#: Lines come on the next day, and of the part that goes on the third day nothing is loaded then.
LATER = replace(ORDERS, dimension=SMALLER, arrives_after=1)
BY_REGION = replace(region_orders, reads={"orders": Reads(LATER.staged)})


@table(RegionWeek, partition=("week_start", "region"), key=[])
def region_week(orders: Annotated[DataFrame, Reads(BY_REGION, WEEK)]) -> DataFrame: ...


@table(WorldWeek, partition="week_start", key=[])
def world_week(orders: Annotated[DataFrame, Reads(region_week, parts=ALL)]) -> DataFrame: ...


@table(WorldOrders, partition="run_date", key=[])
def americas(orders: Annotated[DataFrame, Reads(BY_REGION, parts=["us"])]) -> DataFrame: ...


@table(WorldOrders, partition="run_date", key=[])
def beside(
    us: Annotated[DataFrame, Reads(americas)],
    eu: Annotated[DataFrame, Reads(BY_REGION, parts=["eu"])],
) -> DataFrame: ...


def test_nothing_waits_for_what_reads_a_part_that_has_gone():
    """Neither for a table of some parts, nor for a week that is not whole, nor for late lines."""
    graph = load_graph(
        DEPLOYMENT.settings, [LATER, BY_REGION, region_week, world_week, americas, beside]
    )

    def required(table: str, source: str, *numbers: int) -> list[int]:
        (dependency,) = (d for d in graph.inputs[table] if d.source.name == source)
        return [n for n in numbers if graph.required_days(dependency, day(n))]

    assert graph.policy_of("americas").end == graph.policy_of("region_orders/us").end == day(2)
    assert required("beside", "americas", 1, 2, 3) == [1]
    assert required("beside", "region_orders/eu", 1, 2, 3) == [1, 2, 3]
    assert required("americas", "region_orders/us", 1, 2, 3) == [1]
    assert required("world_week", "region_week/us", 1, 8) == []
    assert required("world_week", "region_week/eu", 1, 8) == [1, 8]


def test_what_is_asked_of_a_part_after_its_end_is_refused(tmp_path):
    settings = load_settings(
        start=START, end=day(32), landing=str(tmp_path), warehouse=str(tmp_path / "lake")
    )
    (tmp_path / "orders").mkdir()
    deployment = Deployment(settings, (LATER, BY_REGION, region_week))
    (week,) = explain_left_out(deployment, ["region_week/us"], window(1, 7), day(20))
    assert week.endswith("[2024-01-01] ends after its last day, 2024-01-01, on 2024-01-07")
    assert not [*explain_left_out(deployment, ["region_week/eu"], window(1, 7), day(20))]
    us, eu = (deployment.graph.find_source(f"orders/{part}") for part in ("us", "eu"))
    refuse_closing(deployment, eu, window(2, 3), reopen=False)
    with pytest.raises(ValueError, match="as 2024-01-03 is after the last day of the source, 2024"):
        refuse_closing(deployment, us, window(2, 3), reopen=False)


@pytest.mark.parametrize("retired", [{"mars": day(3)}, {"eu": "2024-01-03"}])
def test_only_parts_go(retired):
    with pytest.raises(ValueError, match="retired has a day for some of the values"):
        Dimension("region", ["eu", "us"], retired=retired)


# --- runs -----------------------------------------------------------------------------------------


def runs_of(by_table: Mapping[str, Iterable[date]]) -> list[tuple[list[str], list[str]]]:
    found = split_runs(DEPLOYMENT, {name: sorted(d) for name, d in by_table.items()})
    return [(GRAPH.join_parts(names), [*map(str, windows)]) for names, windows in found]


def test_parts_of_the_same_days_are_one_run():
    names = [t.name for t in GRAPH.tables.values() if t.asset_name in ("stg_orders", *_DERIVED[:1])]
    assert runs_of(dict.fromkeys(names, days((1, 3)))) == [
        (["stg_orders", "region_orders"], ["2024-01-01...2024-01-03"])
    ]
    # A table without parts has runs of its own, after those of its inputs.
    assert runs_of(dict.fromkeys([*names, "world_orders"], days(1))) == [
        (["stg_orders", "region_orders"], ["2024-01-01"]),
        (["world_orders"], ["2024-01-01"]),
    ]


_DERIVED = ("region_orders", "customer_spend")


@pytest.mark.parametrize(
    ("by_table", "expected"),
    [
        # Not adjacent: the range of Dagster would have the part between.
        ({"eu": [1], "apac": [1]}, [(["region_orders/eu"], 1), (["region_orders/apac"], 1)]),
        # Other days.
        ({"eu": [1], "us": [2]}, [(["region_orders/eu"], 1), (["region_orders/us"], 2)]),
        (
            {"eu": [1], "us": [2], "apac": [2]},
            [(["region_orders/eu"], 1), (["region_orders/us", "region_orders/apac"], 2)],
        ),
    ],
)
def test_other_parts_have_runs_of_their_own(by_table, expected):
    found = runs_of({f"region_orders/{part}": days(*n) for part, n in by_table.items()})
    assert found == [(names, [str(day(n))]) for names, n in expected]


def test_days_with_gaps_are_not_shared_by_parts():
    """The tag that leaves days out is that of the run."""
    found = runs_of(dict.fromkeys([EU.name, US.name], days(1, 3)))
    assert found == [([name], ["2024-01-01, 2024-01-03"]) for name in (EU.name, US.name)]


def test_tables_that_only_some_parts_build_are_no_obstacle():
    by_table = dict.fromkeys([EU.name, US.name, "customer_spend/us"], days(1))
    assert runs_of(by_table) == [
        (["region_orders/eu"], ["2024-01-01"]),
        (["region_orders/us", "customer_spend/us"], ["2024-01-01"]),
    ]


def requests_of(groups: Mapping[tuple[str, ...], Iterable[int]], **more: Any) -> list[Any]:
    tokens = {names: {day(n): f"token {n}" for n in numbers} for names, numbers in groups.items()}
    return _build_requests(tokens, GRAPH, 10, more)


def test_requests_of_adjacent_parts_are_one():
    one, two = ((f"raw_orders/{part}", f"raw_orders_rejected/{part}") for part in ("eu", "us"))
    (request,) = requests_of({one: [1, 2], two: [1, 2]})
    assert (request.tables, request.window) == ((*one, *two), window(1, 2))
    assert request.key.startswith("raw_orders/eu+raw_orders_rejected/eu+raw_orders/us+")
    three = ("raw_orders/apac", "raw_orders_rejected/apac")
    (whole,) = requests_of({one: [1], two: [1], three: [1]})
    assert whole.key.startswith("raw_orders+raw_orders_rejected:2024-01-01:")
    # Another content of one part is another purpose.
    (again,) = _build_requests({one: {day(1): "a"}, two: {day(1): "b"}}, GRAPH, 10, {})
    (other,) = _build_requests({one: {day(1): "a"}, two: {day(1): "c"}}, GRAPH, 10, {})
    assert again.key != other.key


@pytest.mark.parametrize(
    "groups",
    [
        {("region_orders/eu",): [1], ("region_orders/apac",): [1]},
        {("region_orders/eu",): [1], ("region_orders/us",): [1, 2]},
        {("region_orders/eu",): [1, 3], ("region_orders/us",): [1, 3]},
        {("region_orders/eu",): [1], ("customer_spend/us",): [1]},
        {("region_orders/eu", "customer_spend/eu"): [1], ("region_orders/us",): [1]},
        {("region_orders/us",): [1], ("world_orders",): [1]},
    ],
)
def test_other_requests_are_not_joined(groups):
    assert {request.tables for request in requests_of(groups)} == groups.keys()


def test_the_command_of_a_request_has_the_parts():
    planner = object.__new__(RunPlanner)
    planner.deployment = DEPLOYMENT
    eu, whole = (
        requests_of({(EU.name,): [1, 2]}),
        requests_of({(t.name,): [1] for t in (EU, US, APAC)}),
    )
    assert [planner.command_of(request) for request in (*eu, *whole)] == [
        ["backfill-assets", "materialize", "2024-01-01...2024-01-02", "--select", EU.name],
        ["backfill-assets", "materialize", "2024-01-01", "--select", "region_orders"],
    ]


def test_definitions_have_an_asset_a_job_and_a_schedule_of_all_parts():
    repository = build_defs(DEPLOYMENT.settings).get_repository_def()
    asset = repository.asset_graph.get(DEPLOYMENT.asset_key(EU.name))
    assert len(asset.partitions_def.get_partition_keys()) == 31 * 3
    assert {"daily", "daily_by_region"} <= {job.name for job in repository.get_all_jobs()}
    assert {"nightly", "nightly_by_region"} <= {s.name for s in repository.schedule_defs}


def test_a_run_of_a_dimension_is_of_the_deployment_that_has_it():
    gold, silver = (
        Deployment(load_settings(tables=NAMES, key_prefix=prefix)) for prefix in ("gold", "silver")
    )
    run = Mock(job_name="gold_daily_by_region", asset_selection=None)
    assert gold.job_of_run(run) == "daily_by_region"
    assert [gold.owns_run(run), silver.owns_run(run)] == [True, False]


def test_a_backfill_of_one_table_of_parts_is_in_progress():
    graph = build_defs(tables=TABLES, start=START, end=day(32)).resolve_asset_graph()
    with memory_instance() as instance:
        add_backfill(
            DEPLOYMENT, instance, graph, "byhand12", {EU.name: [day(1)]}, {}, title="", reason=""
        )
        assert tables_in_progress(instance, DEPLOYMENT) == {"byhand12": {*DEPLOYMENT.tables}}


def test_dimensions_of_one_name_have_the_same_values():
    other = replace(ORDERS, name="visits", dimension=Dimension("region", ["eu", "us"]))
    with pytest.raises(SettingsError, match="two dimensions are named region and have other val"):
        load_graph(load_settings(), [ORDERS, other])


def test_a_part_begins_no_earlier_than_the_calendar():
    early = replace(ORDERS, dimension=Dimension("region", ["eu", "us"], {"us": day(-3)}))
    with pytest.raises(SettingsError, match="orders/us starts on 2023-12-28, before"):
        load_graph(load_settings(start=START), [early])


def test_a_table_of_all_parts_has_the_code_that_it_had_before_a_part_was_added():
    """The days that lack the new part are due by their inputs, and the others are not."""

    def version(*values: str) -> str:
        source = replace(ORDERS, dimension=Dimension("region", values))
        graph = load_graph(
            load_settings(), [source, declare(read_all(source.staged), model=WorldOrders)]
        )
        return table_codes(graph.tables)["sales"].digest

    assert version("eu", "us") == version("eu", "us", "apac")


# --- records --------------------------------------------------------------------------------------


def commit_rows(
    url: Path, cells: Iterable[tuple[int, str]], metadata: Mapping[str, Any] | None = None
) -> None:
    """Append a row for each cell, in a commit of ours if `metadata` is given."""
    pairs = [*cells]
    rows = pyarrow.table(
        {
            "run_date": pyarrow.array([day(n) for n, _ in pairs], pyarrow.date32()),
            "region": pyarrow.array([part for _, part in pairs], pyarrow.string()),
            "orders": pyarrow.array([1] * len(pairs), pyarrow.int64()),
            "revenue": pyarrow.array([Decimal(1)] * len(pairs), pyarrow.decimal128(28, 2)),
        }
    )
    text = {"userMetadata": json.dumps(metadata)} if metadata else None
    write_deltalake(
        url,
        rows,
        mode="append",
        partition_by=[*PAIR],
        commit_properties=CommitProperties(custom_metadata=text),
    )


def commit_part(url: Path, part: str, *numbers: int) -> None:
    metadata = commit_metadata(days(*numbers), part=part)
    commit_rows(url, [(n, part) for n in numbers], metadata)


def test_a_commit_of_one_part(tmp_path):
    """Its days, rows and record are those of this part, and of no other."""
    url = tmp_path / "region_orders"
    commit_part(url, "eu", 1, 2)
    commit_part(url, "us", 2, 3)
    eu, us, apac = (read_ledger(str(url), table) for table in (EU, US, APAC))
    assert [record.version for record in eu.records] == [0]
    assert [record.version for record in us.records] == [1]
    assert (eu.latest.keys(), us.latest.keys()) == (days(1, 2), days(2, 3))
    assert (eu.measured.keys(), us.measured.keys()) == (days(1, 2), days(2, 3))
    assert {metrics.rows for metrics in eu.measured.values()} == {1}
    assert not apac.records
    assert not apac.latest
    assert not apac.measured
    assert {ledger.version for ledger in (eu, us, apac)} == {1}
    assert not eu.external_commits + us.external_commits + apac.external_commits
    # Ledgers are kept by part in this process, and extended.
    commit_part(url, "us", 1)
    assert [record.version for record in read_ledger(str(url), EU).records] == [0]
    assert [record.version for record in read_ledger(str(url), US).records] == [1, 2]


def test_a_commit_of_several_parts_has_a_record_of_each(tmp_path):
    """It replaces the days of these parts alone; rows of another part stay."""
    url = tmp_path / "region_orders"
    for part in ("eu", "us", "apac"):
        commit_part(url, part, 1, 2)
    eu, us = (read_ledger(str(url), table) for table in (EU, US))
    written, failed = (commit_metadata(days(2), run_id=r, since=2) for r in ("of eu", "of us"))
    failed |= {"not_published": {str(day(1)): "too few rows"}}
    writer = Writer(Mock(side_effect=AssertionError), str(url), EU)
    assert writer.commit({}, [day(2)], written, eu, [PartRecord(failed, us)]) == 3
    assert writer.commit({}, [day(2)], written, eu, [PartRecord(failed, us)]) is None
    rows = DeltaTable(url).to_pyarrow_table().select(["run_date", "region"]).to_pylist()
    cells = {(row["region"], row["run_date"]) for row in rows}
    assert cells == {(p, day(1)) for p in ("eu", "us", "apac")} | {("apac", day(2))}
    eu, us, apac = (read_ledger(str(url), table) for table in (EU, US, APAC))
    assert [(r.version, r.run_id) for r in eu.records] == [(0, "r"), (3, "of eu")]
    assert [(r.version, r.run_id) for r in us.records] == [(1, "r"), (3, "of us")]
    assert us.records[-1].commit_id == eu.records[-1].commit_id
    assert us.records[-1].failed_days == {day(1): "too few rows"}
    assert eu.records[-1].written_days == us.records[-1].written_days == days(2)
    assert us.latest[day(2)] is us.records[-1]
    assert [record.version for record in apac.records] == [2]
    assert not eu.external_commits + us.external_commits + apac.external_commits


def test_the_log_is_loaded_once_for_all_parts(tmp_path, monkeypatch):
    """Of a commit, too, that another process makes afterwards."""
    url, loads = tmp_path / "region_orders", []

    def load_counted(url: str) -> DeltaTable | None:
        loads.append(url)
        return load_log(url)

    monkeypatch.setattr(ledger_reader, "load_log", load_counted)
    for number, part in enumerate(("eu", "us", "apac"), 1):
        commit_part(url, part, number)
        ledgers = [read_ledger(str(url), table) for table in (EU, US, APAC)]
        assert len(loads) == number
        assert {ledger.version for ledger in ledgers} == {number - 1}
    assert [{*ledger.latest} for ledger in ledgers] == [days(1), days(2), days(3)]
    # A commit that is restored is read, although the log has no later one.
    DeltaTable(url).create_checkpoint()
    first = url / "_delta_log" / f"{0:020d}.json"
    text = first.read_bytes()
    first.unlink()
    assert not read_ledger(str(url), EU).records
    assert {*read_ledger(str(url), US).latest} == days(2)
    first.write_bytes(text)
    assert {*read_ledger(str(url), EU).latest} == days(1)


def test_parts_of_different_versions_are_not_committed_together(tmp_path):
    """A commit came while their ledgers were read: it may be of one of them."""
    url = tmp_path / "region_orders"
    commit_part(url, "eu", 1)
    eu = read_ledger(str(url), EU)
    commit_part(url, "us", 1)
    us, record = read_ledger(str(url), US), commit_metadata(days(1))
    writer = Writer(Mock(side_effect=AssertionError), str(url), US)
    assert writer.commit({}, [day(1)], record, us, [PartRecord(record, eu)]) is None
    assert DeltaTable(url).version() == 1


def test_a_table_of_others_has_the_days_of_all_parts_of_a_commit(tmp_path):
    """A table with parts that another project writes with this package, read by day."""
    url = tmp_path / "region_orders"
    commit_part(url, "eu", 1)
    others = [commit_metadata(days(3), part="us"), commit_metadata(days(4), part="apac")]
    metadata = commit_metadata(days(2), part="eu", other_parts=others)
    commit_rows(url, [(2, "eu"), (3, "us"), (4, "apac")], metadata)
    table = external_table("region_orders", WorldOrders, partition="run_date")
    ledger = read_ledger(str(url), table, str(tmp_path))
    assert ledger.published_days == days(1, 2, 3, 4)


def test_another_writer_changes_the_days_of_the_parts_that_it_wrote(tmp_path):
    url = tmp_path / "region_orders"
    commit_part(url, "eu", 1, 2)
    commit_rows(url, [(1, "eu"), (2, "us"), (3, "us")])
    eu, us, apac = (read_ledger(str(url), table) for table in (EU, US, APAC))
    assert [commit.days for commit in eu.external_commits] == [days(1)]
    # This part has no commit of ours before: the rows are another's all the same.
    assert [commit.days for commit in us.external_commits] == [days(2, 3)]
    assert not apac.external_commits


def test_a_table_of_days_alone_has_nothing_of_a_part(tmp_path):
    """It was partitioned by day and part, and is declared without."""
    url = tmp_path / "region_orders"
    commit_part(url, "eu", 1)
    ledger = read_ledger(str(url), world_orders)
    assert not ledger.latest
    assert not ledger.records


def encode(table: Table, *actions: Mapping[str, Any]) -> dict[str, Any]:
    text = "\n".join(map(json.dumps, actions)).encode()
    return json.loads(encode_commit(table, 7, text) or b"{}")


def file_action(kind: str, path: str, **values: str) -> dict[str, Any]:
    more = {"partitionValues": values} if values else {}
    return {kind: {"path": path, "dataChange": True, **more}}


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (file_action("add", "x", run_date="2024-01-05", region="eu"), "2024-01-05/eu"),
        (file_action("remove", "run_date=2024-01-05/region=us-1/x"), "2024-01-05/us-1"),
        (file_action("remove", "run_date=2024-01-05/x"), None),
        (file_action("remove", "elsewhere/x"), None),
    ],
)
def test_the_days_of_another_writer_have_their_part(action, expected):
    info = {"commitInfo": {"operation": "WRITE"}}
    encoded = encode(EU, info, action)
    assert encoded.get("days") == ([expected] if expected else None)
    assert bool(encoded.get("anywhere")) is (expected is None)
    assert encode(FACT, info, file_action("add", "x", run_date="2024-01-05"))["days"] == [
        "2024-01-05"
    ]


def test_without_a_dimension_a_commit_has_no_part():
    """The copy of the commits of a table with parts has another form."""
    info = {"userMetadata": json.dumps(commit_metadata(days(1)))}
    encoded = encode(FACT, {"commitInfo": {"operation": "WRITE", **info}})
    assert "part" not in encoded["record"]
    assert encoding_id(FACT).split()[:2] == ["4", "run_date"]
    assert encoding_id(EU).split()[:3] == ["4", *PAIR]
    assert encoding_id(EU) == encoding_id(US)


# --- undo -----------------------------------------------------------------------------------------


def test_an_undo_of_a_part_changes_tables_of_that_part_alone():
    """What is made of several parts has no rows to go back to, and is left."""
    runs = InventedRuns(DEPLOYMENT)
    tables = [*GRAPH.tables.values()]
    for built in tables:
        runs.build(built, (1, 2), run="run-before")
    for built in tables:
        runs.build(built, 2, run="wrong-run")
    snapshot = Snapshot.from_deployment(DEPLOYMENT, runs.ledgers)
    every = undo_scopes(snapshot, "wrong-run")
    assert {name for name, scope in every.items() if scope.changes} == GRAPH.tables.keys()
    of_part = undo_scopes(snapshot, "wrong-run", None, "us")
    changed = {name for name, scope in of_part.items() if scope.changes}
    assert changed == {table.name for table in tables if table.part == "us"}
    assert [*of_part[US.name].changes] == [day(2)]
    assert of_part.keys() == every.keys()
    assert not any(scope.problems for scope in of_part.values())


@pytest.mark.parametrize(
    ("partitions", "part", "options"),
    [
        (None, "", ""),
        (None, "us", " --part us"),
        (window(2, 2), "us", " --partitions 2024-01-02 --part us"),
    ],
)
def test_the_plan_of_an_undo_names_the_command_for_the_same(monkeypatch, partitions, part, options):
    runs = InventedRuns(DEPLOYMENT)
    for built in (EU, US):
        runs.build(built, (1, 2), run="run-before")
        runs.build(built, 2, run="wrong-run")
    monkeypatch.setattr(undo, "read_ledgers", lambda _: runs.ledgers)
    monkeypatch.setattr(undo.UndoPlan, "problems", ())
    monkeypatch.setattr(parameters, "chosen_part", lambda: part)
    monkeypatch.setattr(switch, "resolve_names", lambda *_: ())
    monkeypatch.setattr(switch, "refuse_undo", lambda *_: None)
    printed = Mock(json=False)
    outcomes._plan_undo(printed, DEPLOYMENT, Mock(), "wrong-run", partitions)
    printed.print_note.assert_called_once_with(f"Next     backfill-assets undo wrong-run{options}")


def test_the_command_of_a_past_run_has_its_part():
    class Run:
        job_name = "daily_by_region"
        asset_selection = (DEPLOYMENT.asset_key(EU.name),)
        tags = run_tags([US], window(1, 2))

    command = "backfill-assets materialize 2024-01-01...2024-01-02 --select region_orders/us"
    assert history._run_command(DEPLOYMENT, Run()) == command
    Run.tags = run_tags([EU, US], window(1, 2))
    both = command.replace("/us", "/eu,region_orders/us")
    assert history._run_command(DEPLOYMENT, Run()) in (both, command.removesuffix("/us"))


# --- commands -------------------------------------------------------------------------------------


@pytest.fixture
def _settings(monkeypatch, tmp_path):
    monkeypatch.setenv("BACKFILL_ASSETS_TABLES", NAMES)
    monkeypatch.setenv("BACKFILL_ASSETS_END", str(day(32)))
    (tmp_path / "warehouse").mkdir()
    monkeypatch.setenv("BACKFILL_ASSETS_LANDING", str(tmp_path / "landing"))
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", str(tmp_path / "warehouse"))


def parse(*arguments: str) -> dict[str, Any]:
    """The parameters that a command gets."""
    name, *rest = arguments
    parent = cli.make_context("backfill-assets", [name])
    command = cli.get_command(parent, name)
    assert command is not None
    return command.make_context(name, rest, parent).params


def test_a_migration_is_of_all_parts_of_a_table(_settings, monkeypatch):
    migrated = []

    def note_parts(url: str, *parts: Table) -> None:
        migrated.append((url.rpartition("/")[2], [table.name for table in parts]))

    monkeypatch.setattr(migrate, "read_migration", note_parts)
    orders = ("region_orders", [f"region_orders/{part}" for part in REGION.values])
    for arguments in (["region_orders/eu"], ["--select", "region_orders", "--part", "us"]):
        assert main(["migrate", *arguments]) == 0
        assert migrated == [orders]
        migrated.clear()
    assert main(["migrate"]) == 0
    assert len(migrated) == len(GRAPH.assets)
    assert orders in migrated


def names_of(part: str, *assets: str) -> tuple[str, ...]:
    return tuple(f"{asset}/{part}" for asset in assets or [*GRAPH.assets][:-1])


@pytest.mark.usefixtures("_settings")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--select", "region_orders"], tuple(table.name for table in (EU, US, APAC))),
        (["--select", "region_orders/us"], (US.name,)),
        (["--select", "region_orders/us,region_orders/eu"], (EU.name, US.name)),
        (["--select", "region_orders", "--part", "us"], (US.name,)),
        (["--part", "us", "--select", "region_orders"], (US.name,)),
        (["--part", "us", "--select", "region_orders,world_orders"], (US.name,)),
        (["--part", "us"], names_of("us")),
        (["--select", "*"], tuple(GRAPH.tables)),
        (["--select", "world_orders"], ("world_orders",)),
        ([], ()),
    ],
)
def test_tables_of_a_command(options, expected):
    for command in ("plan", "materialize", "verify", "backfill"):
        assert parse(command, "2024-01-05", *options)["tables"] == expected
    if "--part" in options:
        options = [o for o in options if o not in ("--part", "us")]
        for command in ("plan", "materialize", "verify", "backfill"):
            assert parse(command, *options, "2024-01-05/us")["tables"] == expected
            assert parse(command, "2024-01-05/us", *options)["tables"] == expected


@pytest.mark.usefixtures("_settings")
def test_the_days_of_a_command_may_have_a_part():
    assert parse("verify", "2024-01-01...2024-01-03/us")["partitions"] == window(1, 3)
    assert parse("materialize", "2024-01-01,2024-01-03/us")["partitions"] == DaySet.from_days(
        days(1, 3)
    )
    assert parse("backfill", "2024-01-01...2024-01-03/us")["what"] == "2024-01-01...2024-01-03"
    assert parse("backfill", "aecrkdop")["what"] == "aecrkdop"
    assert parse("undo", "aecrkdop", "--days", "2024-01-01/us")["partitions"] == window(1, 1)
    assert parse("plan", "2024-01-01/us", "--part", "us")["tables"] == names_of("us")


@pytest.mark.usefixtures("_settings")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("days: 2024-01-05\npart: us\nselect: region_orders", []),
        ("days: 2024-01-05/us\nselect: region_orders", []),
        ("days: 2024-01-03\nselect: region_orders", ["2024-01-05", "--part", "us"]),
        ("days: 2024-01-03\nselect: region_orders", ["2024-01-05/us"]),
    ],
)
def test_a_file_of_options_may_have_the_part(text, words, tmp_path):
    file = tmp_path / "backfill.yaml"
    file.write_text(text)
    parsed = parse("plan", "--from", str(file), *words)
    assert (parsed["partitions"], parsed["tables"]) == (window(5, 5), (US.name,))


@pytest.mark.usefixtures("_settings")
def test_tables_that_are_arguments_are_those_of_the_part(capsys):
    assert main(["show", "region_orders", "--part", "us", "--json"]) == 0
    assert [row["table"] for row in json.loads(capsys.readouterr().out)] == [US.name]
    assert main(["show", "region_orders", "--json"]) == 0
    shown = [row["table"] for row in json.loads(capsys.readouterr().out)]
    assert shown == [EU.name, US.name, APAC.name]


@pytest.mark.usefixtures("_settings")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "--part", "mars"], "no table has a part mars"),
        (["undo", "aecrkdop", "--part", "mars"], "no table has a part mars"),
        (["show", "--part", "us", "world_orders"], "no table of these has a part us"),
        (["verify", "2024-01-05/mars"], "no table has a part mars"),
        (["show", "--select", "region_orders/mars"], "region_orders/mars"),
        (["verify", "2024-01-05/us", "--part", "eu"], "part us, and part eu: give one"),
        (["history", "region_orders"], "has parts: give one of region_orders/eu, region_orders/us"),
        # Where the part would change nothing, it is not passed over.
        (["history", "region_orders/eu", "2024-01-05/us"], "history takes days without a part"),
        (["close", "orders/eu", "2024-01-05/us", "--reason", "x"], "close takes days without a"),
        (["switch", "v2", "--days", "2024-01-05/us"], "switch takes days without a part"),
    ],
)
def test_a_part_that_is_not_there_is_refused(arguments, message, capsys):
    assert message in usage_error(capsys, *arguments)


# --- the landing ----------------------------------------------------------------------------------


def put_file(root: Path, name: str, n: int = 1) -> None:
    path = root / "orders" / f"arrival_date={day(n)}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")


def list_part(root: Path, part: str, **how: Any) -> Any:
    return list_landing(str(root), ORDERS.parts[part], **how)


@pytest.mark.parametrize("how", [{}, {"days": [day(1), day(2), day(3)]}])
def test_a_part_has_its_own_folders(tmp_path, how):
    put_file(tmp_path, "region=eu/a.jsonl")
    put_file(tmp_path, "region=us/b.jsonl")
    put_file(tmp_path, "region=us/_control.json", 2)
    eu, us, apac = (list_part(tmp_path, part, **how) for part in REGION.values)
    assert {d: [*folder.files] for d, folder in eu.folders.items()} == {
        day(1): [f"arrival_date={day(1)}/a.jsonl"]
    }
    assert us.folders.keys() == days(1, 2)
    # The part has sent nothing, though the day's folder is there.
    assert not apac.folders
    assert not eu.strays + us.strays + apac.strays


@pytest.mark.parametrize("how", [{}, {"days": [day(1)]}])
def test_what_lies_beside_the_folders_of_parts_is_told_once(tmp_path, how):
    put_file(tmp_path, "region=eu/a.jsonl")
    for name in ("region=mars/a.jsonl", "a.jsonl", "_control.json", "_SUCCESS", ".hidden"):
        put_file(tmp_path, name)
    eu, us, _ = (list_part(tmp_path, part, **how) for part in REGION.values)
    folder = f"arrival_date={day(1)}"
    assert eu.strays == tuple(f"{folder}/{n}" for n in ("_control.json", "a.jsonl", "region=mars"))
    assert not us.strays
    # Those of a day are told with that day.
    assert len(eu.strays_of(day(1))) == 3


def test_a_link_of_a_part_that_leads_out_of_the_landing_is_refused(tmp_path):
    root = tmp_path / "landing"
    for name in ("region=eu/a.jsonl", "region=us/a.jsonl"):
        put_file(root, name)
    put_file(tmp_path / "out", "region=apac/a.jsonl")
    folder = f"orders/arrival_date={day(1)}"
    (root / folder / "region=apac").symlink_to(tmp_path / "out" / folder / "region=apac")
    (root / "orders" / f"arrival_date={day(2)}").symlink_to(tmp_path / "out" / folder)
    eu, _, apac = (list_part(root, part) for part in REGION.values)
    assert not any(file.refused for file in eu.folders[day(1)].files.values())
    for n in (1, 2):
        (refused,) = apac.folders[day(n)].files.values()
        assert refused.refused
    assert eu.folders[day(2)].files.keys() == apac.folders[day(2)].files.keys()


# --- the page -------------------------------------------------------------------------------------


def test_the_tables_of_the_page():
    block, hours = code_blocks("docs/regions.md", "python")
    imports, *_ = code_blocks("docs/own-tables.md", "python")[0].partition("\n\n\nclass ")
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(f"{imports}\n{block}", "docs/regions.md", "exec"), namespace)
    graph = load_graph(DEPLOYMENT.settings, namespace["TABLES"])
    assert [*graph.tables] == [name for name in GRAPH.tables if not name.startswith("customer_")]
    assert graph.inputs.keys() == graph.tables.keys()
    for name in graph.tables:
        assert input_names(graph, name) == input_names(GRAPH, name)
    namespace = {"Source": Source, "View": View}
    exec(compile(hours, "docs/regions.md", "exec"), namespace)
    assert namespace["VIEWS"].parts["09"].raw.by_hour


# --- a folder that has not come -------------------------------------------------------------------


def make_raw_ledger(part: str, *missing: int, closed: Iterable[int] = ()) -> Ledger:
    """The ledger of a part's log, whose days 1 to 3 are loaded; some without their folder."""
    manifests = {
        day(n): LoadManifest(
            present_days=frozenset({day(n)}.difference(map(day, missing))), closed=n in closed
        ).as_json
        for n in (1, 2, 3)
    }
    table = GRAPH.tables[f"raw_orders/{part}"]
    return ledger(table, record(1, days((1, 3)), landing=manifests))


def assess_parts(name: str, *logs: Ledger, **more: Any) -> dict[int, str]:
    """By day, what a table waits for; all days of the parts are published."""
    tables = GRAPH.tables.values()
    filled = {t.name: ledger(t, record(1, days((1, 3)))) for t in tables if t.part}
    known = filled | {raw.table.name: raw for raw in logs} | more.pop("ledgers", {})
    ledgers = {"world_orders": Ledger(GRAPH.tables["world_orders"]), **known}
    snapshot = Snapshot(GRAPH, ledgers, **more)
    assessments = assess(snapshot, name, [day(n) for n in (1, 2, 3)])
    return {d.day: a.not_due for d, a in assessments.items() if a.not_due}


def test_a_day_of_all_parts_waits_for_the_folder_of_each():
    logs = [make_raw_ledger("eu"), make_raw_ledger("us", 2, 3), make_raw_ledger("apac", 3)]
    waiting = assess_parts("world_orders", *logs)
    assert waiting == {
        2: "it waits for the folder of raw_orders/us[2024-01-02]",
        3: "it waits for the folder of raw_orders/apac[2024-01-03], raw_orders/us[2024-01-03]",
    }
    for part in REGION.values:
        assert assess_parts(f"region_orders/{part}", *logs) == {}


def test_a_folder_that_is_not_expected_is_not_waited_for():
    assert assess_parts("world_orders", make_raw_ledger("us", 2, closed=[2])) == {}


def test_a_published_day_does_not_wait():
    world = ledger(GRAPH.tables["world_orders"], record(1, days(2)))
    logs = [make_raw_ledger("us", 2, 3)]
    assert [*assess_parts("world_orders", *logs, ledgers={"world_orders": world})] == [3]


def test_a_plan_knows_which_folders_come():
    """A folder that a plan loads is there afterwards; a day that it loads without one waits."""
    plans = {"raw_orders/us": {day(1): True, day(2): False}}
    waiting = assess_parts("world_orders", make_raw_ledger("us", 2, 3), folder_plans=plans)
    assert [*waiting] == [1, 3]


def test_only_a_table_that_joins_parts_waits_for_their_folders():
    assert GRAPH.joined_logs("world_orders") == {f"raw_orders/{part}" for part in REGION.values}
    assert GRAPH.joined_logs("region_orders/eu") == frozenset()
    after = declare(Reads(world_orders), model=WorldOrders, name="after")
    graph = expand(world_orders, after)
    assert graph.joined_logs("world_orders")
    assert graph.joined_logs("after") == frozenset(), "it waits for the day of the world"
