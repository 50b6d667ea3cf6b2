"""What must hold at every moment of a deployment: no record and no state claims what is not so.

A record says by which code and from which versions of its inputs a day was made. `false_claims`
computes the day from these, in plain Python, and from what the inputs hold now. It uses no code of
the package but to read its records and states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache, partial
from typing import Any, NamedTuple

from deltalake import DeltaTable

from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import ACCEPTED_CODE, CANARY, SWITCH_OVER, CommitRecord
from backfill_assets.delta.table_schema import read_schema_version
from backfill_assets.monitoring.incidents import Monitor
from backfill_assets.monitoring.states import day_states
from backfill_assets.settings import Settings
from backfill_assets_tests.helpers.pipeline import Pipeline
from backfill_assets_tests.lived_tables import SHARES

DAY = timedelta(days=1)
WINDOW = 1
#: Rows of a day, as far as they tell days apart.
Rows = Counter[tuple[Any, ...]]
#: Rows of an input on a day.
Read = Callable[[str, date], list[dict[str, Any]]]


@cache
def _read_rows(url: str, version: int, partition: str) -> Mapping[date, list[dict[str, Any]]]:
    """The rows of a version of a table, by day; versions do not change."""
    rows_by_day: dict[date, list[dict[str, Any]]] = {}
    for row in DeltaTable(url, version=version).to_pyarrow_table().to_pylist():
        rows_by_day.setdefault(row[partition], []).append(row)
    return rows_by_day


class Code(NamedTuple):
    """What a version of the code of `activity` makes.

    Attributes:
        points: what an order counts.
        note: the note of a customer with a score.
        schema_version: of its columns.
    """

    points: int
    note: Callable[[str | None, int], object]
    schema_version: int


#: Of another table.
NO_CODE = Code(0, lambda _customer, _score: None, 1)
#: The schema version that dropped the note.
_WITHOUT_NOTE = 3


def _make_staged_rule(raw: str, key: str, *times: str) -> Callable[[Read, date, Code], Rows]:
    """The greatest version of each key among the lines that came in time."""

    def staged_rows(read: Read, day: date, _code: Code) -> Rows:
        lines = [row for n in range(WINDOW + 1) for row in read(raw, day + n * DAY)]
        greatest: dict[str, dict[str, Any]] = {}
        for line in lines:
            known = greatest.get(line[key])
            if known is None or line[times[1]] > known[times[1]]:
                greatest[line[key]] = line
        return Counter((line[key],) for line in greatest.values() if line[times[0]].date() == day)

    return staged_rows


def _activity_rows(read: Read, day: date, code: Code) -> Rows:
    scores: Counter[str | None] = Counter()
    for row in read("stg_orders", day):
        scores[_known(row["customer_id"])] += code.points
    for row in read("stg_visits", day):
        scores[_known(row["user_id"])] += 1
    return Counter(
        (customer, score, _exact(SHARES[score % len(SHARES)]), code.note(customer, score))
        for customer, score in scores.items()
    )


def _known(customer: str) -> str | None:
    return None if customer == "c" else customer


def _exact(value: object) -> object:
    """A value that is equal to itself: all NaN are the same, and -0.0 counts as 0.0."""
    return repr(value + 0.0) if isinstance(value, float) else value


def _peak_rows(read: Read, day: date, _code: Code) -> Rows:
    best: dict[str | None, int] = {}
    for n in range(3):
        for row in read("activity", day - n * DAY):
            best[row["customer_id"]] = max(row["score"], best.get(row["customer_id"], 0))
    return Counter(best.items())


def _balance_rows(read: Read, day: date, _code: Code) -> Rows:
    sums: Counter[str | None] = Counter()
    for row in [*read("balances", day - DAY), *read("activity", day)]:
        sums[row["customer_id"]] += row["score"]
    return Counter(sums.items())


@dataclass(frozen=True)
class Rule:
    """How a table follows from others, and which columns of it that is about."""

    rows: Callable[[Read, date, Code], Rows]
    columns: tuple[str, ...] = ("customer_id", "score")

    def told_rows(self, rows: Iterable[dict[str, Any]]) -> Rows:
        """Rows as far as the rule knows them."""
        return Counter(
            tuple(_exact(row.get(name, row.get("remark"))) for name in self.columns) for row in rows
        )


RULES = {
    "stg_orders": Rule(
        _make_staged_rule("raw_orders", "order_id", "order_ts", "ingestion_ts"), ("order_id",)
    ),
    "stg_visits": Rule(
        _make_staged_rule("raw_visits", "visit_id", "began_at", "sent_at"), ("visit_id",)
    ),
    "activity": Rule(_activity_rows, ("customer_id", "score", "share", "note")),
    "peaks": Rule(_peak_rows),
    "balances": Rule(_balance_rows),
}


@dataclass(frozen=True)
class Claim:
    """A day whose rows are not what its record, or its state, says.

    Attributes:
        table: the table.
        day: the day.
        rows: what it holds.
        expected: what it must hold.
        reason: whose claim that is.
    """

    table: str
    day: date
    rows: Rows
    expected: Rows
    reason: str

    def __str__(self) -> str:
        beyond, lacks = dict(self.rows - self.expected), dict(self.expected - self.rows)
        return f"{self.table}[{self.day}] has {beyond} and lacks {lacks}: {self.reason}"


def false_claims(pipeline: Pipeline, codes: Mapping[str, Code]) -> Iterator[Claim]:
    """Days whose rows are not what the recorded code makes of recorded inputs, or of those of now.

    Another writer, or a person who accepts code, answers for rows of theirs: both are on record.
    A day that a switch-over has brought names no version of an input that has never held in
    production what the day was made of in the target: until then it must not be settled.

    Args:
        pipeline: the deployment.
        codes: by code version of `activity`.
    """
    snapshot = Monitor(pipeline.deployment, lambda: pipeline.now).read_snapshot(pipeline.instance)
    ledgers = snapshot.ledgers
    for name, rule in RULES.items():
        ledger = ledgers[name]
        states = day_states(name, snapshot) if ledger.version is not None else {}
        behind = snapshot.stale.all_days(name)
        for day, record in sorted(ledger.latest.items()):
            if ledger.current_record(day) is None or record.details.kind == ACCEPTED_CODE:
                continue
            inputs = _Inputs(pipeline.settings, ledgers)
            code = _code_since(ledger, codes.get(record.code_version, NO_CODE))
            rows = rule.told_rows(inputs.rows_at(name, ledger.version, day))
            versions = {**record.inputs, name: _own_version(ledger, record, day)}
            recorded = rule.rows(partial(inputs.as_of, versions), day, code)
            settled = states[day].is_good and day not in behind
            in_part = inputs.unnamed and _is_switched(ledger, record)
            merged = any(other.is_merge and day in other.days for other in ledger.records)
            if not _hold(rows, recorded, merged) and (settled or not in_part):
                yield Claim(name, day, rows, recorded, f"the record names {dict(record.inputs)}")
            if settled:
                current = rule.rows(inputs.current_rows, day, code)
                if not _hold(rows, current, merged) and not inputs.external:
                    yield Claim(name, day, rows, current, f"the state is {states[day].value}")


def _code_since(ledger: Ledger, code: Code) -> Code:
    """What is left of what a code made: a column that was dropped since is null."""
    assert ledger.metadata is not None
    stored = read_schema_version(ledger.metadata)
    is_dropped = code.schema_version < _WITHOUT_NOTE <= stored
    return code._replace(note=NO_CODE.note) if is_dropped else code


def _hold(rows: Rows, expected: Rows, merged: bool) -> bool:
    """Whether a day has the rows; a merge leaves rows of other keys in place."""
    keys = {row[0] for row in expected}
    return Counter(row for row in rows.elements() if not merged or row[0] in keys) == expected


@dataclass
class _Inputs:
    """Rows of tables.

    Whether any that were read are of another writer, and whether a table has no version to be read.
    """

    settings: Settings
    ledgers: Ledgers
    external: bool = False
    unnamed: bool = False

    def rows_at(self, table: str, version: int | None, day: date) -> list[dict[str, Any]]:
        """Rows of a day as of a version; none where there was no table."""
        if version is None:
            return []
        partition = self.ledgers[table].table.partition
        return _read_rows(self.settings.table(table), version, partition).get(day, [])

    def as_of(
        self, versions: Mapping[str, int | None], table: str, day: date
    ) -> list[dict[str, Any]]:
        """Rows of a day as of versions of the tables."""
        self.unnamed |= versions.get(table) is None
        return self.rows_at(table, versions.get(table), day)

    def current_rows(self, table: str, day: date) -> list[dict[str, Any]]:
        """Rows of a day as they are."""
        ledger = self.ledgers[table]
        self.external |= day in ledger.published_days and ledger.current_record(day) is None
        return self.rows_at(table, ledger.version, day)


def _is_switched(ledger: Ledger, record: CommitRecord) -> bool:
    """Whether a commit has brought days of a target."""
    (commit,) = (candidate for candidate in ledger.records if candidate.version == record.version)
    return commit.details.kind in (SWITCH_OVER, CANARY)


def _own_version(ledger: Ledger, record: CommitRecord, day: date) -> int | None:
    """The version of a table that carries state in which a day was built upon the day before."""
    (commit,) = (candidate for candidate in ledger.records if candidate.version == record.version)
    # Days of one commit are built one upon the other.
    return record.version if day - DAY in commit.days else record.inputs.get(ledger.table.name)
