"""Maintenance: many small files become few, files past the time to undo go, and no row changes.

How long replaced files are kept is the setting `undo_days`, which each table carries as a property,
so that a VACUUM by anybody keeps them as well. This module alone compacts and takes files away.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from urllib.parse import unquote

import dagster as dg
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pydantic import Field
from pyspark.sql import SparkSession

from backfill_assets.calendar.partitions import any_of, spelled, windows
from backfill_assets.dagster_ext.engine_failures import engine_lost
from backfill_assets.delta import retirement
from backfill_assets.delta.commits import (
    PublishError,
    Writer,
    gist,
    in_sql,
    is_conflict,
    table_properties,
)
from backfill_assets.delta.data_files import abandoned
from backfill_assets.delta.evolution import differences, way
from backfill_assets.delta.logs import delta_log, load_log, metadata_of
from backfill_assets.delta.maintained import Files, Maintained, as_markdown, cells, sentences
from backfill_assets.delta.reading import read_ledger
from backfill_assets.delta.snapshots import rows_as_of
from backfill_assets.delta.targets import NO_AGE, older_than
from backfill_assets.delta.versions import FILE, versions_that_belong_together
from backfill_assets.engine.spark import SPARK_ERRORS
from backfill_assets.engine.stores import open_store
from backfill_assets.escaping import markdown
from backfill_assets.quality.audit import are_comparable, measure
from backfill_assets.settings import PREFIX, Settings
from backfill_assets.tables.catalog import tables_of
from backfill_assets.tables.table import Table


def maintain(
    spark: SparkSession,
    settings: Settings,
    names: Sequence[str] = (),
    *,
    dry_run: bool = False,
    today: date | None = None,
) -> Iterator[Maintained]:
    """Maintain tables, one after the other.

    Days with files that fit into fewer are compacted; each such day must then hold what it held,
    by its digest. Files that no version of the last `undo_days` days has are taken away, those that
    killed runs left behind included, unless `_versions.json` names a version that has them. The log
    is kept whole. A run that writes the same days at the same time is not disturbed: one of the two
    commits second, a run then commits once more, and maintenance leaves the table to the next time.
    A table that is retired for `undo_days` days gives up its rows and all files, see `retirement`.

    Args:
        spark: the session.
        settings: the deployment's settings.
        names: which tables; all if none is given. One that does not exist yet is left out.
        dry_run: tell what would be done, and do nothing.
        today: the business day; that of the clock, if not given.

    Raises:
        ValueError: there is no table of such a name.
    """
    tables = tables_of(settings)
    today = today or datetime.now(settings.zone).date()
    if unknown := sorted(set(names) - tables.keys()):
        raise ValueError(f"no such table: {', '.join(unknown)}; there are {', '.join(tables)}")
    named: dict[str, int] = {}
    with suppress(FileNotFoundError, ValueError, KeyError):
        named = versions_that_belong_together(settings.warehouse)
    for name, table in tables.items():
        url = settings.table(name)
        log = load_log(url) if name in names or not names else None
        if log is not None and log.metadata().partition_columns != [table.partition]:
            none = Files(log.version(), Counter(), Counter())
            metadata = metadata_of(log)
            said = "; ".join(differences(table, metadata))
            advice = way(table, metadata, None)
            problem = f"{name}: {said}. It was left as it is. {advice}"
            yield Maintained(name, none, none, problems=[problem])
        elif log is not None:
            # A target has files that no version of the table has, or no longer.
            leaves = retirement.leaves(table, settings.undo_days, today)
            age = NO_AGE if leaves else max(settings.undo_days - 1, 0)
            kept_for = older_than(settings, name, age)
            one = _Maintenance(
                spark, url, table, settings.undo_days, dry_run, leaves, kept_for, named.get(name)
            )
            yield one.run(log)


@dataclass
class _Maintenance:
    """The maintenance of one table."""

    spark: SparkSession
    url: str
    table: Table
    undo_days: int
    dry_run: bool
    leaves: bool
    kept_for: list[str] = field(default_factory=list)
    named: int | None = None
    compacted: list[date] = field(default_factory=list)
    removed: int | None = None
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def run(self, log: DeltaTable) -> Maintained:
        """All of it, or up to what failed."""
        before = Files.of(log, self.table)
        try:
            if self.leaves:
                self._leave()
            else:
                self._keep_up(before, log)
        except (DeltaError, OSError, PublishError, *SPARK_ERRORS) as error:
            if engine_lost(error):
                raise
            if is_conflict(error):
                self.notes.append(
                    f"{self.table.name}: a run published at the same time and went first; what is "
                    "left to do is done by the next maintenance"
                )
            else:
                self.problems.append(
                    f"{self.table.name}: maintenance failed ({gist(error)}); all days hold what "
                    "they held. Run it again"
                )
        after = Files.of(load_log(self.url) or log, self.table)
        return Maintained(
            self.table.name,
            before,
            after,
            self.compacted,
            self.removed,
            self.notes,
            self.problems,
        )

    def _keep_up(self, before: Files, log: DeltaTable) -> None:
        changed = self._set_properties(log.metadata().configuration)
        self._compact(before)
        if not changed and not self.problems:
            self._take_away()

    def _leave(self) -> None:
        """Take all rows and files away from a table that has been retired for long enough."""
        if self._is_kept():
            return
        ledger, retired = read_ledger(self.url, self.table), self.table.retired
        days = spelled(ledger.published)
        if days and not self.dry_run:
            writer = Writer(lambda: self.spark, self.url, self.table, self.undo_days)
            if not retirement.give_up(writer, ledger):
                self.notes.append(
                    f"{self.table.name}: somebody committed at the same time and went first; the "
                    "next maintenance takes the rows of the retired table away"
                )
                return
        self.removed = retirement.remove_files(self.url, self.table, dry_run=self.dry_run)
        if days:
            self.notes.append(
                f"{self.table.name}: retired since {retired}; its days {days} are given up "
                f"{self.undo_days} day(s) after it, and the data files of all versions removed. "
                "Its log stays, so its history does; now its declaration can go"
            )

    def _set_properties(self, there: dict[str, str]) -> bool:
        """Bring the table's properties up to date; whether they were not."""
        wanted = table_properties(self.undo_days)
        if wanted.items() <= there.items():
            return False
        if not self.dry_run:
            self._sql(f"ALTER TABLE {self._target} SET TBLPROPERTIES ({in_sql(wanted)})")
        was = [f"{name} was {there.get(name, 'not set')}" for name in wanted]
        # What is gone is gone: a shell without the deployment's settings must not decide that.
        self.notes.append(
            f"{self.table.name}: replaced files are kept for {self.undo_days} days from now on "
            f"({PREFIX}UNDO_DAYS; {', '.join(was)}); the next maintenance takes older ones away"
        )
        return True

    def _compact(self, before: Files) -> None:
        days = before.scattered
        if self.dry_run or not days:
            self.compacted = days
            return
        condition = any_of(windows(days), self.table.partition)
        self._sql(f"OPTIMIZE {self._target} WHERE {condition}")
        log = load_log(self.url)
        assert log is not None
        for version in range(before.version + 1, log.version() + 1):
            if compacted := self._days_of_compaction(version):
                self.compacted = sorted({*self.compacted, *compacted})
                self._verify(version, compacted)

    def _days_of_compaction(self, version: int) -> list[date]:
        filesystem, path = open_store(self.url)
        with filesystem.open_input_stream(f"{path}/_delta_log/{version:020d}.json") as stream:
            actions = [json.loads(line) for line in stream.read().splitlines()]
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        if not any(info.get("operation") == "OPTIMIZE" for info in infos):
            return []
        files = [action[kind] for action in actions for kind in ("add", "remove") if kind in action]
        days = {(file.get("partitionValues") or {}).get(self.table.partition) for file in files}
        return sorted(date.fromisoformat(day) for day in days if day)

    def _verify(self, version: int, days: Sequence[date]) -> None:
        """See that a compaction has changed no row.

        Its days must hold what their records say. Where a record says something else, or there is
        none, they must hold what they held before.
        """
        ledger = read_ledger(self.url, self.table).as_of(version - 1)
        held = self._digests(version, days)
        unlike = [day for day in days if ledger.content(day) != held.get(day)]
        if not unlike:
            return
        held_before = self._digests(version - 1, unlike)
        changed = [day for day in unlike if held.get(day) != held_before.get(day)]
        if changed:
            self.problems.append(
                f"{self.table.name} [{', '.join(map(str, windows(changed)))}]: the compaction of "
                f"version {version} changed what these days hold. Version {version - 1} has the "
                "rows as they were and no file was taken away: launch these days with the tag "
                "backfill_assets/rewrite = true"
            )
        # Nobody vouches for days that other writers have changed; that is on record elsewhere.
        # Nor do records from before a column was added speak of what the rows hold with it.
        strange = [
            day
            for day in unlike
            if ledger.current_record(day)
            and day not in changed
            and not ledger.lacked(ledger.latest[day])
            and are_comparable(ledger.content(day), held.get(day, "0-0-0"))
        ]
        if strange:
            self.problems.append(
                f"{self.table.name} [{', '.join(map(str, windows(strange)))}]: these days hold "
                "other rows than their records say, before the compaction and after it: run "
                "backfill-assets verify"
            )

    def _digests(self, version: int, days: Sequence[date]) -> dict[date | None, str]:
        rows = rows_as_of(self.spark, self.url, self.table, version, days)
        return {day: measured.digest for day, measured in measure(rows, self.table).items()}

    def _take_away(self) -> None:
        if self._is_kept():
            return
        # First what there is to do: a VACUUM makes two commits even if there is nothing.
        old = self.spark.sql(f"VACUUM {self._target} DRY RUN").collect()
        if named := self._named_files().intersection(row["path"].rpartition("/")[2] for row in old):
            self.notes.append(
                f"{self.table.name}: no replaced file was taken away, as {FILE} names version "
                f"{self.named} and {len(named)} of them are its own. The sensor watch_days names "
                "newer versions once no day is behind: build the days that are. If nobody reads by "
                f"{FILE}, remove it"
            )
            old = []
        if old and not self.dry_run:
            self._sql(f"VACUUM {self._target}")
        # Spark keeps what it has not finished where a VACUUM does not look.
        kept_for = timedelta(days=max(self.undo_days, 1))
        filesystem, _ = open_store(self.url)
        left = abandoned(self.url, datetime.now(timezone.utc) - kept_for)
        for folder in left if not self.dry_run else ():
            filesystem.delete_dir(folder)
        self.removed = len(old) + len(left)

    def _named_files(self) -> set[str]:
        """The names of the data files of the version that readers of all tables are told."""
        log = load_log(self.url)
        # A table that was made anew begins again with its versions.
        if self.named is None or log is None or self.named > log.version():
            return set()
        actions = pa.table(delta_log(self.url, self.named).load().get_add_actions())
        return {unquote(path).rpartition("/")[2] for path in actions["path"].to_pylist()}

    def _is_kept(self) -> bool:
        """Whether targets may need files of the table."""
        if self.kept_for:
            self.notes.append(
                f"{self.table.name}: no file was taken away, as the target(s) "
                f"{', '.join(self.kept_for)} may still need it; switch over or drop them first"
            )
        return bool(self.kept_for)

    @property
    def _target(self) -> str:
        return f"delta.`{self.url}`"

    def _sql(self, statement: str) -> None:
        self.spark.sql(statement).collect()


class MaintenanceConfig(dg.Config):
    """What to maintain."""

    tables: list[str] = Field([], description="Only these tables; all of them if empty.")
    dry_run: bool = Field(False, description="Tell what would be done, and do nothing.")


def job(settings: Settings) -> dg.JobDefinition:
    """Maintenance as a job, for the UI and for a schedule of the deployment's own."""

    @dg.op(name="maintain_tables", required_resource_keys={"engine"}, out=dg.Out(dg.Nothing))
    def maintain_tables(context: dg.OpExecutionContext, config: MaintenanceConfig) -> None:
        spark = context.resources.engine.spark_session
        found = []
        for one in maintain(spark, settings, config.tables, dry_run=config.dry_run):
            context.log.info(", ".join(cells(one)))
            found.append(one)
        said = sentences(found, dry_run=config.dry_run)
        metadata = {
            "maintenance": dg.MetadataValue.md(as_markdown(found)),
            "notes": dg.MetadataValue.md(
                "\n".join(f"- {markdown(text)}" for text in said) or "none"
            ),
        }
        if problems := [text for one in found for text in one.problems]:
            raise dg.Failure("; ".join(problems), metadata, allow_retries=False)
        context.add_output_metadata(metadata)

    @dg.job(
        name="maintenance",
        description="Puts small files together and takes those away that are past the time to "
        "undo. No row changes; the digests of the days are compared.",
    )
    def maintenance() -> None:
        maintain_tables()

    return maintenance
