"""What an undo has to reach: worked out from ledgers alone."""

from __future__ import annotations

import msgspec
import pytest

from backfill_assets.backfills.downstream import undo_scopes
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import to_ranges
from backfill_assets.delta.records import CommitRecord, ExternalCommit
from backfill_assets.orders.tables import CORRECTIONS, FACT, LATE, RAW, STAGED, TABLES
from backfill_assets.staleness.input_digest import input_digests
from backfill_assets_tests.helpers.invented_logs import days, ledger, ledgers, record
from backfill_assets_tests.helpers.pipeline import START, day

POLICY = Policy(START, None, window_days=2, lag_days=1, corrects=True, only_touched=True)


class Tables:
    """Ledgers of tables that grow commit by commit, in the versions that the test says."""

    def __init__(self):
        self.commits: dict[str, list[CommitRecord | ExternalCommit]] = {name: [] for name in TABLES}

    def now(self):
        return ledgers(
            *[
                ledger(
                    TABLES[name],
                    *[c for c in commits if isinstance(c, CommitRecord)],
                    external=[c for c in commits if isinstance(c, ExternalCommit)],
                )
                for name, commits in self.commits.items()
            ]
        )

    def load(self, version, numbers, *, run, touches=None, withdrawn=(), as_of=None):
        recorded_days = {
            "event_days": days(*(numbers if touches is None else touches)),
            "log_days": days(*numbers),
        }
        self._add(
            RAW.name, version, numbers, {}, run, withdrawn=withdrawn, as_of=as_of, **recorded_days
        )

    def make(self, table, version, numbers, *, run, inputs, **more):
        """A commit of days; some of them may have had the `same` rows already."""
        self._add(table.name, version, numbers, inputs, run, **more)

    def external(self, table, version, numbers):
        self.commits[table.name].append(ExternalCommit(version, "DELETE", days(*numbers)))

    def _add(
        self, name, version, numbers, inputs, run, *, withdrawn=(), as_of=None, same=(), **more
    ):
        code = more.pop("code", "code")
        commit_record = record(version, days(*numbers), inputs=inputs, run=run, **more)
        fingerprints = (
            input_digests(TABLES[name].inputs(POLICY), self.now(), commit_record.days)
            if inputs
            else {}
        )
        existing = self.now()[name]
        audit = {
            d: msgspec.structs.replace(
                published_day,
                fingerprint=fingerprints.get(d, ""),
                digest=existing.latest[d].days[d].digest
                if d in days(*same)
                else published_day.digest,
            )
            for d, published_day in commit_record.days.items()
        }
        put_back = {} if as_of is None else {str(as_of): to_ranges(days(*numbers, *withdrawn))}
        self.commits[name].append(
            msgspec.structs.replace(
                commit_record,
                days=audit,
                details=msgspec.structs.replace(commit_record.details, as_of=put_back),
                since=version - 1,
                written_days=frozenset(commit_record.days.keys() - days(*same)),
                revoked_days=days(*withdrawn),
                code_version=code,
            )
        )

    def extents(self, name, only=None):
        return undo_scopes(self.now(), name, POLICY, only)

    def undo(self, version, numbers=(), *, to, withdrawn=(), **more):
        self.load(version, numbers, run=f"undo{version:04d}", withdrawn=withdrawn, as_of=to, **more)


def days_by_table(scopes):
    """By table, the days to put back, and the days to speak of."""
    return {
        name: ({d.day for d in extent.changes}, {d.day for d in extent.unchanged})
        for name, extent in scopes.items()
        if extent.changes or extent.unchanged
    }


def list_problems(scopes):
    return [text for extent in scopes.values() for text in extent.problems]


@pytest.fixture
def tables():
    """Three days by other runs; then a run loads the fourth, and the sensor's runs follow it."""
    tables = Tables()
    tables.load(1, [1, 2, 3], run="firstrun")
    tables.make(STAGED, 1, [1, 2, 3], run="firstone", inputs={RAW.name: 1})
    tables.make(FACT, 1, [1, 2, 3], run="firstone", inputs={STAGED.name: 1})
    tables.load(2, [4], run="nightrun", touches=[3, 4])
    tables.make(STAGED, 2, [3, 4], run="followed", inputs={RAW.name: 2})
    tables.make(FACT, 2, [3, 4], run="followed", inputs={STAGED.name: 2}, same=[3])
    return tables


def test_what_was_made_of_a_load_goes_with_it(tables):
    scopes = tables.extents("nightrun")
    assert days_by_table(scopes) == {
        RAW.name: ({4}, set()),
        STAGED.name: ({3, 4}, set()),
        FACT.name: ({4}, {3}),
    }
    assert list_problems(scopes) == []
    changes = scopes[STAGED.name].changes
    assert (changes[day(3)].version_before, changes[day(3)].previous_commit.version) == (1, 1)
    assert changes[day(4)].previous_commit is None


def test_what_was_not_made_of_it_stays(tables):
    """A day that a later run computed from the newer log, and that the load did not touch."""
    tables.make(STAGED, 3, [1], run="byperson", inputs={RAW.name: 2})
    assert 1 not in days_by_table(tables.extents("nightrun"))[STAGED.name][0]
    assert list_problems(tables.extents("nightrun")) == []


def test_days_in_another_order_of_loads(tables):
    """The earlier load is undone; what the later one alone has touched is not in its way."""
    tables.load(3, [5], run="nextnight", touches=[5])
    tables.make(STAGED, 3, [5], run="followe2", inputs={RAW.name: 3})
    assert list_problems(tables.extents("nightrun")) == []
    assert days_by_table(tables.extents("nightrun"))[STAGED.name][0] == {3, 4}


def test_what_was_made_of_others_as_well_is_refused(tables):
    tables.load(3, [5], run="nextnight", touches=[4, 5])
    tables.make(STAGED, 3, [4, 5], run="followe2", inputs={RAW.name: 3})
    (problem,) = list_problems(tables.extents("nightrun"))
    assert problem == (
        "stg_orders [2024-01-04] was made of what is to be undone, and of version 3 of raw_orders "
        "by run nextnigh as well; undo that first, or leave out the days that these are made of"
    )
    # What the advice says leads there.
    scopes = tables.extents("nextnight")
    assert list_problems(scopes) == []
    assert days_by_table(scopes) == {RAW.name: ({5}, set()), STAGED.name: ({4, 5}, set())}


@pytest.mark.parametrize("how", ["by other code", "by another writer"])
def test_what_was_written_since_is_refused(tables, how):
    if how == "by other code":
        more = {"run": "deployed", "inputs": {RAW.name: 2}, "code": "other"}
        tables.make(STAGED, 3, [3], **more)
        who = "run deployed"
    else:
        tables.external(STAGED, 3, [3])
        who = "another writer (DELETE)"
    (problem,) = list_problems(tables.extents("nightrun"))
    assert problem == (
        f"stg_orders [2024-01-03] has been written since, by {who} in version 3; undo that first, "
        "or leave these days out"
    )


def test_some_days_of_a_load(tables):
    tables.load(3, [5, 6], run="nextnight", touches=[5, 6])
    tables.make(STAGED, 3, [5, 6], run="followe2", inputs={RAW.name: 3})
    assert days_by_table(tables.extents("nextnight", days(5))) == {
        RAW.name: ({5}, set()),
        STAGED.name: ({5}, set()),
    }


def test_one_that_was_broken_off_goes_on(tables):
    """The log has been put back, and the process was lost."""
    tables.undo(3, to=1, withdrawn=[4], touches=[3, 4])
    scopes = tables.extents("nightrun")
    assert days_by_table(scopes) == {STAGED.name: ({3, 4}, set()), FACT.name: ({4}, {3})}
    assert scopes[RAW.name].already_reverted == {day(4)}
    # The sensor has made one of the days anew meanwhile, of what was put back.
    tables.make(STAGED, 3, [3], run="followe2", inputs={RAW.name: 3})
    scopes = tables.extents("nightrun")
    assert list_problems(scopes) == []
    assert days_by_table(scopes)[STAGED.name] == ({4}, set())


def test_loaded_again_after_an_undo(tables):
    tables.undo(3, to=1, withdrawn=[4], touches=[3, 4])
    undo_options = {"run": "undo0003", "as_of": 1}
    tables.make(STAGED, 3, [3], withdrawn=[4], inputs={RAW.name: 3}, **undo_options)
    tables.make(FACT, 3, [3], withdrawn=[4], same=[3], inputs={STAGED.name: 3}, **undo_options)
    assert days_by_table(tables.extents("nightrun")) == {}
    tables.load(4, [4], run="thirdrun", touches=[3, 4])
    tables.make(STAGED, 4, [3, 4], run="followe2", inputs={RAW.name: 4})
    assert days_by_table(tables.extents("nightrun")) == {}
    scopes = tables.extents("thirdrun")
    assert days_by_table(scopes) == {RAW.name: ({4}, set()), STAGED.name: ({3, 4}, set())}
    assert list_problems(scopes) == []


def test_a_backfill_of_one_layer_reaches_what_follows_it(tables):
    tables.make(STAGED, 3, [2], run="restaged", inputs={RAW.name: 2})
    tables.make(FACT, 3, [2], run="followe2", inputs={STAGED.name: 3})
    tables.make(CORRECTIONS, 1, [2], run="followe2", inputs={FACT.name: 3})
    assert days_by_table(tables.extents("restaged")) == {
        STAGED.name: ({2}, set()),
        FACT.name: ({2}, set()),
        CORRECTIONS.name: ({2}, set()),
    }
    # And one of the facts does not reach up.
    assert days_by_table(tables.extents("followe2")).keys() == {FACT.name, CORRECTIONS.name}


def test_tables_by_log_day(tables):
    tables.make(LATE, 1, [4], run="nightrun", inputs={RAW.name: 2})
    tables.load(3, [4], run="wrongone", touches=[4])
    tables.make(LATE, 2, [4], run="followe2", inputs={RAW.name: 3}, same=[4])
    assert days_by_table(tables.extents("wrongone")) == {
        RAW.name: ({4}, set()),
        LATE.name: (set(), {4}),
    }
