"""Checks of what runs read and write: landing, warehouse, tables, clock; and of the engine."""

import tempfile
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError
from deltalake.table import SUPPORTED_READER_FEATURES, SUPPORTED_WRITER_FEATURES, ProtocolVersions
from pyspark.sql import SparkSession

from backfill_assets.calendar.partitions import format_ranges, to_windows
from backfill_assets.delta.catalog import misplaced
from backfill_assets.delta.commits import summarize_error
from backfill_assets.delta.delta_rs import load_log
from backfill_assets.delta.ledger_reader import read_ledger, read_ledgers
from backfill_assets.delta.ledgers import Ledger, own_ledgers
from backfill_assets.delta.read_check import check_read
from backfill_assets.delta.table_schema import unreadable_reasons
from backfill_assets.deployment import Deployment
from backfill_assets.doctor.checks import Check, CheckResult, note, ok, wrong
from backfill_assets.doctor.machine import nearest_folder, write_error
from backfill_assets.landing.listing import ListedFile, folder_name, list_landing
from backfill_assets.monitoring.incidents import clock_incidents, table_incidents
from backfill_assets.monitoring.next_runs import unloaded_by_log
from backfill_assets.monitoring.states import STATE_MEANINGS, DayState, MonitoringSnapshot
from backfill_assets.spark.filesystems import open_store
from backfill_assets.spark.session import SPARK_ERRORS, Engine, first_error_line, is_shared
from backfill_assets.tables.sources import Source
from backfill_assets.tables.table import ExternalTable

#: A time further ahead is not explained by two clocks that differ a little.
_CLOCK_TOLERANCE = timedelta(hours=1)
WAREHOUSE = "warehouse"
#: The number of unread names that a message lists.
_MAX_NAMES = 5


def data_checks(deployment: Deployment) -> list[Check]:
    """The checks of landing, warehouse and tables."""
    graph = deployment.graph
    sources = graph.sources_by_name
    parts = {name: f"landing {name}" for name in sources}
    return [
        *(
            Check(parts[name], partial(check_landing, deployment, landing_source))
            for name, landing_source in sources.items()
        ),
        Check(WAREHOUSE, partial(check_warehouse, deployment)),
        *(
            Check(f"table {name}", partial(check_table, deployment, name), [WAREHOUSE])
            for name in graph.tables
        ),
        *(
            Check(f"table {name}", partial(check_external_table, deployment, table))
            for name, table in graph.external.items()
        ),
        Check("clock", partial(check_clock, deployment), [WAREHOUSE, *parts.values()]),
    ]


def check_landing(deployment: Deployment, source: Source) -> Iterator[CheckResult]:
    """Check that a source's folders can be listed, and its newest file opened."""
    listing = list_landing(deployment.settings.landing, source)
    location = f"{deployment.settings.landing}/{source.name}"
    if strays := listing.strays:
        names = ", ".join(strays[:_MAX_NAMES]) + (", ..." if strays[_MAX_NAMES:] else "")
        message = f"{len(strays)} name(s) are not of an arrival day and are not read: {names}"
        fix = "move what is data into folders arrival_date=YYYY-MM-DD, and the rest elsewhere"
        yield wrong(f"{location}: {message}", fix)
    end = source.raw.end or date.max
    if later := [day for day in listing.folders if day >= end]:
        message = f"{len(later)} folder(s) have come since {end}, when {source.part} was retired"
        fix = f"move {source.part} to a later day in `retired` of its dimension, or the files away"
        yield wrong(f"{location}: {message}, and are not read: {folder_name(later[0])}", fix)
    if not listing.folders:
        yield note(f"no arrival day has landed in {location}", "see that the source delivers")
        return
    files = [entry for folder in listing.folders.values() for entry in folder.files.values()]
    unknown = [name for folder in listing.folders.values() for name in folder.unknown_files]
    days = f"{len(listing.folders)} arrival days up to {max(listing.folders)}"
    if unknown:
        text = f"{len(unknown)} file(s) of no known format are not read, such as {unknown[-1]}"
        yield note(f"{location}: {text}", "see docs/landing.md for the names")
    if refused := [entry for entry in files if entry.refused]:
        last = max(refused, key=lambda entry: entry.source_file)
        text = f"{len(refused)} file(s) are refused, the last one {last.source_file}"
        yield wrong(f"{location}: {text}: {last.refused}", "see docs/landing.md for what is read")
    if fine := [entry for entry in files if not entry.refused]:
        _open_file(deployment, max(fine, key=lambda entry: entry.source_file))
    yield ok(f"{location}: {days}, {len(files)} files")


def _open_file(deployment: Deployment, entry: ListedFile) -> None:
    filesystem, _ = open_store(deployment.settings.landing)
    with filesystem.open_input_stream(entry.path, compression=None) as stream:
        stream.read(1)


def check_warehouse(deployment: Deployment) -> Iterator[CheckResult]:
    """Check that the warehouse exists and can be written."""
    location = deployment.settings.warehouse
    if "://" not in location:
        folder = nearest_folder(Path(location))
        if reason := write_error(folder):
            yield wrong(f"{folder} cannot be written: {reason}", f"let this user write to {folder}")
        elif folder != Path(location):
            yield note(f"there is none at {location} yet: the first run makes it")
        else:
            yield ok(location)
        return
    filesystem, path = open_store(location)
    if filesystem.get_file_info(path).type == pafs.FileType.NotFound:
        yield note(f"nothing is at {location} yet: the first run makes it")
    else:
        yield ok(f"{location} can be listed; whether it can be written, a run shows")


def check_table(deployment: Deployment, name: str) -> Iterator[CheckResult]:
    """Check that a table matches its code, has a log and no other writers, and can be read."""
    graph, url = deployment.graph, deployment.table_url(name)
    try:
        log = load_log(url)
        ledger = read_ledger(url, graph.tables[name])
    except DeltaError as error:
        fix = f"put {url}/_delta_log back from a backup; no run can write the table until then"
        yield wrong(f"its log cannot be read: {summarize_error(error)}", fix)
        return
    if log is None:
        yield ok("not made yet")
        return
    yield from _check_features(log.protocol())
    incidents = [*table_incidents(ledger, graph.direct_inputs(name))]
    for incident in incidents:
        detail, _, fix = incident.detail.rpartition(". ")
        yield wrong(f"{incident.kind}: {detail or fix}", fix)
    if incidents:
        return
    yield from _check_other_writers(ledger)
    days = sorted(ledger.latest)
    test = check_read(deployment, graph.tables[name], days[-1:])
    for problem in test.problems:
        command = (
            f"backfill-assets verify {days[-1]} --select {name}" if days else "backfill-assets"
        )
        yield wrong(problem, f"see what `{command}` says, then materialize the day again")
    if not test.problems:
        day_span = f", {to_windows(days)[0].start}...{days[-1]}" if days else ""
        yield ok(f"version {ledger.version}, {len(days)} published days{day_span}")


def check_external_table(deployment: Deployment, table: ExternalTable) -> Iterator[CheckResult]:
    """Check that a table that others write is there, and has what is read of it."""
    url = table.place(deployment.settings.warehouse)
    fix = f"see to its writer, or change external_table({table.name!r}, ...)"
    try:
        ledger = read_ledger(url, table, deployment.settings.warehouse)
    except DeltaError as error:
        yield wrong(f"the log of {url} cannot be read: {summarize_error(error)}", fix)
        return
    if ledger.metadata is None:
        yield wrong(f"no table is at {url}", fix)
    elif messages := unreadable_reasons(table, ledger.metadata):
        yield wrong(f"the table at {url} is not as it is declared: {'; '.join(messages)}", fix)
    else:
        yield ok(f"version {ledger.version}, {len(ledger.published_days)} days, written by others")


def _check_features(protocol: ProtocolVersions) -> Iterator[CheckResult]:
    """Features of Delta that another writer has enabled and this package does not support."""
    fix = "find who did it; ALTER TABLE ... DROP FEATURE takes one off again"
    if newer := {*(protocol.reader_features or ())} - SUPPORTED_READER_FEATURES:
        message = "another writer has switched on, and readers without Spark cannot follow"
        yield wrong(f"{message}: {', '.join(sorted(newer))}", fix)
    newer = {*(protocol.writer_features or ())} - SUPPORTED_WRITER_FEATURES - newer - _KNOWN
    if newer:
        message = "another writer has switched on, and a run may not be able to write"
        yield note(f"{message}: {', '.join(sorted(newer))}", fix)


#: Features that need no support from a writer that replaces whole days.
_KNOWN = frozenset({"checkConstraints", "generatedColumns"})


def _check_other_writers(ledger: Ledger) -> Iterator[CheckResult]:
    """Days that another writer has changed since they were published."""
    changed = [
        day
        for day in ledger.published_days
        if ledger.current_record(day) is None and day not in ledger.days_without_record
    ]
    if not changed:
        return
    last = [
        other
        for other in ledger.external_commits
        if other.days & {*changed} or other.has_unknown_days
    ][-1:]
    last_writer = "".join(
        f", last by {other.operation} (version {other.version})" for other in last
    )
    meaning, _, fix = STATE_MEANINGS[DayState.EXTERNAL].partition(". ")
    yield wrong(f"{format_ranges(changed)} changed by another writer{last_writer}: {meaning}", fix)


def check_clock(deployment: Deployment) -> Iterator[CheckResult]:
    """Compare the clock of this machine with the times of landing files and publications."""
    now, today = datetime.now(timezone.utc), deployment.today
    ledgers = read_ledgers(deployment)
    snapshot = MonitoringSnapshot(
        deployment.graph,
        ledgers,
        today,
        unloaded=unloaded_by_log(deployment, ledgers, deployment.graph, today),
        failed_checks={},
    )
    incidents = [
        problem for log in snapshot.graph.sources for problem in clock_incidents(snapshot, log)
    ]
    for incident in incidents:
        yield wrong(f"{incident.subject}: {incident.detail}", "set the clock, or see to the source")
    times = {
        f"the last commit of {name}": record.at
        for name, ledger in own_ledgers(ledgers).items()
        if ledger.records and (record := ledger.records[-1]).at
    }
    ahead = {what: at for what, at in times.items() if at and at > now + _CLOCK_TOLERANCE}
    for what, at in ahead.items():
        message = f"{what} is of {at:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M}"
        yield wrong(message, "set the clock: it runs behind, or ran ahead then")
    if not incidents and not ahead:
        yield ok(f"{now:%Y-%m-%d %H:%M} UTC; the business day is {today}")


def check_engine(deployment: Deployment, *, start: bool) -> Iterator[CheckResult]:
    """Check that there is an engine, and that it matches the settings.

    With `start`, also start an embedded one, and write a small table with it.

    Raises:
        EngineError: there is none, or it does not match the settings.
    """
    if not deployment.settings.spark_remote and not start:
        yield ok("embedded: --engine starts one and writes a small table with it")
        return
    # Raises for a server with wrong settings.
    spark = Engine.from_settings(deployment.settings).spark_session
    try:
        if spark.range(3).count() != 3:
            raise ValueError("the engine cannot count to 3")
        if not deployment.settings.spark_remote:
            _write_table(spark)
        yield from _check_catalog(deployment, spark)
    finally:
        if not is_shared(deployment.settings.spark_remote or ""):
            spark.stop()
    yield ok(f"Spark {spark.version} answers, with the settings that it must have")


def _check_catalog(deployment: Deployment, spark: SparkSession) -> Iterator[CheckResult]:
    """Names of the catalog that point elsewhere."""
    if not (catalog := deployment.settings.catalog):
        return
    for name in deployment.graph.assets:
        full_name = f"{catalog}.`{name}`"
        try:
            problem = misplaced(spark, full_name, deployment.table_url(name))
        except SPARK_ERRORS as error:
            fix = f"see that the catalog answers, and that the files of {full_name} are there"
            yield wrong(f"{full_name}: {first_error_line(error)}", fix)
            continue
        if problem:
            fix = f"DROP TABLE {full_name} leaves the files of a table; the next run registers it"
            yield wrong(problem, fix)


def _write_table(spark: SparkSession) -> None:
    """Write a table and read it: that fails if the jars do not fit."""
    with tempfile.TemporaryDirectory(prefix="backfill_assets-") as folder:
        table = str(Path(folder, "table"))
        spark.range(3).write.format("delta").save(table)
        if spark.read.format("delta").load(table).count() != 3:
            raise ValueError("the engine does not read what it wrote")
