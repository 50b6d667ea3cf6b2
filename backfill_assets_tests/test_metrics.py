"""Metrics for Prometheus: the figures of a snapshot, the command, and the file of the sensor."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime, timezone
from pathlib import Path

import dagster as dg
import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from backfill_assets.cli import main
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.metrics import GAUGES, format_metrics, read_metrics
from backfill_assets.monitoring.states import DayState, MonitoringSnapshot
from backfill_assets.orders.tables import FACT, LATE, RAW, REJECTED
from backfill_assets.settings import load_settings
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.command_line import JAN, publish_facts
from backfill_assets_tests.helpers.docs_pages import PAGES, code_blocks
from backfill_assets_tests.helpers.invented_logs import days, ledger, record
from backfill_assets_tests.helpers.invented_states import (
    POLICY,
    make_backlog,
    make_healthy_ledgers,
    make_snapshot,
)
from backfill_assets_tests.helpers.pipeline import Pipeline, day

Figures = dict[tuple[str, ...], float]


def parse_figures(text: str) -> Figures:
    """By name without the prefix, table, and value of the other label, if there is one."""
    return {
        (
            sample.name.removeprefix("backfill_assets_"),
            sample.labels["table"],
            *(value for label, value in sample.labels.items() if label != "table"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def figures_of(
    snapshot: MonitoringSnapshot, instance: dg.DagsterInstance | None = None, **settings
) -> Figures:
    deployment = Deployment(load_settings(**settings))
    instance = instance or dg.DagsterInstance.ephemeral()
    return parse_figures(format_metrics(read_metrics(deployment, snapshot, instance)))


def test_of_a_source_without_late_lines_nothing_is_told_of_them():
    whole = make_healthy_ledgers()
    few = {table.name: whole[table.name] for table in (RAW, REJECTED)}
    assert ("late_lines", LATE.name, "false") in figures_of(make_snapshot(whole))
    assert "late_lines" not in {name for name, *_ in figures_of(make_snapshot(few))}


def test_a_healthy_deployment():
    figures = figures_of(make_snapshot(), timezone="Europe/Berlin")
    assert figures["days", FACT.name, "final"] == 8
    assert figures["days", FACT.name, "open"] == 2
    assert figures["days", FACT.name, "missing"] == 0
    assert figures["days_behind", FACT.name, "false"] == 0
    newest = datetime.fromisoformat("2024-01-10T00:00:00+01:00").timestamp()
    assert figures["newest_day_timestamp_seconds", FACT.name] == newest
    assert figures["last_commit_rows", FACT.name] == 10
    assert not [key for key in figures if key[0] == "incidents"]


def test_days_behind_and_incidents():
    stale = make_backlog(day(2), day(3), table=FACT, final=True)
    figures = figures_of(make_snapshot(behind=stale, failed={RAW.name: days(4)}))
    assert figures["days_behind", FACT.name, "true"] == 2
    assert figures["days", RAW.name, "check failed"] == 1
    incidents = {key[1:]: value for key, value in figures.items() if key[0] == "incidents"}
    assert incidents == {
        (RAW.name, "check failed"): 1,
        (FACT.name, "new input for final days"): 2,
    }


@pytest.mark.parametrize("corrects", [True, False])
def test_late_lines(corrects):
    late = record(0, days((1, 10)), late={day(3): (2, "5.50"), day(4): (1, "1.00")})
    by_table = make_healthy_ledgers() | {LATE.name: ledger(LATE, late)}
    policy = POLICY.__class__(**{**vars(POLICY), "corrects": corrects})
    figures = figures_of(make_snapshot(by_table, policy=policy))
    dropped = "false" if corrects else "true"
    assert figures["late_lines", LATE.name, dropped] == 3
    assert figures["late_amount", LATE.name, dropped] == 6.5


def test_the_last_commit():
    """Its time, the rows that it wrote, and how long its run took."""
    with dg.DagsterInstance.ephemeral() as instance:
        run = dg.job(name="load")(lambda: None).execute_in_process(instance=instance)
        first, second = (record(n, days((1, 10)), rows=5, run=run.run_id) for n in (0, 1))
        at = datetime(2024, 1, 11, 2, tzinfo=timezone.utc)
        last = msgspec.structs.replace(second, at=at, written_days=days(9, 10))
        by_table = make_healthy_ledgers() | {FACT.name: ledger(FACT, first, last)}
        figures = figures_of(make_snapshot(by_table), instance)
    assert figures["last_commit_timestamp_seconds", FACT.name] == at.timestamp()
    assert figures["last_commit_rows", FACT.name] == 10
    assert 0 < figures["last_run_seconds", FACT.name] < 60
    assert ("last_run_seconds", RAW.name) not in figures


def test_the_page_names_each_gauge_and_the_states_that_are_good():
    page = PAGES["docs/monitoring.md"].partition("## Metrics for Prometheus")[2]
    assert {*re.findall(r"^backfill_assets_(\w+){", page, re.M)} == {*GAUGES}
    (block,) = code_blocks("docs/monitoring.md", "yaml")
    (rule,) = yaml.safe_load(block)
    (good,) = re.findall(r'state!~"([a-z |]+)"', rule["expr"])
    assert {*good.split("|")} == {state.value for state in DayState if state.is_good}


@pytest.fixture
def published(monkeypatch, tmp_path) -> Path:
    """Three days of facts, in a deployment of the environment."""
    for name in ("landing", "warehouse"):
        monkeypatch.setenv(f"BACKFILL_ASSETS_{name.upper()}", str(tmp_path / name))
    monkeypatch.setenv("BACKFILL_ASSETS_END", "2024-01-06")
    (tmp_path / "landing" / "orders").mkdir(parents=True)
    publish_facts(tmp_path, dict.fromkeys(JAN[:3], "ok"))
    return tmp_path


def test_the_command_counts_what_status_lists(published, capsys):
    assert main(["metrics"]) == 0
    text = capsys.readouterr().out
    figures = parse_figures(text)
    (example,) = re.findall(r"^backfill_assets_.* [\d.]+$", PAGES["docs/monitoring.md"], re.M)
    assert example in text.splitlines()
    main(["status", "--json"])
    ranges = json.loads(capsys.readouterr().out)["tables"][FACT.name]
    assert {*ranges} == {"missing", "made under other settings"}
    assert figures["days", FACT.name, "missing"] == 2
    assert figures["days", FACT.name, "made under other settings"] == 3
    assert figures["rows", FACT.name] == 6
    path = published / "metrics.prom"
    assert main(["metrics", "--file", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert parse_figures(path.read_text()) == figures
    assert main(["metrics", "--file", str(published / "none" / "metrics.prom")]) == 3


def make_pipeline(published: Path, **settings) -> Pipeline:
    """With an engine that is never started."""
    return Pipeline(Engine.from_settings(load_settings()), published, **settings)


def test_the_sensor_replaces_the_file(published, monkeypatch):
    path = published / "metrics.prom"
    path.write_text("old")
    pipeline = make_pipeline(published, metrics_file=path)
    pipeline.tick("watch_days")
    assert parse_figures(path.read_text())["days", FACT.name, "made under other settings"] == 3
    assert {x.name for x in published.glob("metrics*")} == {"metrics.prom"}


def test_a_file_that_cannot_be_written_ends_no_look(published):
    pipeline = make_pipeline(published, metrics_file=published / "none" / "metrics.prom")
    assert pipeline.tick("watch_days").asset_events


def test_without_the_setting_nothing_is_loaded(published, monkeypatch):
    monkeypatch.setitem(sys.modules, "backfill_assets.monitoring.metrics", None)
    assert make_pipeline(published).tick("watch_days").asset_events
