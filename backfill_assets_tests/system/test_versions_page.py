"""Two versions side by side, as their page has it: followed command by command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from backfill_assets.cli import main
from backfill_assets.settings import PREFIX
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.pipeline import Pipeline, order

BOTH = "backfill_assets_guide.examples.customers.two_versions:TABLES"
RETIRED = "backfill_assets_tests.retired_features:TABLES"
STEPS = [
    text
    for text in code_blocks("docs/shadow.md", "text")
    # The others are steps of a target.
    if text.startswith("$ ") and "features" in text.splitlines()[0]
]
MADE = ("features_v2", "training_daily_v2")
READ = ("raw_orders", "stg_orders", "fact_daily_orders")


@pytest.fixture
def production(engine, spark, tmp_path: Path, monkeypatch) -> Pipeline:
    pipeline = Pipeline(engine, tmp_path, tables=BOTH, window_days=1)
    for n in range(1, 4):
        pipeline.land(n, [order(f"{n}-{k}", n, customer=f"c{k}") for k in range(n)])
    pipeline.run(1, 3, [*READ, "features", "labels_daily"])
    (tmp_path / "home").mkdir()
    (tmp_path / "home/dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    for name in ("landing", "warehouse", "start", "end", "window_days"):
        monkeypatch.setenv(f"{PREFIX}{name.upper()}", str(getattr(pipeline.settings, name)))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setattr(Engine, "from_settings", lambda _: engine)
    return pipeline


def read_scores(pipeline: Pipeline, name: str) -> dict[tuple[str, str], str]:
    return {
        (str(row["event_date"]), row["user_id"]): str(row["engagement_score"])
        for row in pipeline.rows(name)
    }


def follow_step(step: str, capsys) -> None:
    """Do what a step of the page says, and see that what it shows is what is printed."""
    command, *shown = step.splitlines()
    name, *words = shlex.split(command.removeprefix("$ "))
    assert name == "backfill-assets"
    refused = any("is retired since" in line for line in shown)
    assert (main(words) != 0) == refused, capsys.readouterr()
    captured = capsys.readouterr()
    lines = [line.rstrip() for line in (captured.err if refused else captured.out).splitlines()]
    for line in shown:
        pattern = re.escape(line).replace(re.escape("..."), ".*").replace("\\ ", " +")
        assert any(re.fullmatch(f" *{pattern}", printed) for printed in lines), (line, lines)


def test_the_steps_do_what_the_page_says(production, capsys, monkeypatch):
    monkeypatch.setenv(f"{PREFIX}TABLES", BOTH)
    before, *after = STEPS
    follow_step(before, capsys)
    first = read_scores(production, "features")
    production.run(1, 3, MADE)
    # The first version is as it was; the second one counts seven days, not thirty.
    assert read_scores(production, "features") == first
    user = ("2024-01-03", "c0")
    scores = [read_scores(production, name)[user] for name in ("features", "features_v2")]
    assert scores == ["10.00", "42.86"]
    assert len(read_scores(production, "features_v2")) == len(first) == 6
    monkeypatch.setenv(f"{PREFIX}TABLES", RETIRED)
    for step in after:
        follow_step(step, capsys)
    assert production.rows("features") == []
    assert len(read_scores(production, "features_v2")) == 6
