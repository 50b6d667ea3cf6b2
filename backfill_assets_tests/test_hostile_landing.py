"""A landing as an attacker, or an unlucky user, leaves it: what a run and a tick make of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from backfill_assets.landing.files import LandingFile, LandingFiles, retry_without_bad_files
from backfill_assets.landing.formats import text_lines
from backfill_assets.monitoring import incidents, next_runs
from backfill_assets.monitoring.incidents import Monitor
from backfill_assets.monitoring.states import DayState, day_states
from backfill_assets.orders.tables import ORDER_LINES
from backfill_assets.spark.jars import EngineError
from backfill_assets_tests.helpers.invented_listings import close_folder
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order

RAW_STEP = ("raw_orders", "raw_orders_rejected")


def test_a_loaded_day_whose_folder_is_closed_stays_as_it_is(pipeline: Pipeline) -> None:
    for n in (1, 2):
        pipeline.land(n, [order(f"o{n}", n)])
    pipeline.run(1, 2, RAW_STEP)
    with pytest.MonkeyPatch.context() as patch:
        close_folder(patch, pipeline.folder(1))
        assert f"arrival_date={day(1)}/ (Permission" in pipeline.failure(
            pipeline.run(1, 2, RAW_STEP, fails=True)
        )
        assert states_of(pipeline)[day(1)] is DayState.CHECK_FAILED
    assert [row["order_id"] for row in pipeline.rows("raw_orders")] == ["o1", "o2"]
    pipeline.run(1, 2, RAW_STEP)
    assert states_of(pipeline)[day(1)].is_good


def test_a_day_whose_folder_has_another_name_is_not_in_order(pipeline: Pipeline) -> None:
    pipeline.land(1, [order("o1", 1)])
    misnamed = pipeline.landing / "orders" / f"arrival_date={day(2):%Y%m%d}"
    pipeline.land(2, [order("o2", 2)])
    pipeline.folder(2).rename(misnamed)
    run = pipeline.run(1, 2, RAW_STEP)
    checks = {
        check.partition: check
        for check in run.get_asset_check_evaluations()
        if check.asset_key == dg.AssetKey("raw_orders") and check.check_name == "conservation"
    }
    assert checks[str(day(1))].passed
    assert not checks[str(day(2))].passed
    assert f"orders/{misnamed.name} is not the folder" in checks[str(day(2))].description
    misnamed.rename(pipeline.folder(2))
    pipeline.run(2, 2, RAW_STEP)
    assert {row["order_id"] for row in pipeline.rows("raw_orders")} == {"o1", "o2"}


def _landing_file(folder: Path, name: str, url: Path, text: str = "{}") -> LandingFile:
    path = folder / name
    path.write_text(text)
    return LandingFile(day(1), name, str(url / name), len(text), str(path))


def _count_lines(spark, landing: LandingFiles) -> int:
    return spark.read.text([file.url for file in landing.files]).count() if landing.files else 0


def test_if_the_engine_opens_no_file_it_is_not_the_files(spark, tmp_path) -> None:
    """As where the engine is on another machine, which has no such folder."""
    elsewhere = tmp_path / "not-mounted-there"
    landing = LandingFiles(
        files=[_landing_file(tmp_path, f"{n}.json", elsewhere) for n in range(3)]
    )
    with pytest.raises(EngineError, match=r"none of 3 landing.*not the files.*defaultFS"):
        retry_without_bad_files(spark, landing, partial(_count_lines, spark))
    assert not landing.broken


def test_a_checksum_file_of_another_content_is_of_one_file(spark, tmp_path) -> None:
    files = [_landing_file(tmp_path, f"{n}.json", tmp_path) for n in range(2)]
    for file in files:
        (tmp_path / f".{file.name}.crc").write_bytes(b"crc\0\0\0\2\0\1\2\3\4")
    landing = LandingFiles(files=[*files])
    assert retry_without_bad_files(spark, landing, partial(_count_lines, spark)) == 0
    assert {*landing.broken} == {*files}


def test_a_file_that_the_engine_alone_does_not_open_is_named(spark, tmp_path) -> None:
    good = [_landing_file(tmp_path, f"{n}.json", tmp_path) for n in range(3)]
    bad = _landing_file(tmp_path, "bad.json", tmp_path / "not-mounted-there")
    landing = LandingFiles(files=[*good, bad])
    assert retry_without_bad_files(spark, landing, partial(_count_lines, spark)) == 3
    assert [*landing.broken] == [bad]


def test_a_file_that_has_gone_is_the_file(spark, tmp_path) -> None:
    deleted = _landing_file(tmp_path, "gone.json", tmp_path)
    Path(deleted.path).unlink()
    landing = LandingFiles(files=[deleted])
    assert retry_without_bad_files(spark, landing, partial(_count_lines, spark)) == 0
    assert [*landing.broken] == [deleted]


def test_long_lines_are_kept_whole(pipeline: Pipeline) -> None:
    """Of a data file with long texts, the footer counts no nulls."""
    texts = ["x" * 5000, "y" * 300_000]
    long = order("long" * 5000, 1)
    pipeline.land(1, [order("fine", 1), long, *texts])
    assert pipeline.run(1, 1, RAW_STEP)
    assert {row["text"] for row in pipeline.rows("raw_orders_rejected")} == {*texts}
    order_ids = {row["order_id"] for row in pipeline.rows("raw_orders")}
    assert order_ids == {"fine", long["order_id"]}


def test_any_number_of_files_is_a_short_message(pipeline: Pipeline) -> None:
    folder = pipeline.folder(1)
    for n in range(200):
        (folder / f"{n}.txt").write_text("x")
        (folder / f"{n}.jsonl").symlink_to("nothing")
    result = pipeline.run(1, 1, RAW_STEP, fails=True)
    message = pipeline.failure(result)
    assert "cannot be read: 180 more" in message
    assert len(message) < 10_000


def states_of(pipeline: Pipeline) -> dict:
    now = Monitor(pipeline.deployment, lambda: pipeline.now).read_snapshot(pipeline.instance)
    return day_states("raw_orders", now)


def test_a_longer_line_that_was_put_in_afterwards_is_not_held_in_memory(spark, tmp_path):
    """The file is another when it is listed again, so that run does not load it."""
    path = tmp_path / "arrival_date=2024-01-01" / "a.jsonl"
    path.parent.mkdir()
    for end in ("\n", "\r\n"):
        path.write_bytes(f"{end}".join(["a", "x" * 100, "y" * 101, "z" * 5000, "b", ""]).encode())
        rows = text_lines(spark, ORDER_LINES, [str(path)], 100).select("_text").collect()
        # One that is too long by no more than a line end gets through.
        assert [row[0] for row in rows if len(row[0]) != 101] == ["a", "x" * 100, "b"]


# --- looks that hang ------------------------------------------------------------------------------


def test_of_looks_that_hang_one_is_in_flight(pipeline: Pipeline, monkeypatch) -> None:
    """Dagster gives up a tick after a minute; its thread stays where it is."""
    monkeypatch.setattr(incidents, "TURN_SECONDS", 0.05)
    hangs, mended = threading.Event(), threading.Event()

    def hanging_listing(*arguments):
        hangs.set()
        mended.wait(60)
        return real(*arguments)

    real = next_runs.list_landing
    monkeypatch.setattr(next_runs, "list_landing", hanging_listing)
    with ThreadPoolExecutor(8) as ticks:
        stuck = ticks.submit(pipeline.tick, "landed_files")
        assert hangs.wait(60)
        for tick in (
            *(ticks.submit(pipeline.tick, name) for name in ("landed_files", "touched_days")),
            *(ticks.submit(pipeline.tick, "watch_days") for _ in range(3)),
            ticks.submit(pipeline.tick_schedule),
        ):
            error = tick.exception(timeout=60)
            message = f"{error} {error and error.__cause__}"
            assert "has not come back: the storage may hang" in message
        assert not stuck.done()
        mended.set()
        assert stuck.exception(timeout=60) is None
    pipeline.tick("watch_days")


def test_the_nightly_tick_is_tried_again(tmp_path: Path, monkeypatch) -> None:
    """With the instance that is copied into DAGSTER_HOME."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (tmp_path / "dagster.yaml").write_text((PROJECT / "dagster.yaml").read_text())
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.scheduler.max_tick_retries >= 10
