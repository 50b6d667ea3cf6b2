"""The history of a table or of one day: all commits, from the log alone."""

from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import date
from typing import Any

from backfill_assets.calendar.partitions import DAY, Window, to_windows
from backfill_assets.delta import records
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.deployment import Deployment
from backfill_assets.report import ReportTable
from backfill_assets.tables.code_version import Code

_MOST_SPANS = 5


def format_history(deployment: Deployment, name: str, days: Window | None = None) -> ReportTable:
    """The commits of a table that cover one of the days, oldest first.

    A day whose rows were already those to be written is *unchanged*: the commit covers the day, but
    its files are older. Maintenance (`OPTIMIZE`) changes no row and is left out.

    Raises:
        ValueError: there is no such commit.
    """
    kinds = _undone_kinds(deployment, name)
    rows = (
        (str(commit.version), _format_time(commit), *_format_cells(commit, kinds))
        for commit in _select_commits(deployment, name, days)
    )
    headings = ("version", "at (UTC)", "days", "run", "backfill", "by")
    return ReportTable.from_rows(headings, rows, numbers=["version"])


def format_day_history(deployment: Deployment, name: str, day: date) -> ReportTable:
    """Each commit that covers a day: what it did, when, by whom, why, and with which code.

    Raises:
        ValueError: there is no such commit.
    """
    kinds = _undone_kinds(deployment, name)
    rows: list[tuple[str, str]] = []
    for commit in _select_commits(deployment, name, Window(day, day + DAY)):
        rows += [*_format_day(commit, day, kinds), ("", "")]
    headings = ("what", "text")
    return ReportTable.from_rows(headings, rows, sentences=["text"], show_headings=False)


def commit_values(
    deployment: Deployment, name: str, days: Window | None = None
) -> list[dict[str, Any]]:
    """The commits of a table, oldest first, as JSON; of each commit only the given days.

    Raises:
        ValueError: there is no such commit.
    """
    kinds = _undone_kinds(deployment, name)
    return [
        _commit_values(commit, days, kinds) for commit in _select_commits(deployment, name, days)
    ]


def _undone_kinds(deployment: Deployment, name: str) -> dict[str, str]:
    """By id that is not that of a backfill, what it is: a kind of switch-over, or `target`."""
    ledger = read_ledger(deployment.table_url(name), deployment.tables[name])
    kinds: dict[str, str] = {}
    for record in ledger.records:
        if record.backfill_id and (kind := record.details.kind):
            kinds |= {record.backfill_id: kind, _target_name(record): "target"}
    return kinds


def _target_name(record: records.CommitRecord) -> str:
    return (record.backfill_id or "").rpartition("-")[0]


def _describe_kind(commit: records.CommitRecord, kinds: Mapping[str, str]) -> str:
    """The kind of a commit and what it refers to; empty if a run computed its days."""
    if undone := commit.details.undoes:
        return " ".join(filter(None, ["undo of", kinds.get(undone, ""), undone]))
    if commit.details.kind in (records.SWITCH_OVER, records.CANARY):
        return f"{commit.details.kind} of target {_target_name(commit)}"
    return commit.details.kind


def _commit_values(
    commit: records.Commit,
    days: Window | None,
    kinds: Mapping[str, str],
) -> dict[str, Any]:
    """A commit as a JSON object, with those of its days that are in `days`; None means all."""
    head = {"version": commit.version, "at": commit.at.isoformat() if commit.at else None}
    covered_days = sorted(day for day in _covered_days(commit) if days is None or day in days)
    if isinstance(commit, records.ExternalCommit):
        writer = {"by": "another writer", "operation": commit.operation}
        return {**head, **writer, "days": {str(day): {"what": "changed"} for day in covered_days}}
    return {
        **head,
        "run": commit.run_id,
        "backfill": commit.backfill_id,
        "kind": _describe_kind(commit, kinds),
        "undoes": commit.details.undoes,
        "by": commit.launched_by,
        "reason": commit.reason,
        "code": commit.code_version,
        "package": commit.package,
        "git_commit": commit.git_commit,
        "git_dirty": commit.git_dirty,
        "configuration": commit.config_digest,
        "inputs": dict(commit.inputs),
        "days": {str(day): _day_values(commit, day) for day in covered_days},
    }


def _day_values(commit: records.CommitRecord, day: date) -> dict[str, Any]:
    if day in commit.revoked_days:
        return {"what": "taken back"}
    published = commit.days[day]
    what = "written" if day in commit.rewritten_days else "unchanged"
    figures = {"rows": published.rows, "digest": published.digest, "verdict": published.verdict}
    return {"what": what, **figures, "reason": commit.reason_for_day(day)}


def _select_commits(deployment: Deployment, name: str, days: Window | None) -> list[records.Commit]:
    """The commits that cover any of the days, external ones included; `days` None means all.

    Raises:
        ValueError: there is no such commit.
    """
    ledger = read_ledger(deployment.table_url(name), deployment.tables[name])
    commits = [
        commit
        for commit in ledger.all_commits
        if days is None or days.contains_any(_covered_days(commit))
    ]
    if not commits:
        what = name if days is None else f"{name}[{days}]"
        raise ValueError(f"{what} has never been published at {deployment.table_url(name)}")
    return commits


def _covered_days(commit: records.Commit) -> Set[date]:
    if isinstance(commit, records.ExternalCommit):
        return commit.days
    return commit.days.keys() | commit.revoked_days


def _format_time(commit: records.Commit) -> str:
    return f"{commit.at:%Y-%m-%d %H:%M}" if commit.at else ""


def _format_cells(commit: records.Commit, kinds: Mapping[str, str]) -> list[str]:
    """The cells of a commit's row after its version and time: days, run, backfill, writer."""
    if isinstance(commit, records.ExternalCommit):
        return [
            format_windows(to_windows(commit.days)),
            "",
            "",
            f"another writer: {commit.operation}",
        ]
    written = commit.rewritten_days - commit.revoked_days
    days = [format_windows(to_windows(written))] if written else []
    for what, others in (
        ("unchanged", commit.days.keys() - written),
        ("taken back", commit.revoked_days),
    ):
        if others:
            lines = format_windows(to_windows(others)).splitlines()
            days.append("\n".join(f"{line} {what}" for line in lines))
    writer = commit.launched_by
    if kind := _describe_kind(commit, kinds):
        writer = f"{kind} by {writer}"
    return ["\n".join(days), commit.run_id[:8], (commit.backfill_id or "none")[:17], writer]


def _format_day(
    commit: records.Commit, day: date, kinds: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the label and text of each row about a day in a commit; one row if it is external."""
    head = f"version {commit.version}"
    if isinstance(commit, records.ExternalCommit):
        yield head, f"{_format_time(commit)} UTC, changed by another writer: {commit.operation}"
        return
    yield head, f"{_format_time(commit)} UTC, {_describe_outcome(commit, day, kinds)}"
    if commit.details.kind == records.RETIREMENT:
        yield "by", f"{commit.launched_by}: {commit.reason}"
        return
    if published := commit.days.get(day):
        yield "rows", f"{published.rows:,}, digest {published.digest}, verdict {published.verdict}"
        for check, (severity, text) in published.findings.items():
            yield severity, f"{check}: {text}"
    if reason := commit.reason_for_day(day):
        yield "because", reason
    yield "run", f"{commit.run_id}, backfill {commit.backfill_id or 'none'}"
    yield "launched by", commit.launched_by + (f": {commit.reason}" if commit.reason else "")
    day_record = commit.for_day(day)
    yield "code", str(Code(day_record.code_version, day_record.git_commit, day_record.git_dirty))
    if day_record.package:
        yield "release", day_record.package
    yield "configuration", commit.made_under(day) if day in commit.days else commit.config_digest
    inputs = ", ".join(f"{name} version {version}" for name, version in day_record.inputs.items())
    yield "made from", inputs or "the landing"


def _describe_outcome(commit: records.CommitRecord, day: date, kinds: Mapping[str, str]) -> str:
    """The outcome of a commit for a day, as the text after the time in `_format_day`."""
    if undone := commit.details.undoes:
        if day in commit.revoked_days:
            return f"taken back: before {undone} it had never been published"
        return f"put back to what it was before {undone}"
    if commit.details.kind == records.RETIREMENT:
        return "given up, as the table is retired"
    if commit.details.kind == records.ACCEPTED_CODE:
        return "accepted as made by the present code; its rows are as they were"
    if kind := _describe_kind(commit, kinds):
        return f"published by the {kind}"
    return "written" if day in commit.rewritten_days else "computed, and unchanged"


def format_windows(ranges: Sequence[Window]) -> str:
    """One line for each range of days without gaps; of many ranges, only the last ones."""
    more = len(ranges) - _MOST_SPANS
    head = [f"{more} range(s) before"] if more > 0 else []
    return "\n".join([*head, *map(str, ranges[-_MOST_SPANS:])]) or "none"
