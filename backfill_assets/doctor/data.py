"""Landing and tables: can they be listed, read and written, is the log whole, who else writes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError
from deltalake.table import (
    SUPPORTED_READER_FEATURES,
    SUPPORTED_WRITER_FEATURES,
    ProtocolVersions,
)

from backfill_assets.calendar.partitions import spelled, windows
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.commits import gist
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.logs import load_log
from backfill_assets.delta.other_engine import read_test
from backfill_assets.delta.reading import read_ledger, read_ledgers
from backfill_assets.doctor.examination import Check, Found, note, ok, wrong
from backfill_assets.doctor.machine import existing, refuses
from backfill_assets.engine.stores import open_store
from backfill_assets.landing.listing import Entry, list_landing
from backfill_assets.monitoring.incidents import out_of_time, table_as_such
from backfill_assets.monitoring.night import landed
from backfill_assets.monitoring.states import MEANING, Situation, State
from backfill_assets.settings import Settings
from backfill_assets.staleness.backlog import Backlog
from backfill_assets.tables.catalog import config_digests, graph_for
from backfill_assets.tables.sources import Source

#: A time so far ahead of the clock is not that of two clocks that differ a little.
_AHEAD = timedelta(hours=1)
WAREHOUSE = "warehouse"
#: So many names are given of what is not read.
_MOST_NAMES = 5


def checks(settings: Settings) -> list[Check]:
    """The checks of landing, warehouse and tables."""
    graph = graph_for(settings)
    sources = {source.name: source for source in graph.sources.values()}
    parts = {name: f"landing {name}" for name in sources}
    return [
        *(Check(parts[name], partial(landing, settings, of)) for name, of in sources.items()),
        Check(WAREHOUSE, partial(warehouse, settings)),
        *(
            Check(f"table {name}", partial(table, settings, name), [WAREHOUSE])
            for name in graph.tables
        ),
        Check("clock", partial(clock, settings), [WAREHOUSE, *parts.values()]),
    ]


def landing(settings: Settings, source: Source) -> Iterator[Found]:
    """Whether a source's folders can be listed, and the newest file opened."""
    listing = list_landing(settings.landing, source)
    where = f"{settings.landing}/{source.name}"
    if strays := listing.strays:
        names = ", ".join(strays[:_MOST_NAMES]) + (", ..." if strays[_MOST_NAMES:] else "")
        message = f"{len(strays)} name(s) are not of an arrival day and are not read: {names}"
        advice = "move what is data into folders arrival_date=YYYY-MM-DD, and the rest elsewhere"
        yield wrong(f"{where}: {message}", advice)
    if not listing.folders:
        yield note(f"no arrival day has landed in {where}", "see that the source delivers")
        return
    files = [entry for folder in listing.folders.values() for entry in folder.files.values()]
    unknown = [name for folder in listing.folders.values() for name in folder.unknown]
    days = f"{len(listing.folders)} arrival days up to {max(listing.folders)}"
    if unknown:
        said = f"{len(unknown)} file(s) of no known format are not read, such as {unknown[-1]}"
        yield note(f"{where}: {said}", "see docs/landing.md for the names")
    if refused := [entry for entry in files if entry.refused]:
        last = max(refused, key=lambda entry: entry.source_file)
        said = f"{len(refused)} file(s) are refused, the last one {last.source_file}"
        yield wrong(f"{where}: {said}: {last.refused}", "see docs/landing.md for what is read")
    if fine := [entry for entry in files if not entry.refused]:
        _open(settings, max(fine, key=lambda entry: entry.source_file))
    yield ok(f"{where}: {days}, {len(files)} files")


def _open(settings: Settings, entry: Entry) -> None:
    filesystem, _ = open_store(settings.landing)
    with filesystem.open_input_stream(entry.path, compression=None) as stream:
        stream.read(1)


def warehouse(settings: Settings) -> Iterator[Found]:
    """Whether the warehouse is there and can be written."""
    where = settings.warehouse
    if "://" not in where:
        there = existing(Path(where))
        if said := refuses(there):
            yield wrong(f"{there} cannot be written: {said}", f"let this user write to {there}")
        elif there != Path(where):
            yield note(f"there is none at {where} yet: the first run makes it")
        else:
            yield ok(where)
        return
    filesystem, path = open_store(where)
    if filesystem.get_file_info(path).type == pafs.FileType.NotFound:
        yield note(f"nothing is at {where} yet: the first run makes it")
    else:
        yield ok(f"{where} can be listed; whether it can be written, a run shows")


def table(settings: Settings, name: str) -> Iterator[Found]:
    """Whether a table is that of the code, has its log, is ours alone and reads as published."""
    graph, url = graph_for(settings), settings.table(name)
    try:
        log = load_log(url)
        ledger = read_ledger(url, graph.tables[name])
    except DeltaError as error:
        mend = f"put {url}/_delta_log back from a backup; no run can write the table until then"
        yield wrong(f"its log cannot be read: {gist(error)}", mend)
        return
    if log is None:
        yield ok("not made yet")
        return
    yield from _features(log.protocol())
    incidents = [*table_as_such(ledger, graph.made_from(name))]
    for incident in incidents:
        said, _, mend = incident.detail.rpartition(". ")
        yield wrong(f"{incident.kind}: {said or mend}", mend)
    if incidents:
        return
    yield from _others(ledger)
    days = sorted(ledger.latest)
    test = read_test(settings, graph.tables[name], days[-1:])
    for problem in test.problems:
        again = f"backfill-assets verify {days[-1]} --select {name}" if days else "backfill-assets"
        yield wrong(problem, f"see what `{again}` says, then materialize the day again")
    if not test.problems:
        spans = f", {windows(days)[0].start}...{days[-1]}" if days else ""
        yield ok(f"version {ledger.version}, {len(days)} published days{spans}")


def _features(protocol: ProtocolVersions) -> Iterator[Found]:
    """What of Delta's newer features somebody has switched on that this package cannot follow."""
    mend = "find who did it; ALTER TABLE ... DROP FEATURE takes one off again"
    if newer := {*(protocol.reader_features or ())} - SUPPORTED_READER_FEATURES:
        said = "another writer has switched on, and readers without Spark cannot follow"
        yield wrong(f"{said}: {', '.join(sorted(newer))}", mend)
    newer = {*(protocol.writer_features or ())} - SUPPORTED_WRITER_FEATURES - newer - _KNOWN
    if newer:
        said = "another writer has switched on, and a run may not be able to write"
        yield note(f"{said}: {', '.join(sorted(newer))}", mend)


#: Features that ask nothing of who replaces files of whole days.
_KNOWN = frozenset({"checkConstraints", "generatedColumns"})


def _others(ledger: Ledger) -> Iterator[Found]:
    """Days that somebody else has changed since they were published."""
    changed = [
        day
        for day in ledger.published
        if ledger.current_record(day) is None and day not in ledger.unrecorded
    ]
    if not changed:
        return
    last = [other for other in ledger.external if other.days & {*changed} or other.anywhere][-1:]
    by = "".join(f", last by {other.operation} (version {other.version})" for other in last)
    said, _, mend = MEANING[State.EXTERNAL].partition(". ")
    yield wrong(f"{spelled(changed)} changed by another writer{by}: {said}", mend)


def clock(settings: Settings) -> Iterator[Found]:
    """The clock of this machine against what has landed and what was published."""
    now = datetime.now(timezone.utc)
    today = now.astimezone(settings.zone).date()
    ledgers = read_ledgers(settings)
    situation = Situation(
        ledgers=ledgers,
        backlog=Backlog(),
        arrivals=landed(settings, ledgers, graph_for(settings), today),
        failed={},
        policy=Policy.of(settings),
        config_digests=config_digests(settings),
        today=today,
    )
    found = [one for log in situation.graph.sources for one in out_of_time(situation, log)]
    for incident in found:
        yield wrong(f"{incident.subject}: {incident.detail}", "set the clock, or see to the source")
    times = {
        f"the last commit of {name}": record.at
        for name, ledger in ledgers.items()
        if ledger.records and (record := ledger.records[-1]).at
    }
    ahead = {what: at for what, at in times.items() if at and at > now + _AHEAD}
    for what, at in ahead.items():
        said = f"{what} is of {at:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M}"
        yield wrong(said, "set the clock: it runs behind, or ran ahead then")
    if not found and not ahead:
        yield ok(f"{now:%Y-%m-%d %H:%M} UTC; the business day is {today}")
