"""The page on shadow backfills is followed command by command; what it shows is what is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backfill_assets.cli import main
from backfill_assets.engine.spark import Engine
from backfill_assets.settings import PREFIX
from backfill_assets_tests.beside import AFTER, ALL, BEFORE, SCORES, seen
from backfill_assets_tests.pages import documented, follow
from backfill_assets_tests.pipeline import Pipeline, order
from backfill_assets_tests.places import PROJECT

#: What the history of the table says of the commits of the steps.
KINDS = [
    "canary of target v2 by person",
    "switch-over of target v2 by person",
    "undo of target v2 by person",
]
STEPS = [text for text in documented("docs/shadow.md", "text") if text.startswith("$ ")]


@pytest.fixture
def production(engine, spark, tmp_path: Path, monkeypatch) -> Pipeline:
    found = Pipeline(engine, tmp_path, tables=BEFORE, window_days=1)
    for n in range(1, 6):
        found.land(n, [order(f"{n}-{k}", n) for k in range(n)])
    found.run(1, 5, ALL)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    settings = found.settings
    for name in ("landing", "warehouse", "start", "end", "window_days"):
        monkeypatch.setenv(f"{PREFIX}{name.upper()}", str(getattr(settings, name)))
    monkeypatch.setenv(f"{PREFIX}TABLES", AFTER)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setattr(Engine, "of", lambda _: engine)
    return found


def test_the_steps_do_what_the_page_says(production, capsys):
    before = production.digests()
    looks = []
    for step in STEPS:
        follow(step, capsys)
        looks.append(seen(production))
    assert looks == [
        *[{n: n for n in range(1, 6)}] * 4,
        {1: 1, 2: 2, 3: 3, 4: 4, 5: 50},
        *[{1: 1, **{n: 10 * n for n in range(2, 6)}}],
        *[{n: n for n in range(1, 6)}] * 2,
    ]
    assert main(["history", SCORES]) == 0
    told = capsys.readouterr().out
    kinds = re.findall("(canary of .*|switch-over of .*|undo of .*)", told)
    assert [kind.strip() for kind in kinds] == KINDS
    assert production.digests() == before
    assert len([*(production.warehouse / SCORES).glob("run_date=*/*.parquet")]) == 5 + 4


def test_what_the_commands_refuse(production, capsys):
    days = "2024-01-02...2024-01-05"
    for words, status, said in (
        (["backfill", days, "--target", "v2", "--rewrite"], 2, "--rewrite cannot be given"),
        (["backfill", days, "--target", "V2"], 3, "'V2' is no name for a target"),
        (["compare", "v3"], 2, "there is no target v3"),
        (["switch", "v3"], 2, "there is no target v3"),
        (["drop", "v3"], 2, "there is no target v3"),
        (["plan", days, "--target", "v2", "--write-mode", "merge"], 2, "--write-mode cannot"),
    ):
        assert main(words) == status
        told = capsys.readouterr()
        assert said in told.err
        assert "Traceback" not in told.err
    assert main(["targets"]) == 0
    assert capsys.readouterr().out.startswith("there is no target; make one with")
