"""What an undo has to reach: worked out from ledgers alone."""

from __future__ import annotations

import msgspec
import pytest

from backfill_assets.backfills.dependents import undo_scopes
from backfill_assets.calendar.partitions import to_ranges
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.records import CommitRecord, ExternalCommit
from backfill_assets.orders.facts import CORRECTIONS, FACT
from backfill_assets.orders.tables import LATE, RAW, STAGED, TABLES
from backfill_assets.staleness.fingerprints import input_digests
from backfill_assets_tests.invented_logs import days, ledger, ledgers, record
from backfill_assets_tests.pipeline import START, day

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

    def load(self, version, of, *, run, touches=None, withdrawn=(), as_of=None):
        said = {"event_days": days(*(of if touches is None else touches)), "log_days": days(*of)}
        self._add(RAW.name, version, of, {}, run, withdrawn=withdrawn, as_of=as_of, **said)

    def make(self, table, version, of, *, run, inputs, **more):
        """A commit of days; some of them may have had the `same` rows already."""
        self._add(table.name, version, of, inputs, run, **more)

    def external(self, table, version, of):
        self.commits[table.name].append(ExternalCommit(version, "DELETE", days(*of)))

    def _add(self, name, version, of, inputs, run, *, withdrawn=(), as_of=None, same=(), **more):
        code = more.pop("code", "code")
        one = record(version, days(*of), inputs=inputs, run=run, **more)
        fingerprints = (
            input_digests(TABLES[name].inputs(POLICY), self.now(), one.days) if inputs else {}
        )
        held = self.now()[name]
        audit = {
            d: msgspec.structs.replace(
                said,
                fingerprint=fingerprints.get(d, ""),
                digest=held.latest[d].days[d].digest if d in days(*same) else said.digest,
            )
            for d, said in one.days.items()
        }
        put_back = {} if as_of is None else {str(as_of): to_ranges(days(*of, *withdrawn))}
        self.commits[name].append(
            msgspec.structs.replace(
                one,
                days=audit,
                details=msgspec.structs.replace(one.details, as_of=put_back),
                since=version - 1,
                written=frozenset(one.days.keys() - days(*same)),
                withdrawn=days(*withdrawn),
                code_version=code,
            )
        )

    def extents(self, name, only=None):
        return undo_scopes(self.now(), name, POLICY, only)

    def undo(self, version, of=(), *, to, withdrawn=(), **more):
        self.load(version, of, run=f"undo{version:04d}", withdrawn=withdrawn, as_of=to, **more)


def spelled(found):
    """By table, the days to put back, and the days to speak of."""
    return {
        name: ({d.day for d in extent.changes}, {d.day for d in extent.unchanged})
        for name, extent in found.items()
        if extent.changes or extent.unchanged
    }


def problems(found):
    return [text for extent in found.values() for text in extent.problems]


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
    found = tables.extents("nightrun")
    assert spelled(found) == {
        RAW.name: ({4}, set()),
        STAGED.name: ({3, 4}, set()),
        FACT.name: ({4}, {3}),
    }
    assert problems(found) == []
    changes = found[STAGED.name].changes
    assert (changes[day(3)].before, changes[day(3)].previous.version) == (1, 1)
    assert changes[day(4)].previous is None


def test_what_was_not_made_of_it_stays(tables):
    """A day that a later run computed from the newer log, and that the load did not touch."""
    tables.make(STAGED, 3, [1], run="byperson", inputs={RAW.name: 2})
    assert 1 not in spelled(tables.extents("nightrun"))[STAGED.name][0]
    assert problems(tables.extents("nightrun")) == []


def test_days_in_another_order_of_loads(tables):
    """The earlier load is undone; what the later one alone has touched is not in its way."""
    tables.load(3, [5], run="nextnight", touches=[5])
    tables.make(STAGED, 3, [5], run="followe2", inputs={RAW.name: 3})
    assert problems(tables.extents("nightrun")) == []
    assert spelled(tables.extents("nightrun"))[STAGED.name][0] == {3, 4}


def test_what_was_made_of_others_as_well_is_refused(tables):
    tables.load(3, [5], run="nextnight", touches=[4, 5])
    tables.make(STAGED, 3, [4, 5], run="followe2", inputs={RAW.name: 3})
    (said,) = problems(tables.extents("nightrun"))
    assert said == (
        "stg_orders [2024-01-04] was made of what is to be undone, and of version 3 of raw_orders "
        "by run nextnigh as well; undo that first, or leave out the days that these are made of"
    )
    # What the advice says leads there.
    found = tables.extents("nextnight")
    assert problems(found) == []
    assert spelled(found) == {RAW.name: ({5}, set()), STAGED.name: ({4, 5}, set())}


@pytest.mark.parametrize("how", ["by other code", "by another writer"])
def test_what_was_written_since_is_refused(tables, how):
    if how == "by other code":
        more = {"run": "deployed", "inputs": {RAW.name: 2}, "code": "other"}
        tables.make(STAGED, 3, [3], **more)
        who = "run deployed"
    else:
        tables.external(STAGED, 3, [3])
        who = "another writer (DELETE)"
    (said,) = problems(tables.extents("nightrun"))
    assert said == (
        f"stg_orders [2024-01-03] has been written since, by {who} in version 3; undo that first, "
        "or leave these days out"
    )


def test_some_days_of_a_load(tables):
    tables.load(3, [5, 6], run="nextnight", touches=[5, 6])
    tables.make(STAGED, 3, [5, 6], run="followe2", inputs={RAW.name: 3})
    assert spelled(tables.extents("nextnight", days(5))) == {
        RAW.name: ({5}, set()),
        STAGED.name: ({5}, set()),
    }


def test_one_that_was_broken_off_goes_on(tables):
    """The log has been put back, and the process was lost."""
    tables.undo(3, to=1, withdrawn=[4], touches=[3, 4])
    found = tables.extents("nightrun")
    assert spelled(found) == {STAGED.name: ({3, 4}, set()), FACT.name: ({4}, {3})}
    assert found[RAW.name].done == {day(4)}
    # The sensor has made one of the days anew meanwhile, of what was put back.
    tables.make(STAGED, 3, [3], run="followe2", inputs={RAW.name: 3})
    found = tables.extents("nightrun")
    assert problems(found) == []
    assert spelled(found)[STAGED.name] == ({4}, set())


def test_loaded_again_after_an_undo(tables):
    tables.undo(3, to=1, withdrawn=[4], touches=[3, 4])
    again = {"run": "undo0003", "as_of": 1}
    tables.make(STAGED, 3, [3], withdrawn=[4], inputs={RAW.name: 3}, **again)
    tables.make(FACT, 3, [3], withdrawn=[4], same=[3], inputs={STAGED.name: 3}, **again)
    assert spelled(tables.extents("nightrun")) == {}
    tables.load(4, [4], run="thirdrun", touches=[3, 4])
    tables.make(STAGED, 4, [3, 4], run="followe2", inputs={RAW.name: 4})
    assert spelled(tables.extents("nightrun")) == {}
    found = tables.extents("thirdrun")
    assert spelled(found) == {RAW.name: ({4}, set()), STAGED.name: ({3, 4}, set())}
    assert problems(found) == []


def test_a_backfill_of_one_layer_reaches_what_follows_it(tables):
    tables.make(STAGED, 3, [2], run="restaged", inputs={RAW.name: 2})
    tables.make(FACT, 3, [2], run="followe2", inputs={STAGED.name: 3})
    tables.make(CORRECTIONS, 1, [2], run="followe2", inputs={FACT.name: 3})
    assert spelled(tables.extents("restaged")) == {
        STAGED.name: ({2}, set()),
        FACT.name: ({2}, set()),
        CORRECTIONS.name: ({2}, set()),
    }
    # And one of the facts does not reach up.
    assert spelled(tables.extents("followe2")).keys() == {FACT.name, CORRECTIONS.name}


def test_tables_by_log_day(tables):
    tables.make(LATE, 1, [4], run="nightrun", inputs={RAW.name: 2})
    tables.load(3, [4], run="wrongone", touches=[4])
    tables.make(LATE, 2, [4], run="followe2", inputs={RAW.name: 3}, same=[4])
    assert spelled(tables.extents("wrongone")) == {RAW.name: ({4}, set()), LATE.name: (set(), {4})}
