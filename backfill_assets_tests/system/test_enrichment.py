"""Tables that ask a service: that of docs/enrichment.md, and one that asks for each order."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import dagster as dg
import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Lookup, LookupAnswers, Quota, Reads, conserves_total, table
from backfill_assets.backfills.backfill_plan import DayOutcome, plan_facts
from backfill_assets.backfills.verify import VerifyOutcome
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import Window
from backfill_assets.cli import main
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.lookups import batch
from backfill_assets.lookups.batch import forget_answers
from backfill_assets.orders.tables import ORDERS, STAGED
from backfill_assets.settings import SettingsError, load_settings
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.derived import current_table
from backfill_assets.tables.graph import tables_of
from backfill_assets_guide.examples.customers import enrichment
from backfill_assets_guide.examples.customers.enrichment import RATES, fact_orders_eur
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.invented_logs import snapshot_ledgers
from backfill_assets_tests.helpers.pipeline import (
    Pipeline,
    copy_loaded,
    day,
    make_plan,
    order,
    run_undo,
    run_verify,
)
from backfill_assets_tests.helpers.rate_server import SECRET, rate_server, true_rate

EUR = fact_orders_eur.name


class Score(pa.DataFrameModel):
    """What the service says of an order."""

    day: T.DateType = Field(description="The day.")
    currency: T.StringType = Field(description="The order.")
    in_euros: T.DecimalType(12, 6) = Field(gt=0, lt=1, description="Its score.")


class OrderScore(pa.DataFrameModel):
    """An order and its score."""

    run_date: T.DateType = Field(description="The day.")
    order_id: T.StringType = Field(description="The order.")
    score: T.DecimalType(12, 6) = Field(description="Its score.")
    amount: T.DecimalType(18, 2) = Field(description="Its amount.")


SCORES = Lookup(
    "scores",
    Score,
    request=["day", "currency"],
    path="/rates/{day}/{currency}",
    url="RATES_URL",
    secret="RATES_KEY",
    quota=Quota(20, "day"),
    reserve=0.5,
    patience=1.0,
    tries=2,
)


def scores_needed(orders: DataFrame) -> DataFrame:
    return orders.select(
        "for_day", F.col("for_day").alias("day"), F.col("order_id").alias("currency")
    )


@table(
    OrderScore,
    partition="run_date",
    key=["order_id"],
    totals=["amount"],
    checks=[conserves_total("orders", "amount", "amount")],
)
def order_scores(
    orders: Annotated[DataFrame, Reads(STAGED)],
    scores: Annotated[DataFrame, LookupAnswers(SCORES, of=scores_needed)],
) -> DataFrame:
    """The score of each order."""
    named = scores.withColumnRenamed("currency", "order_id")
    return orders.join(named, ["for_day", "order_id"]).select(
        F.col("for_day").alias("run_date"), "order_id", F.col("in_euros").alias("score"), "amount"
    )


SCORED = order_scores.name
STAGING = ("raw_orders", STAGED.name)
TABLES = [*ORDERS, fact_orders_eur, order_scores]
FIVE = Window(day(1), day(6))


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(batch, "_FIRST_PAUSE", 0.01)
    with rate_server() as rates_server:
        monkeypatch.setenv("RATES_URL", rates_server.url)
        monkeypatch.setenv("RATES_KEY", SECRET)
        yield rates_server


def make_pipeline(engine, root: Path) -> Pipeline:
    """That a day has alone what it has in a range is compared in a test, not by each run."""
    place = "backfill_assets_tests.system.test_enrichment:TABLES"
    return Pipeline(engine, root, tables=place, window_days=2, check_independence=False)


@pytest.fixture(scope="module")
def loaded(engine, spark, tmp_path_factory) -> Path:
    """Five days of orders, to be copied: nobody has asked the service yet."""
    pipeline = make_pipeline(engine, tmp_path_factory.mktemp("loaded"))
    for n in range(1, 6):
        pipeline.land(n, [order(f"o{n}{c}", n, f"{n}.50", c) for c in ("c1", "c2", "c3")])
    pipeline.run(1, 5, STAGING)
    return pipeline.root


@pytest.fixture
def pipeline(engine, loaded, tmp_path, server) -> Pipeline:
    copy_loaded(loaded, tmp_path)
    return make_pipeline(engine, tmp_path)


@dataclass(frozen=True)
class Asked:
    """The same days in euros, with all answers, to be copied.

    Attributes:
        root: its folders.
        requested_paths: what was asked.
        shown: what Dagster shows of the last day.
    """

    root: Path
    requested_paths: list[str]
    shown: Mapping[str, dg.MetadataValue]

    def copy(self, engine, root: Path) -> Pipeline:
        copy_loaded(self.root, root)
        return make_pipeline(engine, root)


@pytest.fixture(scope="module")
def asked(engine, loaded, tmp_path_factory) -> Asked:
    root = tmp_path_factory.mktemp("asked")
    copy_loaded(loaded, root)
    pipeline = make_pipeline(engine, root)
    with rate_server() as rates_server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATES_URL", rates_server.url)
        patch.setenv("RATES_KEY", SECRET)
        pipeline.run(1, 5, [EUR])
    event = pipeline.instance.get_latest_materialization_event(dg.AssetKey(EUR))
    return Asked(root, rates_server.requested_paths, event.asset_materialization.metadata)


def amounts_by_order(pipeline: Pipeline) -> dict[str, Decimal]:
    return {row["order_id"]: row["amount_eur"] for row in pipeline.rows(EUR)}


def expected_amounts(*numbers: int) -> dict[str, Decimal]:
    return {
        f"o{n}{c}": (Decimal(f"{n}.50") * true_rate(str(day(n)), "USD")).quantize(
            Decimal("0.01"), "ROUND_HALF_UP"
        )
        for n in numbers
        for c in ("c1", "c2", "c3")
    }


def record_of(pipeline: Pipeline, name: str, n: int):
    return read_ledgers(pipeline.deployment)[name].latest[day(n)].days[day(n)]


def read_backlog(pipeline: Pipeline):
    ledgers = read_ledgers(pipeline.deployment)
    return find_stale_days(
        snapshot_ledgers(ledgers, Policy.from_settings(pipeline.settings), pipeline.now.date())
    )


def test_a_replay_makes_no_call_and_verify_proves_it(asked, engine, tmp_path, server):
    pipeline = asked.copy(engine, tmp_path)
    assert amounts_by_order(pipeline) == expected_amounts(1, 2, 3, 4, 5)
    assert sorted(asked.requested_paths) == [f"/rates/{day(n)}/USD" for n in range(1, 6)]
    record = record_of(pipeline, EUR, 3)
    numbers = {"requests to exchange_rates": 1, "calls of exchange_rates": 1}
    assert record.numbers == numbers
    shown = {name.replace(" ", "_"): number for name, number in numbers.items()}
    assert {name: asked.shown[name].value for name in shown} == shown

    commits = pipeline.log(EUR).version()
    pipeline.run(1, 5, [EUR])
    assert pipeline.log(EUR).version() == commits
    pipeline.run(1, 5, [EUR], tags={"backfill_assets/rewrite": "true"})
    assert record_of(pipeline, EUR, 3).numbers == numbers | {"calls of exchange_rates": 0}
    assert record_of(pipeline, EUR, 3).digest == record.digest

    # What lands for a day asks for what is new of it alone, and makes no other day due.
    pipeline.land(5, [order("o5c4", 5, "5.50", "c4")], "part-1.jsonl")
    pipeline.run(5, 5, STAGING)
    assert set(read_backlog(pipeline).all_days(EUR)) == {day(5)}
    pipeline.run(1, 5, [EUR])
    assert (server.requested_paths, len(amounts_by_order(pipeline))) == ([], 16)

    # Verification makes no call, also where answers are lacking.
    url = RATES.place(str(pipeline.warehouse))
    assert forget_answers(RATES, url, f"day = '{day(2)}'") == 1
    results = run_verify(pipeline.settings, engine, FIVE, [EUR])
    assert [result.outcome is VerifyOutcome.MATCHES for result in results] == [
        True,
        False,
        True,
        True,
        True,
    ]
    assert "no answer is kept, and this run makes no call" in str(results[1])
    assert server.requested_paths == []


def test_what_is_forgotten_is_asked_again(asked, engine, tmp_path, server, monkeypatch, capsys):
    """A person forgets answers by a command. An undo takes back days, and no answers."""
    pipeline = asked.copy(engine, tmp_path)
    assert not read_backlog(pipeline).all_days(EUR)
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", str(pipeline.warehouse))
    monkeypatch.setenv("BACKFILL_ASSETS_TABLES", pipeline.settings.tables)
    # As the page has it, of another day.
    _, forget = code_blocks("docs/enrichment.md", "text")
    program, *words = shlex.split(forget.replace("2024-01-05", str(day(2))))
    assert (program, main(words)) == ("backfill-assets", 0)
    assert "exchange_rates: 1 answers forgotten" in capsys.readouterr().out
    assert len(pipeline.rows(RATES.name)) == 4
    assert main(["forget", RATES.name, f"day = '{day(2)}'"]) == 1
    assert main(["forget", RATES.name, "nonsense"]) == 3
    assert main(["forget", "another", "TRUE"]) == 3
    message = capsys.readouterr().err
    assert "no lookup is named another; there are ['exchange_rates', 'scores']" in message

    assert set(read_backlog(pipeline).all_days(EUR)) == {day(n) for n in range(1, 6)}
    table_plan = make_plan(pipeline, f"{day(1)}...{day(5)}", tables=[EUR]).tables[EUR]
    assert [*table_plan.days_by_reason()] == [
        (DayOutcome.COMPUTED, "new input: exchange_rates", [day(n) for n in range(1, 6)])
    ]
    server.behave = lambda path, before: 'with {"in_euros": "2"}'
    before = amounts_by_order(pipeline)
    run = pipeline.run(1, 5, [EUR])
    assert server.requested_paths == [f"/rates/{day(2)}/USD"]
    assert not read_backlog(pipeline).all_days(EUR)
    after = amounts_by_order(pipeline)
    assert after == expected_amounts(1, 3, 4, 5) | {
        f"o2{c}": Decimal("5.00") for c in ("c1", "c2", "c3")
    }

    run_undo(pipeline, run.run_id[:8])
    assert amounts_by_order(pipeline) == before
    server.requested_paths.clear()
    pipeline.run(1, 5, [EUR])
    assert (amounts_by_order(pipeline), server.requested_paths) == (after, [])


def test_what_goes_wrong_leaves_its_days_unpublished_and_shows_no_secret(
    pipeline, server, monkeypatch, caplog, capfd
):
    caplog.set_level(logging.DEBUG)
    behaviors = {2: 'with {"in_euros": "91.5"}', 3: "echo", 4: "status 503"}
    # Of the first day, the first answer is cut off.
    server.behave = lambda path, before: behaviors.get(int(path[15:17]), "truncated" * (not before))
    result = pipeline.run(1, 5, [EUR], fails=True)
    message = pipeline.failure(result)
    assert f"fact_orders_eur[{day(4)}]" in message
    assert f"e.g. USD {day(4)}" in message
    assert "exchange_rates: 1 of 1 request has no answer: HTTP 503 (tried 5 times)" in message
    assert "in_euros is 91.5, which is not < 10 (tried 5 times)" in message
    assert "an answer that has the secret in it" in message
    assert amounts_by_order(pipeline) == expected_amounts(1, 5)
    assert read_ledgers(pipeline.deployment)[EUR].published_days == {day(1), day(5)}
    # A wrong answer is never kept.
    answers = {row["day"]: row["in_euros"] for row in pipeline.rows(RATES.name)}
    assert answers == {day(n): true_rate(str(day(n)), "USD") for n in (1, 5)}
    make_plan(pipeline, f"{day(1)}...{day(5)}", tables=[EUR])
    check_no_secret(pipeline, result, [caplog.text, *capfd.readouterr()])

    # So does a service that nobody has named.
    server.requested_paths.clear()
    with monkeypatch.context() as patch:
        patch.delenv("RATES_KEY")
        message = pipeline.failure(pipeline.run(1, 5, [EUR], fails=True))
    assert "the variable RATES_KEY is not the service's secret" in message
    assert amounts_by_order(pipeline) == expected_amounts(1, 5)
    assert server.requested_paths == []
    # What the trouble has left is due, and asked again.
    server.behave = lambda path, before: ""
    assert set(read_backlog(pipeline).open[EUR]) == {day(2), day(3), day(4)}
    pipeline.run(1, 5, [EUR], tags={"dagster/sensor_name": "touched_days"})
    assert sorted(server.requested_paths) == [f"/rates/{day(n)}/USD" for n in (2, 3, 4)]
    assert amounts_by_order(pipeline) == expected_amounts(1, 2, 3, 4, 5)


def check_no_secret(
    pipeline: Pipeline, result: dg.ExecuteInProcessResult, texts: list[str]
) -> None:
    """See that the secret is in no event, log, output, file or setting."""
    records = [str(entry) for entry in pipeline.instance.all_logs(result.run_id)]
    run = pipeline.instance.get_run_by_id(result.run_id)
    texts = [*records, str(run), *texts]
    assert any("HTTP 503" in text for text in texts)
    assert "RATES_KEY" not in str(run.run_config)
    files = [path for path in pipeline.root.rglob("*") if path.is_file()]
    home = pipeline.instance.root_directory
    files += [path for path in Path(home).rglob("*") if path.is_file()]
    assert any("quotas" in str(path) for path in files)
    texts += [path.read_bytes().decode(errors="replace") for path in files]
    assert any("not_published" in text for text in texts)
    assert not [text[:200] for text in texts if SECRET in text]
    assert SECRET not in json.dumps(pipeline.settings.model_dump(mode="json"))
    assert SECRET not in repr(RATES)


def test_a_day_and_a_range_ask_the_same_and_are_the_same(pipeline, server, asked, engine):
    pipeline.run(4, 4, [EUR])
    at_once = make_pipeline(engine, asked.root)
    assert record_of(pipeline, EUR, 4).digest == record_of(at_once, EUR, 4).digest
    assert server.requested_paths == [f"/rates/{day(4)}/USD"]
    assert {*server.requested_paths} < {*asked.requested_paths}


def test_live_runs_have_the_reserve_and_backfills_leave_it(pipeline, server):
    """Twenty calls a day, half of them for the schedule and the sensors; a plan says how many."""
    days = f"{day(1)}...{day(5)}"
    facts = dict(plan_facts(make_plan(pipeline, days, tables=[EUR, SCORED])))
    assert facts["calls of scores"] == (
        "at most 15 (one for each row that is read): at most 1 day, 12:00:00, at 20 a day less a "
        "reserve of 50%"
    )
    assert make_plan(pipeline, days, tables=[STAGED.name]).calls == {}
    message = pipeline.failure(pipeline.run(1, 5, [SCORED], fails=True))
    published = {row["run_date"] for row in pipeline.rows(SCORED)}
    assert len(server.requested_paths) == 10
    # In the order of the requests, but for those that are under way at once: of ten, nine are of
    # the first three days, unless one of the fourth day overtakes them.
    assert {day(1), day(2)} <= published <= {day(1), day(2), day(3)}
    assert (
        "scores: 3 of 3 requests have no answer: not asked: the quota is used up until" in message
    )
    remaining = make_plan(pipeline, days, tables=[SCORED]).calls["scores"]
    assert remaining.at_most == remaining.expected == 3 * len(set(FIVE) - published)
    pipeline.run(1, 5, [SCORED], tags={"dagster/sensor_name": "touched_days"})
    assert {row["run_date"] for row in pipeline.rows(SCORED)} == set(FIVE)
    assert len(server.requested_paths) == len(set(server.requested_paths)) == 15
    rewrite_plan = make_plan(pipeline, days, tables=[SCORED], rewrite=True)
    assert rewrite_plan.calls["scores"].at_most == 0


def test_steps_that_ask_are_in_a_pool(pipeline):
    graph = pipeline.repository.asset_graph
    assert graph.get(dg.AssetKey(EUR)).pools == {"exchange_rates"}
    assert graph.get(dg.AssetKey(RATES.name)).is_external
    assert not graph.get(dg.AssetKey(STAGED.name)).pools


def test_the_page_shows_the_end_of_the_module():
    (block,) = code_blocks("docs/enrichment.md", "python")
    assert Path(enrichment.__file__).read_text().endswith(block)


@table(OrderScore, partition="run_date", key=["order_id"], totals=["amount"])
def other_scores(
    orders: Annotated[DataFrame, Reads(STAGED)],
    scores: Annotated[DataFrame, LookupAnswers(replace(SCORES, reserve=0.1), of=scores_needed)],
) -> DataFrame:
    """With another lookup of a name that there is."""
    return orders.join(scores, "for_day")


ALIKE = [*TABLES, other_scores]


def test_two_lookups_of_a_name_are_refused():
    with pytest.raises(SettingsError, match="two lookups are named scores"):
        tables_of(load_settings(tables=f"{__name__}:ALIKE"))


def test_what_is_not_possible_is_refused():
    with pytest.raises(DeclarationError, match="asks a service"):
        current_table(fact_orders_eur)

    def lookup_requests(nothing: DataFrame) -> DataFrame:
        return nothing

    def function(
        orders: Annotated[DataFrame, Reads(STAGED)],
        rates: Annotated[DataFrame, LookupAnswers(RATES, lookup_requests)],
    ) -> DataFrame:
        return orders

    function.__qualname__ = "function"
    function.__annotations__ = {
        "orders": Annotated[DataFrame, Reads(STAGED)],
        "rates": Annotated[DataFrame, LookupAnswers(RATES, lookup_requests)],
    }
    with pytest.raises(DeclarationError, match=r"the requests of rates are made of \['nothing'\]"):
        table(OrderScore, partition="run_date", key=["order_id"], totals=["amount"])(function)
