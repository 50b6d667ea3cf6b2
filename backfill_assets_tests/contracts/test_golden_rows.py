"""Every row of tables of every kind over one landing, as digests: code that makes others is seen.

A day of a table counts as made by the present code as long as its kind of table has the same number
in `ROWS_VERSION`. So a change of rows must raise that number, and a change that does not change
rows must not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.lookups import batch
from backfill_assets.settings import Settings
from backfill_assets.spark.session import Engine
from backfill_assets.tables.code_version import rows_version
from backfill_assets.tables.graph import tables_of
from backfill_assets_tests.contracts import golden_landing
from backfill_assets_tests.contracts.golden_landing import DAYS, START, day, write_landing
from backfill_assets_tests.contracts.golden_tables import ALIKE
from backfill_assets_tests.helpers.pipeline import Pipeline
from backfill_assets_tests.helpers.rate_server import SECRET, rate_server

pytestmark = pytest.mark.system
EXAMPLES = "backfill_assets_tests.contracts.golden_tables:TABLES"
ORDERS = "backfill_assets.orders.tables:TABLES"
WEEKLY = "orders_weekly"
#: What a snapshot has: by table the version of its rows, and its days with their digests.
Golden = dict[str, Any]


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("golden")
    write_landing(root / "landing", root / "warehouse")
    return root


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The service of exchange rates."""
    monkeypatch.setattr(batch, "_FIRST_PAUSE", 0.01)
    with rate_server() as server:
        monkeypatch.setenv("RATES_URL", server.url)
        monkeypatch.setenv("RATES_KEY", SECRET)
        yield


def golden_rows(settings: Settings) -> Golden:
    """What a snapshot has of the tables, from what their commits say of each day."""
    tables = {}
    for name, ledger in read_ledgers(Deployment(settings)).items():
        if not ledger.published_days:
            continue
        published = {day: ledger.latest[day].days[day] for day in sorted(ledger.published_days)}
        tables[name] = {
            "rows_version": rows_version(ledger.table),
            "days": {str(d): {"rows": p.rows, "digest": p.digest} for d, p in published.items()},
        }
    return {"landing": landing_digest(), "tables": tables}


def landing_digest() -> str:
    """Of what writes the landing: with other lines, digests say nothing of the code."""
    return hashlib.sha256(Path(golden_landing.__file__).read_bytes()).hexdigest()[:16]


# --- comparison -----------------------------------------------------------------------------------


def refusal_messages(
    saved: Golden, current: Golden, *, renews: bool, file: str = "the file"
) -> list[str]:
    """Why rows may not be as they are now, whether or not the snapshot is being renewed.

    Args:
        saved: the snapshot.
        current: what it would be now.
        renews: whether `make snapshots` is running.
        file: the snapshot's.
    """
    if not saved:
        return []
    if saved["landing"] != current["landing"]:
        return [
            "golden_landing.py has changed, so the digests cannot be compared. Change it in a "
            f"commit that changes no code: delete {file} and run make snapshots"
        ]
    messages = []
    for name, table in current["tables"].items():
        before = saved["tables"].get(name)
        if before is None or not (days := _other_days(before["days"], table["days"])):
            continue
        text = f"{name} has other rows on {', '.join(days)}"
        if before["rows_version"] == table["rows_version"]:
            messages.append(
                f"{text}, and its ROWS_VERSION is {table['rows_version']} as before. If that is a "
                "mistake, mend it. If it is meant: raise the number of its kind in ROWS_VERSION in "
                "backfill_assets/tables/code_version.py (`package` if only a declaration in "
                "this package has changed), add a line to CHANGELOG.md and run make snapshots. If "
                "it is the declaration of a table of an example or a test that has changed, its "
                f"days are other code by that alone: delete the table from {file} and run make "
                "snapshots"
            )
        elif not renews:
            messages.append(
                f"{text}; its ROWS_VERSION was raised from {before['rows_version']} to "
                f"{table['rows_version']}: run make snapshots"
            )
    return messages


def _other_days(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    days = sorted({*saved, *current})
    return [text for text in days if saved.get(text) != current.get(text)]


def compare_with_snapshot(current: Golden, snapshot: SnapshotAssertion, renews: bool) -> None:
    """Fail if rows differ without another version of rows; then, or if all is new, as syrupy does.

    A refusal comes before syrupy writes, so the snapshot stays as it is.
    """
    file = _snapshot_file(snapshot)
    saved = json.loads(file.read_text()) if file.exists() else {}
    if messages := refusal_messages(saved, current, renews=renews, file=file.name):
        pytest.fail("\n".join(messages), pytrace=False)
    assert current == snapshot.use_extension(JSONSnapshotExtension)


def _snapshot_file(snapshot: SnapshotAssertion) -> Path:
    location = snapshot.test_location
    folder = JSONSnapshotExtension.dirname(test_location=location)
    name = JSONSnapshotExtension.get_snapshot_name(test_location=location)
    return Path(folder) / f"{name}.{JSONSnapshotExtension.file_extension}"


# --- rows -----------------------------------------------------------------------------------------


@pytest.fixture
def renews(request: pytest.FixtureRequest) -> bool:
    """Whether `make snapshots` is running."""
    return request.config.option.update_snapshots


def deployment(engine: Engine, root: Path, landing: Path, **settings: Any) -> Pipeline:
    return Pipeline(
        engine,
        root,
        land=False,
        landing=str(landing / "landing"),
        end=day(DAYS + 1),
        window_days=2,
        # A file of wrong lines is published all the same.
        rejected_hold=1.0,
        **settings,
    )


def assert_published(pipeline: Pipeline, names: Sequence[str], days: set[date]) -> None:
    ledgers = read_ledgers(pipeline.deployment)
    for name in names:
        ledger = ledgers[name]
        assert ledger.published_days == days, name
        assert any(ledger.latest[d].days[d].rows for d in days), f"{name} has no rows"


def test_tables_of_every_kind_in_utc(
    engine: Engine, spark, landing: Path, rates, snapshot: SnapshotAssertion, renews: bool
) -> None:
    """In the session for few rows."""
    pipeline = deployment(engine, landing, landing, tables=EXAMPLES)
    daily = [name for name in tables_of(pipeline.settings) if name not in {WEEKLY, *ALIKE}]
    pipeline.run(1, DAYS, daily)
    # A run has days or weeks, not both.
    pipeline.run(1, None, [WEEKLY])
    assert_published(pipeline, daily, {*Window(START, day(DAYS + 1))})
    assert_published(pipeline, [WEEKLY], {START})
    compare_with_snapshot(golden_rows(pipeline.settings), snapshot, renews)


def test_orders_in_another_time_zone(
    one_session_engine: Engine, landing: Path, snapshot: SnapshotAssertion, renews: bool
) -> None:
    """Folders are named in UTC, and days end at 15:00 of these; in the session for many rows."""
    pipeline = deployment(
        one_session_engine, landing / "tokyo", landing, tables=ORDERS, timezone="Asia/Tokyo"
    )
    names = [*tables_of(pipeline.settings)]
    pipeline.run(1, DAYS, names)
    assert_published(pipeline, names, {*Window(START, day(DAYS + 1))})
    golden = golden_rows(pipeline.settings)
    # Commits say what readers find.
    published_digests = {
        name: {
            text: day_figures["digest"]
            for text, day_figures in table["days"].items()
            if day_figures["rows"]
        }
        for name, table in golden["tables"].items()
    }
    assert pipeline.digests() == published_digests
    compare_with_snapshot(golden, snapshot, renews)


# --- the comparison itself ------------------------------------------------------------------------

_DAY = {"2024-01-01": {"rows": 1, "digest": "1-2-3"}}
_OTHER_DAY = {"2024-01-01": {"rows": 1, "digest": "1-2-4"}}


def make_golden(days: Mapping[str, Any], number: int = 1, **tables: Any) -> Golden:
    features = {"rows_version": f"derived-{number}", "days": days}
    return {"landing": "l", "tables": {"features": features, **tables}}


@pytest.mark.parametrize("renews", [False, True])
def test_other_rows_of_the_same_version_are_refused(renews: bool) -> None:
    (message,) = refusal_messages(make_golden(_DAY), make_golden(_OTHER_DAY), renews=renews)
    assert message.startswith("features has other rows on 2024-01-01")
    assert "raise the number of its kind in ROWS_VERSION in backfill_assets/tables/" in message
    assert "add a line to CHANGELOG.md and run make snapshots" in message
    (message,) = refusal_messages(make_golden(_DAY), make_golden({}), renews=renews)
    assert message.startswith("features has other rows on 2024-01-01")


def test_other_rows_of_another_version_are_renewed() -> None:
    (message,) = refusal_messages(make_golden(_DAY), make_golden(_OTHER_DAY, 2), renews=False)
    assert "was raised from derived-1 to derived-2: run make snapshots" in message
    assert refusal_messages(make_golden(_DAY), make_golden(_OTHER_DAY, 2), renews=True) == []


@pytest.mark.parametrize("renews", [False, True])
def test_a_table_that_is_new_and_the_same_rows_are_fine(renews: bool) -> None:
    new = {"rows_version": "derived-1", "days": _DAY}
    assert refusal_messages(make_golden(_DAY), make_golden(_DAY, labels=new), renews=renews) == []
    assert refusal_messages({}, make_golden(_DAY), renews=renews) == []


@pytest.mark.parametrize("renews", [False, True])
def test_another_landing_is_no_reason_for_other_rows(renews: bool) -> None:
    (message,) = refusal_messages(
        make_golden(_DAY), {**make_golden(_OTHER_DAY), "landing": "m"}, renews=renews
    )
    assert "golden_landing.py has changed" in message
