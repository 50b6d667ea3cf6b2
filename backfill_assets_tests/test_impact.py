"""What a load settles besides its rows: of landings of a few small files, without any row."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from backfill_assets.audit.verdicts import DayMetrics, Expectation, Finding, Severity, Verdict
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitDetails
from backfill_assets.landing.listing import folder_name, list_landing
from backfill_assets.landing.load_manifest import LoadManifest
from backfill_assets.orders.tables import ORDER_LINES, RAW
from backfill_assets.staleness.impact import ChangeImpact, LogChange, _days_soon_after
from backfill_assets.staleness.unloaded import load_targets, loaded_manifests
from backfill_assets_tests.helpers.invented_listings import file_path, write_landing
from backfill_assets_tests.helpers.invented_logs import days, ledger, record
from backfill_assets_tests.helpers.pipeline import START, day

POLICY = Policy(
    START, None, window_days=2, lag_days=1, corrects=True, only_touched=True, absent_days=4
)
#: The rows of each day, before a load and after it: what is settled does not depend on them.
SAME_ROWS = "digest"


def read_nothing(_: object) -> NoReturn:
    raise AssertionError("no row has changed, so none is read")


def list_days(landing: Path, *numbers: int, policy: Policy = POLICY, log: Ledger | None = None):
    """The listing of a load of days, and their manifests after it."""
    folders = {folder for n in numbers for folder in (day(n) - DAY, day(n))}
    listing = list_landing(str(landing), ORDER_LINES, folders)
    loaded = loaded_manifests(log) if log else {}
    targets = load_targets(loaded, listing, days(*numbers), policy)
    return listing, {d: target.manifest for d, target in targets.items()}


def load_log(
    landing: Path, *numbers: int, settled: Iterable[int] = (), policy: Policy = POLICY
) -> Ledger:
    """A log whose days were loaded at once, when the landing was as it is now."""
    _, manifests = list_days(landing, *numbers, policy=policy)
    published = record(
        0,
        days(*numbers),
        digest=SAME_ROWS,
        landing={str(d): manifest.as_json for d, manifest in manifests.items()},
        settled=days(*settled),
    )
    return ledger(RAW, published)


def details_of_load(
    landing: Path,
    log: Ledger,
    *numbers: int,
    failed: Collection[int] = (),
    policy: Policy = POLICY,
    lands_meanwhile: tuple[int, str] | None = None,
) -> CommitDetails:
    """What the commit of a load of days records, if it finds the rows that they had."""
    listing, manifests = list_days(landing, *numbers, policy=policy, log=log)
    if lands_meanwhile:
        add_file(landing, *lands_meanwhile)
    change = LogChange(ORDER_LINES, None, manifests, str(landing), listing, policy, "UTC")
    verdicts = [
        Verdict(
            day(n),
            DayMetrics(1, {}, SAME_ROWS),
            Expectation(),
            [Finding("row_count", Severity.ERROR if n in failed else Severity.OK, "")],
        )
        for n in numbers
    ]
    return change.details_for(TableSnapshot(log, False, read_nothing), verdicts)


def add_file(landing: Path, n: int, name: str) -> Path:
    path = landing / "orders" / file_path(n, f"{name}.jsonl")
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"content of {name}")
    return path


def expected_details(
    manifests: dict[date, LoadManifest], settled: Iterable[str] = (), unsettled: Iterable[str] = ()
) -> CommitDetails:
    """Those of a load that changes no row."""
    return msgspec.structs.replace(
        ChangeImpact().as_details,
        landing={d: manifest.as_json for d, manifest in manifests.items()},
        settled=[*settled],
        unsettled=[*unsettled],
    )


def test_a_first_load_settles_the_days_whose_folders_are_there(tmp_path):
    """That is, its own and the one before, but for the first day of the calendar."""
    landing = write_landing(tmp_path, "a.jsonl=1", "b.jsonl=2", None, "d.jsonl=4", "e.jsonl=5")
    log = ledger(RAW, record(0, days((1, 5)), digest=SAME_ROWS))
    _, manifests = list_days(landing, 1, 2, 3, 4, 5)
    assert details_of_load(landing, log, 1, 2, 3, 4, 5) == expected_details(
        manifests, settled=["2024-01-01...2024-01-02", "2024-01-05"]
    )
    # A calendar that begins later has no such folder for its first day either.
    later = replace(POLICY, start=day(4))
    assert details_of_load(landing, log, 4, 5, policy=later).settled == ["2024-01-04...2024-01-05"]


def test_a_folder_that_comes_after_all_settles_its_day_and_the_next(tmp_path):
    landing = write_landing(tmp_path, "a.jsonl=1", None, "c.jsonl=3", "d.jsonl=4")
    log = load_log(landing, 1, 2, 3, 4, settled=[1, 4])
    add_file(landing, 2, "b")
    _, manifests = list_days(landing, 2, 3, log=log)
    assert details_of_load(landing, log, 2, 3) == expected_details(
        manifests, settled=["2024-01-02...2024-01-03"]
    )
    # Day 3 is settled by its own load only, as early lines may lie in the folder that came.
    assert details_of_load(landing, log, 2).settled == ["2024-01-02"]


def test_a_day_that_failed_its_audit_was_not_loaded(tmp_path):
    landing = write_landing(tmp_path, "a.jsonl=1", None, "c.jsonl=3")
    log = load_log(landing, 1, 2, 3, settled=[1])
    add_file(landing, 2, "b")
    _, manifests = list_days(landing, 2, 3, log=log)
    assert details_of_load(landing, log, 2, 3, failed=[3]) == expected_details(
        {day(2): manifests[day(2)]}, settled=["2024-01-02"]
    )


@pytest.mark.parametrize(
    ("window_days", "unsettled"),
    [
        (0, []),
        (1, ["2024-01-03", "2024-01-05"]),
        (2, ["2024-01-02...2024-01-03", "2024-01-05...2024-01-06"]),
    ],
)
def test_files_that_landed_since_unsettle_the_days_that_a_window_has_in_common(
    tmp_path, window_days, unsettled
):
    """They are not loaded yet. Days further away cannot close with this load."""
    policy = replace(POLICY, window_days=window_days)
    landing = write_landing(tmp_path, *(f"{n}.jsonl={n}" for n in range(1, 9)))
    log = load_log(landing, *range(1, 9), settled=range(1, 9), policy=policy)
    _, manifests = list_days(landing, 4, log=log, policy=policy)
    for n in (1, 2, 3, 5, 6, 7, 8):
        add_file(landing, n, "more")
    details = details_of_load(landing, log, 4, policy=policy)
    # Day 4 has been loaded with what came in the folder before it.
    assert details.unsettled == unsettled
    assert details.settled == []
    assert details.landing.keys() == manifests.keys()


def test_what_lands_during_a_load_counts_for_the_next_one(tmp_path):
    """In the folders that it has listed; others are listed when it commits."""
    landing = write_landing(tmp_path, *(f"{n}.jsonl={n}" for n in range(1, 6)))
    log = load_log(landing, 1, 2, 3, 4, 5, settled=[1, 2, 3, 4, 5])
    details = details_of_load(landing, log, 3, lands_meanwhile=(3, "more"))
    assert (details.settled, details.unsettled) == ([], [])
    (landing / "orders" / file_path(3, "more.jsonl")).unlink()
    details = details_of_load(landing, log, 3, lands_meanwhile=(4, "more"))
    assert (details.settled, details.unsettled) == ([], ["2024-01-04...2024-01-05"])


def test_a_folder_that_was_purged_and_comes_back_meanwhile_counts_for_the_next_load(tmp_path):
    landing = write_landing(tmp_path, *(f"{n}.jsonl={n}" for n in range(1, 5)))
    log = load_log(landing, 1, 2, 3, 4, settled=[1, 2, 3, 4])
    (landing / "orders" / file_path(3, "3.jsonl")).unlink()
    (landing / "orders" / folder_name(day(3))).rmdir()
    details = details_of_load(landing, log, 3, lands_meanwhile=(3, "more"))
    assert (details.settled, details.unsettled) == ([], [])


def test_early_lines_in_the_folder_before_a_window_unsettle_its_first_day(tmp_path):
    landing = write_landing(tmp_path, *(f"{n}.jsonl={n}" for n in range(1, 6)))
    log = load_log(landing, 1, 2, 3, 4, 5, settled=[1, 2, 3, 4, 5])
    add_file(landing, 1, "early")
    assert details_of_load(landing, log, 4).unsettled == ["2024-01-02"]


def test_a_day_far_away_is_settled_once_nothing_of_it_is_waited_for_any_more(tmp_path):
    """A file came, which was not loaded, and is gone: the day has all that lies there again."""
    landing = write_landing(tmp_path, *(f"{n}.jsonl={n}" for n in range(1, 10)))
    log = load_log(landing, *range(1, 10), settled=range(2, 10))
    assert details_of_load(landing, log, 9).settled == ["2024-01-01"]
    add_file(landing, 1, "more")
    assert details_of_load(landing, log, 9).settled == []


@pytest.mark.parametrize(
    ("window_days", "changed", "expected"),
    [
        (0, (3,), ()),
        (1, (3,), (4,)),
        (2, (3,), (4, 5)),
        (2, (3, 4), (5, 6)),
        (2, (1, 6), (2, 3)),
        (2, (), ()),
    ],
)
def test_the_lateness_of_the_log_days_in_the_window_after_may_change(
    window_days, changed, expected
):
    policy = replace(POLICY, window_days=window_days)
    assert _days_soon_after(days(*changed), days((1, 6)), policy) == days(*expected)
