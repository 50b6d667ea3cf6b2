"""Verification: what it says of days that match and that do not, and that it writes nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.audit.verdicts import DayContent, RefusedError, have_same_rows
from backfill_assets.backfills.verify import (
    ComparisonDestination,
    VerifiedDay,
    VerifyOutcome,
    _bisect_days,
    _Verification,
    as_table,
    compare_day,
    is_good,
    verified_values,
)
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.cli import main
from backfill_assets.cli.output import Output
from backfill_assets.delta.read_check import ReadCheck, check_read
from backfill_assets.delta.records import ExternalCommit
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import (
    CORRECTIONS,
    FACT,
    LATE,
    LATENESS,
    RAW,
    REJECTED,
    STAGED,
    TABLES,
)
from backfill_assets.settings import Settings
from backfill_assets.tables import code_version
from backfill_assets.tables.code_version import Code
from backfill_assets_tests.conftest import LASTING
from backfill_assets_tests.helpers.invented_logs import days, ledger, record
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order, run_verify

#: Over the end of a month; a double could not hold the sum of the amounts.
LOADED = Window(day(30), day(34))
VERIFIED = [table for table in TABLES.values() if table is not LATENESS]
NAMES = [table.name for table in VERIFIED]
PLACE = f"{__name__}:VERIFIED"
AMOUNTS = ("9007199254740993.01", "0.10", "0.20")


@pytest.fixture(scope="module", autouse=True)
def _one_code() -> Iterator[None]:
    """The same code in all runs, also if somebody edits it while the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code_version, "running_code", lambda *_: Code("this", "c0de", dirty=False))
        yield


@pytest.fixture(scope="module")
def pipeline(engine, spark, _one_code, tmp_path_factory) -> Pipeline:
    """Four days in all tables; what comes after them in the calendar was never published."""
    root = tmp_path_factory.mktemp("loaded")
    # Dagster's keys of the tables have a prefix; nothing else may look different.
    calendar = {"tables": PLACE, "end": date(2024, 2, 10)}
    pipeline = Pipeline(engine, root, key_prefix="lake/gold", **calendar)
    for n in range(30, 34):
        pipeline.land(n, [order(f"o-{n}-{a}", n, a, f"c{i}") for i, a in enumerate(AMOUNTS)])
    pipeline.run(30, 33, NAMES)
    return pipeline


Copy = Callable[[], Settings]


@pytest.fixture(scope="module")
def copy(pipeline, tmp_path_factory) -> Copy:
    """Makes a copy of what was landed and published, to be spoilt."""

    def make() -> Settings:
        root = tmp_path_factory.mktemp("copy")
        shutil.copytree(pipeline.root, root, dirs_exist_ok=True)
        places = {"landing": str(root / "landing"), "warehouse": str(root / "warehouse")}
        return pipeline.settings.model_copy(update=places)

    return make


def file_stats(*folders: Path) -> dict[Path, tuple[int, int]]:
    """All that lies in some folders, with size and time of change."""
    paths = [path for folder in folders for path in folder.rglob("*")]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


DayResults = dict[tuple[str, date], VerifiedDay]


def by_day(results: Sequence[VerifiedDay]) -> DayResults:
    return {(result.table, result.day): result for result in results}


# days that match


def test_all_days_match_and_nothing_is_written(pipeline, engine, tmp_path, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    before, runs = file_stats(pipeline.root), pipeline.instance.get_runs_count()
    results = run_verify(pipeline.settings, engine, LOADED)
    assert [(result.table, result.day) for result in results] == [
        (n, d) for n in NAMES for d in LOADED
    ]
    assert {(result.outcome, result.why) for result in results} == {(VerifyOutcome.MATCHES, "")}
    for result in results:
        assert have_same_rows(result.published, result.held)
        assert have_same_rows(result.held, result.now)
    result = by_day(results)[FACT.name, day(30)]
    assert (result.now.rows, result.now.totals) == (
        3,
        {"orders": 3, "revenue": Decimal("9007199254740993.31")},
    )
    assert file_stats(pipeline.root) == before
    assert list(tmp_path.iterdir()) == []
    assert pipeline.instance.get_runs_count() == runs


def test_what_has_changed_without_changing_a_row(pipeline, engine, monkeypatch):
    monkeypatch.setattr(code_version, "running_code", lambda *_: Code("other"))
    settings = pipeline.settings.model_copy(update={"late_lines": "drop"})
    (result,) = run_verify(settings, engine, Window(day(30), day(31)), [LATE.name])
    assert result.outcome is VerifyOutcome.MATCHES
    assert result.why == "although a run would compute it anew (other code; other settings)"


# days that do not


@pytest.fixture(scope="module")
def damaged(copy) -> Settings:
    """A row taken from the facts, a file added to what landed, and one that cannot be read."""
    settings = copy()
    where = f"run_date = '{day(30)}' AND customer_id = 'c1'"
    DeltaTable(settings.table(FACT.name)).delete(where)
    orders = Path(settings.landing, "orders")
    more = orders / f"arrival_date={day(31)}" / "more.jsonl"
    more.write_text(json.dumps(order("new", 31, "1.00")) + "\n")
    (orders / f"arrival_date={day(33)}" / "bad.jsonl.gz").write_bytes(b"\x1f\x8b broken")
    return settings


@pytest.fixture(scope="module")
def found(damaged, engine) -> DayResults:
    tables = [table.name for table in (CORRECTIONS, FACT, STAGED, REJECTED, RAW)]
    return by_day(run_verify(damaged, engine, Window(day(30), day(35)), tables))


def test_a_landing_that_has_changed(found):
    result = found[RAW.name, day(31)]
    assert result.outcome is VerifyOutcome.DIFFERS
    assert result.why == "new files"
    assert have_same_rows(result.published, result.held)
    assert (result.published.rows, result.published.totals) == (
        3,
        {"amount": Decimal("9007199254740993.31")},
    )
    assert (result.now.rows, result.now.totals) == (
        4,
        {"amount": Decimal("9007199254740994.31")},
    )
    for same in ((REJECTED.name, day(31)), (RAW.name, day(32))):
        assert found[same].outcome is VerifyOutcome.MATCHES
        assert found[same].why == "although a run would compute it anew (new files)"
    # What follows is made of what is published, and that has not changed.
    staged = found[STAGED.name, day(31)]
    assert (staged.outcome, staged.why) == (VerifyOutcome.MATCHES, "")


def test_a_file_that_cannot_be_read(found):
    for table in (RAW, REJECTED):
        result = found[table.name, day(33)]
        assert result.outcome is VerifyOutcome.WOULD_FAIL
        assert f"arrival_date={day(33)}/bad.jsonl.gz" in str(result)
        assert have_same_rows(result.published, result.held)
    assert found[STAGED.name, day(33)].outcome is VerifyOutcome.MATCHES


def test_another_writer(found, damaged):
    result = found[FACT.name, day(30)]
    assert result.outcome is VerifyOutcome.DIFFERS
    assert have_same_rows(result.now, result.published)
    assert (result.published.rows, result.held.rows) == (3, 2)
    version = DeltaTable(damaged.table(FACT.name)).version()
    assert result.why == (
        f"another writer changed it in version {version} (DELETE); "
        "computed anew it is as it was published"
    )
    after = found[CORRECTIONS.name, day(30)]
    assert (after.outcome, after.why) == (VerifyOutcome.DIFFERS, f"new input: {FACT.name}")
    assert (after.published.rows, after.now.rows) == (0, 1)
    assert {found[FACT.name, d].outcome for d in Window(day(31), day(34))} == {
        VerifyOutcome.MATCHES
    }


def test_a_day_that_was_never_published(found):
    raw, staged = found[RAW.name, day(34)], found[STAGED.name, day(34)]
    assert {raw.outcome, staged.outcome} == {VerifyOutcome.NOT_PUBLISHED}
    assert raw.why.startswith("would be published now: 0 rows")
    assert f"would fail now: conservation: {RAW.name}[{day(34)}] has never been" in staged.why
    assert (raw.published, raw.held, staged.now) == (None, None, None)


@pytest.fixture(scope="module")
def gutted(copy) -> Settings:
    """A data file of one staged day is gone."""
    settings = copy()
    (file,) = Path(settings.table(STAGED.name), f"event_date={day(31)}").glob("*.parquet")
    file.unlink()
    return settings


def test_a_file_that_is_gone_hides_no_other_day(gutted, engine):
    settings = gutted.model_copy(update={"partitions_per_run": 2})
    three_days = Window(day(30), day(33))
    results = run_verify(settings, engine, three_days, [STAGED.name, FACT.name])
    assert [(result.table, result.day) for result in results] == [
        (name, d) for name in (STAGED.name, FACT.name) for d in three_days
    ]
    staged, facts = by_day(results)[STAGED.name, day(31)], by_day(results)[FACT.name, day(31)]
    assert (staged.outcome, staged.held) == (VerifyOutcome.DIFFERS, None)
    assert staged.why.startswith("its files cannot be read (")
    assert "[PATH_NOT_FOUND" in staged.why
    assert staged.why.endswith("computed anew it is as it was published")
    assert (facts.outcome, facts.now) == (VerifyOutcome.WOULD_FAIL, None)
    assert "[PATH_NOT_FOUND" in facts.why
    assert have_same_rows(facts.held, facts.published)
    rest = [result.outcome for result in results if result.day != day(31)]
    assert set(rest) == {VerifyOutcome.MATCHES}


def test_a_computation_that_is_not_what_it_was(pipeline, engine, monkeypatch):
    honest = FACT.transform

    def change_rows(stg_orders: DataFrame) -> DataFrame:
        return honest(stg_orders).withColumn("customer_id", F.concat("customer_id", F.lit("?")))

    monkeypatch.setitem(vars(FACT), "transform", change_rows)
    (result,) = run_verify(
        pipeline.settings,
        engine,
        Window(day(30), day(31)),
        [FACT.name],
    )
    assert result.outcome is VerifyOutcome.DIFFERS
    assert result.why.startswith("nothing that it is made of has changed since")
    assert result.published.totals == result.now.totals
    assert "(same counts and sums, other values): nothing" in str(result)


def test_days_that_are_in_no_calendar(pipeline, tmp_path, engine):
    for spelled, message in (
        ("2024-02-08...2024-02-10", "is not in the calendar, which is 2024-01-01...2024-02-09"),
        ("2023-12-31", "is not in the calendar"),
        ("2024-01-05...2024-01-01", "is not in the calendar"),
    ):
        with pytest.raises(ValueError, match=message):
            run_verify(pipeline.settings, engine, Window.parse(spelled))
    empty = pipeline.settings.model_copy(update={"warehouse": str(tmp_path)})
    with pytest.raises(ValueError, match="nothing has been published at"):
        run_verify(empty, engine, LOADED)


# why, from numbers alone

OLD, NEW, ODD = DayContent(1, {}, "digest 1"), DayContent(2, {}, "new"), DayContent(1, {}, "odd")


def judge_day(expectation, *, now=OLD, stored=OLD, failing="", unreadable="", moved="") -> tuple:
    result = compare_day(
        expectation,
        day(1),
        recomputed=now,
        stored=stored,
        audit_failure=failing,
        read_error=unreadable,
        change=moved,
    )
    return result.outcome, result.why


def test_why_a_day_differs():
    expectation = ledger(RAW, record(1, days(1)))
    unknown = "nothing that it is made of has changed since"
    behind = "its files are not what version 1 says: changed behind the log"
    same_rows = "computed anew it is as it was published"
    assert judge_day(expectation) == (VerifyOutcome.MATCHES, "")
    assert judge_day(expectation, moved="x") == (
        VerifyOutcome.MATCHES,
        "although a run would compute it anew (x)",
    )
    assert judge_day(expectation, now=NEW, moved="x") == (VerifyOutcome.DIFFERS, "x")
    assert unknown in judge_day(expectation, now=NEW)[1]
    assert judge_day(expectation, stored=ODD) == (VerifyOutcome.DIFFERS, f"{behind}; {same_rows}")
    assert judge_day(expectation, stored=ODD, now=NEW) == (VerifyOutcome.DIFFERS, behind)
    assert judge_day(expectation, stored=ODD, now=None, failing="x") == (
        VerifyOutcome.WOULD_FAIL,
        f"x; {behind}",
    )


def test_who_wrote_a_day():
    theirs = ExternalCommit(2, "WRITE", days(1))
    same_rows = "computed anew it is as it was published"
    assert judge_day(ledger(RAW, record(1, days(1)), external=[theirs]), stored=ODD) == (
        VerifyOutcome.DIFFERS,
        f"another writer changed it in version 2 (WRITE); {same_rows}",
    )
    # The same rows again are no difference.
    assert judge_day(ledger(RAW, record(1, days(1)), external=[theirs])) == (
        VerifyOutcome.MATCHES,
        "",
    )
    # Written over by us since: what that one did is not what is there now.
    over = ledger(RAW, record(1, days(1)), record(3, days(1), digest="digest 1"), external=[theirs])
    assert "version 3 says: changed behind the log" in judge_day(over, stored=ODD)[1]


def test_one_bad_day_hides_no_other():
    batch_sizes = []

    def compute_days(batch: Sequence[date]) -> dict[date, int]:
        batch_sizes.append(len(batch))
        if day(3) in batch:
            raise PySparkException("[BROKEN] no\nat line")
        return {d: d.day for d in batch}

    eight = list(Window(day(1), day(9)))
    results, failed = _bisect_days(eight, compute_days)
    assert results == {d: d.day for d in eight if d != day(3)}
    assert failed == {day(3): "[BROKEN] no"}
    assert len(batch_sizes) == 7
    assert _bisect_days([], compute_days) == ({}, {})


def verify_two_tables(
    monkeypatch, compute: Callable[[Sequence[date], Sequence[str]], None]
) -> tuple[dict[tuple[str, date], str], list[tuple[int, list[str]]]]:
    """What is said of four days of two tables that nobody has published, and the runs of it.

    `compute` is given the days and tables of a run, and raises where it cannot compute them.
    """
    runs: list[tuple[int, list[str]]] = []
    destination = ComparisonDestination(
        "", {name: ledger(replace(FACT, name=name)) for name in ("a", "b")}
    )

    def materialize(_: object, days: Sequence[date], tables: Sequence[str]) -> None:
        runs.append((len(days), [*tables]))
        for name in tables:
            compute(days, [name])
            destination.verified_days.extend(
                VerifiedDay(name, d, VerifyOutcome.MATCHES, "fine") for d in days
            )

    monkeypatch.setattr(_Verification, "_materialize", materialize)
    verification = _Verification(None, destination, [], {}, None)
    verification.verify_tables([day(n) for n in range(1, 5)], ["a", "b"])
    return {(each.table, each.day): each.why for each in destination.verified_days}, runs


def test_a_day_that_spark_cannot_compute_hides_no_other(monkeypatch):
    def compute(days: Sequence[date], tables: Sequence[str]) -> None:
        if day(3) in days and tables == ["a"]:
            raise PySparkException("[BROKEN] no\nat line")

    results, runs = verify_two_tables(monkeypatch, compute)
    assert results.pop(("a", day(3))) == "would fail now: [BROKEN] no"
    assert len(results) == 7
    assert set(results.values()) == {"fine"}
    halves = [(4, ["a"]), (2, ["a"]), (2, ["a"]), (1, ["a"]), (1, ["a"])]
    assert runs == [(4, ["a", "b"]), *halves, (4, ["b"])]


def test_a_refused_frame_is_refused_for_all_days(monkeypatch):
    def compute(_: Sequence[date], tables: Sequence[str]) -> None:
        if tables == ["b"]:
            raise RefusedError("wrong frame")

    results, runs = verify_two_tables(monkeypatch, compute)
    assert {results["a", day(n)] for n in range(1, 5)} == {"fine"}
    assert {results["b", day(n)] for n in range(1, 5)} == {"would fail now: wrong frame"}
    assert runs == [(4, ["a", "b"])]


def test_a_lost_engine_is_no_finding():
    def compute_days(_: Sequence[date]) -> dict[date, int]:
        raise PySparkException("Cannot call methods on a stopped SparkContext")

    with pytest.raises(PySparkException, match="stopped SparkContext"):
        _bisect_days([day(1), day(2)], compute_days)


# the output

SAID = [
    *(
        VerifiedDay("t", d, VerifyOutcome.MATCHES, "", OLD, OLD, OLD)
        for d in Window(day(30), day(33))
    ),
    VerifiedDay("t", day(33), VerifyOutcome.MATCHES, "although x", OLD, OLD, OLD),
    VerifiedDay("t", day(34), VerifyOutcome.DIFFERS, "why [red]", OLD, ODD, NEW),
    VerifiedDay("u", day(35), VerifyOutcome.NOT_PUBLISHED, "would be"),
]


def test_as_table(capsys):
    Output().print_table(as_table(SAID))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "table days outcome rows what there is to say",
        "t 2024-01-30...2024-02-01 matches 3",
        "t 2024-02-02 matches 1 although x",
        "t 2024-02-03 differs 1 published 1 rows; the files hold 1 rows (same counts and sums, "
        "other values); now 2 rows (rows +1): why [red]",
        "u 2024-02-04 not published 0 would be",
    ]


def test_as_json():
    reads = [ReadCheck("t", 3), ReadCheck("u", None, ["no table"])]
    result = json.loads(json.dumps(verified_values(SAID, reads), default=str))
    assert result["good"] is False
    assert result["days"][-2] == {
        "table": "t",
        "day": "2024-02-03",
        "outcome": "differs",
        "why": "why [red]",
        "published": {"rows": 1, "totals": {}, "digest": "digest 1"},
        "held": {"rows": 1, "totals": {}, "digest": "odd"},
        "now": {"rows": 2, "totals": {}, "digest": "new"},
        "same_inputs": False,
    }
    assert result["reads"][1] == {"table": "u", "version": None, "problems": ["no table"]}


def test_good():
    fine, bad = SAID[0], SAID[-1]
    assert is_good([fine], [ReadCheck("t", 3)])
    assert not is_good([fine, bad], [ReadCheck("t", 3)])
    assert not is_good([fine], [ReadCheck("t", 3, ["x"])])


# the read test


def test_another_engine_reads_what_was_published(pipeline):
    for table in VERIFIED:
        version = DeltaTable(pipeline.settings.table(table.name)).version()
        read = check_read(pipeline.deployment, table, LOADED.widen_by(after=1))
        assert read == ReadCheck(table.name, version, [])
        assert (
            str(read) == f"{table.name}: read by another engine at version {version}: as published"
        )


def test_another_engine_finds_a_row_missing(damaged):
    read = check_read(Deployment(damaged), FACT, LOADED)
    assert read.problems == [
        f"{FACT.name}[{day(30)}]: 2 rows where 3 were published",
        f"{FACT.name}[{day(30)}]: orders adds up to 2 where 3 was published",
        f"{FACT.name}[{day(30)}]: revenue adds up to 9007199254740993.21 where "
        "9007199254740993.31 was published",
    ]
    assert ": NOT as published\n  fact_daily_orders[2024-01-30]: 2 rows" in str(read)


def test_another_engine_finds_a_file_gone(gutted):
    (problem,) = check_read(Deployment(gutted), STAGED, LOADED).problems
    assert problem.startswith(f"{STAGED.name}[{day(31)}]: cannot be read: ")
    assert f"event_date={day(31)}/" in problem
    assert "\n" not in problem
    # Only the files of the days in question are opened.
    assert (
        check_read(Deployment(gutted), STAGED, [d for d in LOADED if d != day(31)]).problems == []
    )


def test_another_engine_finds_a_file_spoilt(copy):
    settings = copy()
    (file,) = Path(settings.table(STAGED.name), f"event_date={day(31)}").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-100])
    (problem,) = check_read(Deployment(settings), STAGED, LOADED).problems
    assert problem.startswith(f"{STAGED.name}[{day(31)}]: cannot be read: ")


def test_another_engine_cannot_open_a_table(pipeline, tmp_path):
    settings = pipeline.settings.model_copy(update={"warehouse": str(tmp_path)})
    nothing = check_read(Deployment(settings), FACT, LOADED)
    assert nothing == ReadCheck(FACT.name, None, [f"there is no table at {tmp_path}/{FACT.name}"])
    log = tmp_path / FACT.name / "_delta_log" / f"{0:020d}.json"
    log.parent.mkdir(parents=True)
    log.write_text("nonsense")
    (problem,) = check_read(Deployment(settings), FACT, LOADED).problems
    assert problem.startswith("it cannot be opened: ")
    assert "\n" not in problem


def test_another_engine_misses_a_column(pipeline, tmp_path):
    settings = pipeline.settings.model_copy(update={"warehouse": str(tmp_path)})
    rows = pa.table({"run_date": [day(30)], "customer_id": ["c"], "orders": [1]})
    write_deltalake(settings.table(FACT.name), rows, partition_by=["run_date"])
    assert check_read(Deployment(settings), FACT, LOADED).problems == ["column revenue is missing"]


# the command


@pytest.fixture
def deployed(monkeypatch) -> Iterator[Callable[[Settings], None]]:
    """Sets the environment to that of a deployment."""
    if "SPARK_REMOTE" not in os.environ:
        monkeypatch.setenv("BACKFILL_ASSETS_SPARK_MASTER", "local[2]")
        monkeypatch.setenv("BACKFILL_ASSETS_SPARK_CONF", json.dumps(LASTING))

    def deploy(settings: Settings) -> None:
        for name in ("landing", "warehouse", "end"):
            monkeypatch.setenv(f"BACKFILL_ASSETS_{name.upper()}", str(getattr(settings, name)))

    return deploy


def test_the_command_when_all_is_well(pipeline, deployed, capsys):
    deployed(pipeline.settings)
    assert main(["verify", str(LOADED), "--table", FACT.name]) == 0
    heading, days, read = (line.split() for line in capsys.readouterr().out.splitlines())
    assert heading[:3] == ["table", "days", "outcome"]
    assert days == [FACT.name, "2024-01-30...2024-02-02", "matches", "12"]
    assert read[-2:] == ["as", "published"]


def test_the_command_when_it_is_not(damaged, deployed, capsys):
    deployed(damaged)
    assert main(["verify", str(day(30)), "--table", FACT.name, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert [day_result["outcome"] for day_result in result["days"]] == ["differs"]
    assert len(result["reads"][0]["problems"]) == 3


def test_the_command_refuses(pipeline, deployed, capsys):
    deployed(pipeline.settings)
    for text in (str(LOADED.start - 60 * DAY), "x", "2024-01-05...2024-01-01"):
        assert main(["verify", text]) == 2
        assert f"{text!r} is not in the calendar, which is 2024-01-01" in capsys.readouterr().err
    assert main(["verify", str(day(1)), "--table", "x"]) == 2
    assert "there is no table x" in capsys.readouterr().err
