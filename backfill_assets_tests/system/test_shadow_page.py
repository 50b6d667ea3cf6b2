"""The page on shadow backfills is followed command by command, with readers that look all the time.

What it shows is what is printed: over three years, as it stands, and over five days, which takes
seconds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from backfill_assets.cli import main
from backfill_assets.delta.consistent_versions import save_versions
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.orders.tables import FACT
from backfill_assets.settings import PREFIX
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.command_line import JAN, publish_facts
from backfill_assets_tests.helpers.docs_pages import code_blocks, run_step
from backfill_assets_tests.helpers.paths import PROJECT, dagster_yaml
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order
from backfill_assets_tests.helpers.shadow_targets import AFTER, ALL, BEFORE, SCORES
from backfill_assets_tests.helpers.target_readers import CHANGED, run_reader

#: What the history of the table says of the commits of the steps.
KINDS = [
    "canary of target v2 by person",
    "switch-over of target v2 by person",
    "undo of target v2 by person",
]
STEPS = [
    text
    for text in code_blocks("docs/shadow.md", "text")
    # Those with features are steps of two versions side by side.
    if text.startswith("$ ") and "features" not in text.splitlines()[0]
]
(READER,) = code_blocks("docs/shadow.md", "python")
#: What readers of production see after each of them.
STATES = ["old"] * 4 + ["canary", "new", "old", "old"]
#: By the number of a day, its orders: on the days of the page, and on the first five of them.
FIRST = -1094
YEARS = dict.fromkeys(range(FIRST, 1), 1)
FEW = {FIRST + n: n + 1 for n in range(5)}
#: What the page says of three years, as it is of five days.
SHORTER = {"2023-12-31": "2021-01-05", "1095 ": "5 "}


@pytest.fixture
def home(engine, spark, tmp_path: Path, monkeypatch) -> Path:
    """What the commands find, but for where the tables are."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home/dagster.yaml").write_text(dagster_yaml().read_text())
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(f"{PREFIX}TABLES", AFTER)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setattr(Engine, "from_settings", lambda _: engine)
    return tmp_path


def build_production(
    engine: Engine, root: Path, orders: Mapping[int, int], monkeypatch
) -> Pipeline:
    """Tables by the code of before, with so many orders of one customer on each day."""
    first, end = min(orders), day(max(orders) + 1)
    pipeline = Pipeline(
        engine, root, tables=BEFORE, window_days=1, start=day(first), end=end, today=end
    )
    for n, count in orders.items():
        pipeline.land(n, [order(f"{n}-{k}", n) for k in range(count)])
    pipeline.run(first, max(orders), ALL)
    for name in ("landing", "warehouse", "start", "end", "window_days"):
        monkeypatch.setenv(f"{PREFIX}{name.upper()}", str(getattr(pipeline.settings, name)))
    return pipeline


@pytest.mark.slow
@pytest.mark.parametrize(
    "orders",
    [FEW, pytest.param(YEARS, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
    ids=["five_days", "three_years"],
)
def test_the_steps_do_what_the_page_says(home, engine, orders, capsys, monkeypatch):
    """How long each takes: `pytest -m slow -s -k three_years` prints it."""
    production = build_production(engine, home, orders, monkeypatch)
    # Who reads these versions sees the old definition all the time.
    save_versions(production.settings.warehouse, read_ledgers(production.deployment))
    before = production.digests()
    with run_reader(production, orders, rests=0.5) as reader:
        for step, then in zip(STEPS, STATES, strict=True):
            for original, shorter in SHORTER.items() if orders is FEW else ():
                step = step.replace(original, shorter)
            looked, began = reader.looks, time.monotonic()
            run_step(step, capsys)
            took, looked = time.monotonic() - began, reader.looks - looked
            with capsys.disabled():
                if orders is YEARS:
                    print(f"{took:6.1f} s, {looked:3} looks  {step.splitlines()[0]}", flush=True)
            assert reader.read_points() == [getattr(reader, then)] * 3
    assert not reader.wrong
    assert reader.looks > len(STEPS)
    assert main(["history", SCORES]) == 0
    output = capsys.readouterr().out
    kinds = re.findall("(canary of .*|switch-over of .*|undo of .*)", output)
    assert [kind.strip() for kind in kinds] == KINDS
    assert production.digests() == before
    for name in CHANGED:
        files = [*(production.warehouse / name).glob("run_date=*/*.parquet")]
        assert len(files) == 2 * len(orders), "those of before, and of the target once more"


def test_a_reader_gets_the_versions_that_belong_together(tmp_path, monkeypatch):
    """And not the commit that came later."""
    publish_facts(tmp_path / "data", dict.fromkeys(JAN[:3], "ok"))
    whole = Mock(version=0, table=Mock(asset_name=FACT.name))
    assert save_versions(str(tmp_path / "data/warehouse"), {FACT.name: whole})
    publish_facts(tmp_path / "data", dict.fromkeys(JAN[3:4], "ok"))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(READER, namespace)
    assert namespace["versions"] == {FACT.name: 0}
    facts = namespace["facts"].to_pyarrow_table()
    assert {*facts["run_date"].to_pylist()} == {*JAN[:3]}


def test_what_the_commands_refuse(home, engine, capsys, monkeypatch):
    build_production(engine, home, {FIRST: 1}, monkeypatch)
    days = str(day(FIRST))
    for words, status, message in (
        (["backfill", days, "--target", "v2", "--rewrite"], 2, "--rewrite cannot be given"),
        (["backfill", days, "--target", "V2"], 3, "'V2' is no name for a target"),
        (["compare", "v3"], 2, "there is no target v3"),
        (["switch", "v3"], 2, "there is no target v3"),
        (["drop", "v3"], 2, "there is no target v3"),
        (["plan", days, "--target", "v2", "--write-mode", "merge"], 2, "--write-mode cannot"),
    ):
        assert main(words) == status
        captured = capsys.readouterr()
        assert message in captured.err
        assert "Traceback" not in captured.err
    assert main(["targets"]) == 0
    assert capsys.readouterr().out.startswith("there is no target; make one with")
