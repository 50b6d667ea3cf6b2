"""Ledgers that grow by commits as runs would make them now, with nothing on disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from typing import Any

import msgspec

from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitRecord
from backfill_assets.deployment import Deployment
from backfill_assets.staleness.snapshot import input_digests
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.invented_logs import days, make_measured, record

#: What computes the tables, unless a test says otherwise.
CODE = Code("code")


class InventedRuns:
    """The ledgers of all tables of a deployment, empty at first."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.ledgers = {name: Ledger(table) for name, table in deployment.tables.items()}

    def build(
        self,
        table: Table,
        *spans: int | tuple[int, int],
        code: str = CODE.version,
        same: Iterable[date] = (),
        revoked: Iterable[date] = (),
        **more: Any,
    ) -> CommitRecord:
        """Commit days of a table, from what its inputs hold now.

        Args:
            table: the table.
            spans: the days that are published.
            code: the version of the code.
            same: those of them whose rows are the same as before.
            revoked: days that are published no more.
            more: arguments of `record`, and `numbers`, `nulls` and `input_digest` of each day.
        """
        name, published = table.name, days(*spans)
        inputs = self.deployment.graph.inputs[name]
        ledger = self.ledgers[name]
        version = 0 if ledger.version is None else ledger.version + 1
        of_day = {key: more.pop(key) for key in ("numbers", "nulls", "input_digest") if key in more}
        versions = {
            dependency.source.name: source.version
            for dependency in inputs
            if (source := self.ledgers[dependency.source.name]).version is not None
        }
        options = {
            "inputs": versions,
            "config_digest": self.deployment.config_digests[name],
            "references": dict(ledger.references),
            **more,
        }
        commit = msgspec.structs.replace(
            record(version, published, **options),
            code_version=code,
            since=version - 1,
            written_days=published.difference(same),
            revoked_days=frozenset(revoked),
        )
        # A day of a stateful table is built from the day before in the same commit.
        self._append(name, commit)
        digests = input_digests(inputs, self.ledgers, published, ledger.references)
        built = {
            d: msgspec.structs.replace(
                built_day,
                digest=ledger.latest[d].days[d].digest if d in same else built_day.digest,
                **{"input_digest": digests[d], **of_day},
            )
            for d, built_day in commit.days.items()
        }
        self.ledgers[name] = ledger
        self._append(name, msgspec.structs.replace(commit, days=built))
        return self.ledgers[name].records[-1]

    def _append(self, name: str, commit: CommitRecord) -> None:
        ledger = self.ledgers[name]
        rows = {d: built.rows for d, built in commit.days.items() if built.rows}
        self.ledgers[name] = replace(
            ledger,
            version=commit.version,
            records=[*ledger.records, commit],
            measured={**ledger.measured, **make_measured(rows)},
        )

    def build_all(self, tables: Iterable[Table], *spans: int | tuple[int, int]) -> None:
        """Commit the same days of some tables, given inputs first."""
        for table in tables:
            self.build(table, *spans)


def numbered(by_day: dict[date, Any], start: date) -> dict[int, Any]:
    """What is by day, by its number from 1."""
    return {(d - start).days + 1: value for d, value in by_day.items()}
