"""What an undo has to reach: worked out from ledgers alone."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from backfill_assets.backfills import undo as undo_module
from backfill_assets.backfills.changes import DayChange
from backfill_assets.backfills.downstream import UndoScope, undo_scopes
from backfill_assets.backfills.undo import UndoRefusedError
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import to_ranges
from backfill_assets.delta.commits import PublishError
from backfill_assets.delta.consistent_versions import versions_that_belong_together
from backfill_assets.delta.data_files import OldFiles
from backfill_assets.delta.records import (
    ACCEPTED_CODE,
    Commit,
    CommitRecord,
    ExternalCommit,
    Provenance,
)
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import CORRECTIONS, FACT, LATE, RAW, STAGED, TABLES
from backfill_assets.settings import load_settings
from backfill_assets.shadow import switch
from backfill_assets.staleness.snapshot import input_digests
from backfill_assets.staleness.stale import StaleDays, StaleReason
from backfill_assets_tests.helpers.invented_logs import (
    days,
    ledger,
    ledgers,
    record,
    snapshot_ledgers,
)
from backfill_assets_tests.helpers.invented_runs import InventedRuns
from backfill_assets_tests.helpers.pipeline import START, day
from backfill_assets_tests.planned_tables import after_balance, balance

POLICY = Policy(START, None, window_days=2, lag_days=1, corrects=True, only_touched=True)


class Tables:
    """Ledgers of tables that grow commit by commit, in the versions that the test says."""

    def __init__(self):
        self.commits: dict[str, list[Commit]] = {name: [] for name in TABLES}

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
        """A commit of days; some may have had the `same` rows, or have `own_inputs`."""
        self._add(table.name, version, numbers, inputs, run, **more)

    def external(self, table, version, numbers):
        self.commits[table.name].append(ExternalCommit(version, "DELETE", days(*numbers)))

    def _add(
        self, name, version, numbers, inputs, run, *, withdrawn=(), as_of=None, same=(), **more
    ):
        code, own_inputs = more.pop("code", "code"), more.pop("own_inputs", None)
        commit_record = record(version, days(*numbers), inputs=inputs, run=run, **more)
        digests = (
            input_digests(TABLES[name].inputs(POLICY), self.now(), commit_record.days)
            if inputs
            else {}
        )
        existing = self.now()[name]
        audit = {
            d: msgspec.structs.replace(
                published_day,
                input_digest=digests.get(d, ""),
                digest=existing.latest[d].days[d].digest
                if d in days(*same)
                else published_day.digest,
                provenance=own_inputs and Provenance(code, inputs=own_inputs),
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
        return undo_scopes(snapshot_ledgers(self.now(), POLICY), name, only)

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
    # A later run that finds the rows as they are to be changes nothing of it.
    tables.make(STAGED, 4, [4], run="samerows", inputs={RAW.name: 3}, same=[4])
    assert list_problems(tables.extents("nightrun")) == [problem]


def test_a_day_that_was_switched_over_was_made_of_the_inputs_of_its_rows(tables):
    """Its commit names newer inputs: its rows are those of a shadow target."""
    tables.load(3, [5], run="nextnight", touches=[4, 5])
    own_inputs = {RAW.name: 2}
    tables.make(STAGED, 3, [4], run="switched", inputs={RAW.name: 3}, own_inputs=own_inputs)
    assert list_problems(tables.extents("nightrun")) == []
    assert days_by_table(tables.extents("nightrun"))[STAGED.name] == ({3, 4}, set())
    assert days_by_table(tables.extents("nextnight")) == {RAW.name: ({5}, set())}


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


@pytest.mark.parametrize("numbers", [[4], []], ids=["of the same log day", "of another log day"])
@pytest.mark.parametrize("code", ["code", "other"])
def test_a_killed_undo_whose_days_were_built_again_is_in_nobodys_way(tables, numbers, code):
    """Before them a later load, of which only the log was put back, had a part in the same day."""
    loaded, withdrawn = (numbers, []) if numbers else ([5], [5])
    tables.load(3, loaded, run="laterrun", touches=[4])
    tables.make(STAGED, 3, [4], run="followe2", inputs={RAW.name: 3}, code=code)
    tables.undo(4, numbers, to=2, withdrawn=withdrawn, touches=[4])
    tables.make(STAGED, 4, [4], run="followe3", inputs={RAW.name: 4}, code=code)
    assert days_by_table(tables.extents("laterrun")) == {}
    scopes = tables.extents("nightrun")
    assert days_by_table(scopes)[STAGED.name] == ({3, 4}, set())
    problem = (
        "stg_orders [2024-01-04] has been written since, by run followe3 in version 4; undo that "
        "first, or leave these days out"
    )
    assert list_problems(scopes) == ([] if code == "code" else [problem])


class Undo:
    """The undo of `nightrun` by the job, each of whose tables can be refused or killed instead."""

    def __init__(self, tables, deployment):
        self.tables, self.deployment = tables, deployment
        options = {"run": "undo0003", "as_of": 1, "withdrawn": [4]}
        self.steps = [
            lambda: tables.undo(3, to=1, withdrawn=[4], touches=[3, 4]),
            lambda: tables.make(STAGED, 3, [3], inputs={RAW.name: 3}, **options),
            lambda: tables.make(FACT, 3, [3], same=[3], inputs={STAGED.name: 3}, **options),
        ]

    def run(self, steps, error=None):
        """The next tables, and then the error."""

        def put_back(*_):
            for _ in range(steps):
                self.steps.pop(0)()
                yield RAW, []
            if error:
                raise error

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(switch, "undo_backfill", put_back)
            undo = switch.undo_backfill_or_switch(
                None, self.deployment, None, ["nightrun"], "undo0003", {}
            )
            with pytest.raises(type(error)) if error else nullcontext():
                list(undo)

    def kept_versions(self):
        """What a night keeps for readers, as no open day is behind its inputs."""
        switch.save_consistent_versions(self.deployment, day(9))
        versions = versions_that_belong_together(self.deployment.settings.warehouse)
        return versions[RAW.name], versions[STAGED.name]

    @property
    def marks(self):
        return [*Path(self.deployment.settings.warehouse).glob("*undo*")]


@pytest.fixture
def undo(tables, tmp_path, monkeypatch):
    """As all days behind their inputs are final, none is open."""
    deployment = Deployment(load_settings(warehouse=str(tmp_path)))
    deployment.__dict__["policy"] = POLICY
    monkeypatch.setattr(switch, "read_ledgers", lambda _: tables.now())
    monkeypatch.setattr(switch, "find_stale_days", lambda *_: StaleDays())
    return Undo(tables, deployment)


@pytest.mark.parametrize("killed_after", [1, 2])
def test_readers_get_no_versions_of_an_undo_that_was_killed_until_it_is_finished(
    undo, killed_after
):
    assert undo.kept_versions() == (2, 2)
    undo.run(killed_after, KeyboardInterrupt())
    assert undo.kept_versions() == (2, 2)
    # Asked for again, it is refused as long as somebody else works on one of its days.
    undo.run(0, UndoRefusedError("written since"))
    assert undo.kept_versions() == (2, 2)
    undo.run(3 - killed_after)
    assert undo.kept_versions() == (3, 3)
    assert not undo.marks


@pytest.mark.parametrize(
    ("behind", "kept"), [("open", 2), ("blocked", 2), ("final", 3), ("on_hold", 3)]
)
def test_readers_wait_for_days_that_scheduled_runs_build(undo, monkeypatch, behind, kept):
    assert undo.kept_versions() == (2, 2)
    undo.run(3)
    stale = StaleDays(**{behind: {FACT.name: {day(3): StaleReason({})}}})
    monkeypatch.setattr(switch, "find_stale_days", lambda *_: stale)
    assert undo.kept_versions() == (kept, kept)


def test_an_undo_that_wrote_nothing_stands_in_no_readers_way(undo):
    undo.run(0, UndoRefusedError("written since"))
    assert not undo.marks
    undo.run(0, KeyboardInterrupt())
    assert undo.marks
    undo.tables.load(3, [5], run="nextrun1")
    undo.tables.make(STAGED, 3, [5], run="followe3", inputs={RAW.name: 3})
    assert undo.kept_versions() == (3, 3)


def test_days_that_are_built_again_end_an_undo_that_was_killed(undo):
    assert undo.kept_versions() == (2, 2)
    undo.run(1, KeyboardInterrupt())
    undo.tables.make(STAGED, 3, [3, 4], run="followe2", inputs={RAW.name: 3})
    assert undo.kept_versions() == (2, 2)
    undo.tables.make(FACT, 3, [3, 4], run="followe2", inputs={STAGED.name: 3})
    assert undo.kept_versions() == (3, 3)


def test_an_undo_whose_write_fails_amid_its_commits_says_what_to_do(tables, undo, monkeypatch):
    """Staging cannot be written after the log was: the log stays, and the rest can be asked for."""

    def restore_days(table_undo):
        if table_undo.table.name == STAGED.name:
            error = PublishError("the commit failed. Launch these days again.")
            raise error from OSError("No space left on device")
        return [undo.steps.pop(0)()] if table_undo.table.name == RAW.name else []

    class Publisher:
        run_metadata = staticmethod(lambda *_: {})

    monkeypatch.setattr(undo_module, "read_ledgers", lambda _: tables.now())
    monkeypatch.setattr(
        undo_module.data_files, "find_old_files", lambda *_: OldFiles(days(), days())
    )
    monkeypatch.setattr(undo_module._TableUndo, "find_problems", lambda _: [])
    monkeypatch.setattr(undo_module._TableUndo, "restore_days", restore_days)
    day_results = undo_module.undo_backfill(
        Publisher(), undo.deployment, "nightrun", "undo0003", {}
    )
    assert next(day_results)[0].name == RAW.name
    with pytest.raises(PublishError) as failure:
        next(day_results)
    assert str(failure.value) == (
        "stg_orders was not undone and is as it was: No space left on device. Tables that were put "
        "back before it stay so; ask for the undo of nightrun again for the rest."
    )
    plan = undo_module.plan_undo(undo.deployment, "nightrun")
    assert days_by_table(plan.scopes) == {STAGED.name: ({3, 4}, set()), FACT.name: ({4}, {3})}
    assert plan.problems == []


def test_days_with_a_gap_between_them_are_undone(tables):
    """One day of the run is undone before, and one was rewritten since."""
    tables.make(STAGED, 3, [1, 2, 3, 4], run="wrongrun", inputs={RAW.name: 2})
    tables.make(STAGED, 4, [2], run="undo0004", inputs={RAW.name: 2}, as_of=2)
    tables.make(STAGED, 5, [3], run="restaged", inputs={RAW.name: 2})
    assert list_problems(tables.extents("wrongrun")) == [
        "stg_orders [2024-01-03] has been written since, by run restaged in version 5; undo that "
        "first, or leave these days out"
    ]
    rest = days(1, 2, 4)
    scopes = tables.extents("wrongrun", rest)
    assert list_problems(scopes) == []
    assert days_by_table(scopes) == {STAGED.name: ({1, 4}, set())}
    assert {change.version_before for change in scopes[STAGED.name].changes.values()} == {2}
    assert scopes[STAGED.name].already_reverted == days(2)
    tables.make(STAGED, 6, [1, 4], run="undo0006", inputs={RAW.name: 2}, as_of=2)
    assert days_by_table(tables.extents("wrongrun", rest)) == {}
    # What was rewritten is there; without it, the rest of the run is.
    tables.make(STAGED, 7, [3], run="undo0007", inputs={RAW.name: 2}, as_of=4)
    assert days_by_table(tables.extents("wrongrun")) == {STAGED.name: ({3}, set())}


def test_a_commit_by_others_between_two_of_a_backfill_comes_back(tables):
    """Neither is refused with the advice to undo the other first; newest first, all are undone."""
    tables.make(STAGED, 3, [1, 2], run="wrongrun", inputs={RAW.name: 2})
    tables.make(FACT, 3, [2], run="followe2", inputs={STAGED.name: 3})
    tables.make(STAGED, 4, [2], run="another1", inputs={RAW.name: 2})
    tables.make(FACT, 4, [2], run="followe3", inputs={STAGED.name: 4})
    tables.make(STAGED, 5, [2], run="wrongrun", inputs={RAW.name: 2})
    tables.make(FACT, 5, [2], run="followe4", inputs={STAGED.name: 5})
    problem = list_problems(tables.extents("another1"))[0]
    assert "by run wrongrun in version 5; undo that first" in problem

    def find_versions_before(name):
        scopes = tables.extents(name)
        assert list_problems(scopes) == []
        return {
            (table, d.day): change.version_before
            for table, extent in scopes.items()
            for d, change in extent.changes.items()
        }

    first, second, fact = (STAGED.name, 1), (STAGED.name, 2), (FACT.name, 2)
    assert find_versions_before("wrongrun") == {first: 2, second: 4, fact: 4}
    tables.make(STAGED, 6, [2], run="undo0006", inputs={RAW.name: 2}, as_of=4)
    # If the undo is killed here, the same request goes on.
    assert find_versions_before("wrongrun") == {first: 2, fact: 4}
    tables.make(FACT, 6, [2], run="undo0006", inputs={STAGED.name: 6}, as_of=4)
    assert find_versions_before("another1") == {second: 3, fact: 3}
    tables.make(STAGED, 7, [2], run="undo0007", inputs={RAW.name: 2}, as_of=3)
    tables.make(FACT, 7, [2], run="undo0007", inputs={STAGED.name: 7}, as_of=3)
    # The earlier commit stands again.
    assert find_versions_before("wrongrun") == {first: 2, second: 2, fact: 2}


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


def test_the_second_undo_of_a_backfill_goes_on_if_it_was_killed(tables):
    """The backfill was launched again after its first undo."""
    tables.load(3, [5], run="wrongrun", touches=[3, 5])
    tables.make(STAGED, 3, [3], run="followe2", inputs={RAW.name: 3})
    tables.undo(4, to=2, withdrawn=[5], touches=[3, 5])
    tables.make(STAGED, 4, [3], run="undo0004", inputs={RAW.name: 4}, as_of=2)
    tables.load(5, [5], run="wrongrun", touches=[3, 5])
    tables.make(STAGED, 5, [3], run="followe3", inputs={RAW.name: 5})
    assert days_by_table(tables.extents("wrongrun")) == {
        RAW.name: ({5}, set()),
        STAGED.name: ({3}, set()),
    }
    tables.undo(6, to=4, withdrawn=[5], touches=[3, 5])
    scopes = tables.extents("wrongrun")
    assert days_by_table(scopes) == {STAGED.name: ({3}, set())}
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


def test_a_scope_says_between_which_versions_a_day_changed(tables):
    first, followed = (tables.commits[STAGED.name][n] for n in (0, 1))
    assert tables.extents("nightrun")[STAGED.name] == UndoScope(
        changes={day(3): DayChange(1, 2, first, followed), day(4): DayChange(1, 2, None, followed)},
        unchanged={},
        already_reverted=set(),
        problems=[],
    )


def test_a_day_that_was_only_accepted_gets_its_old_record_back(tables):
    accepted = {"run": "accepted", "inputs": {STAGED.name: 2}, "kind": ACCEPTED_CODE}
    tables.make(FACT, 3, [1, 4], same=[1, 4], **accepted)
    assert days_by_table(tables.extents("accepted")) == {FACT.name: (set(), {1, 4})}
    # A run that finds the rows as they are to be leaves nothing to revert.
    tables.make(FACT, 4, [2], same=[2], run="samerows", inputs={STAGED.name: 2})
    assert days_by_table(tables.extents("samerows")) == {}


@pytest.mark.parametrize(("other", "kept"), [(None, {3}), (3, set()), (4, {3})])
def test_a_day_with_the_same_rows_gets_no_old_record_if_it_was_made_of_others(tables, other, kept):
    """Another run has loaded lines of that day, or of another one."""
    tables.load(3, [5], run="nextnight", touches=[3])
    if other:
        tables.load(4, [4], run="thirdrun", touches=[other])
    tables.make(STAGED, 3, [3], run="followe2", inputs={RAW.name: 4 if other else 3}, same=[3])
    expected = {RAW.name: ({5}, set()), STAGED.name: (set(), kept)}
    assert days_by_table(tables.extents("nextnight")) == {
        name: found for name, found in expected.items() if any(found)
    }


def test_what_another_writer_changed_in_an_input_is_refused(tables):
    tables.external(RAW, 3, [4])
    tables.make(STAGED, 3, [4], run="followe2", inputs={RAW.name: 3})
    assert list_problems(tables.extents("nightrun")) == [
        "raw_orders [2024-01-04] has been written since, by another writer (DELETE) in version 3; "
        "undo that first, or leave these days out",
        "stg_orders [2024-01-04] has been written since, by run followe2 in version 3; "
        "undo that first, or leave these days out",
    ]
    tables.load(4, [5], run="nextnight", touches=[3, 5])
    tables.external(RAW, 5, [3])
    tables.make(STAGED, 4, [3, 5], run="followe3", inputs={RAW.name: 5})
    assert list_problems(tables.extents("nextnight")) == [
        "stg_orders [2024-01-03] was made by run followe3 in version 4, of what is to be undone "
        "and of version 5 of raw_orders by another writer (DELETE) at once; undo run followe3 "
        "first, or leave out the days that these are made of"
    ]


def test_each_commit_of_others_is_named_with_its_days(tables):
    tables.load(3, [5], run="nextnight", touches=[3, 4, 5])
    tables.load(4, [3], run="firstlate", touches=[3])
    tables.load(5, [4], run="nextlate", touches=[4])
    tables.make(STAGED, 3, [3, 4, 5], run="followe2", inputs={RAW.name: 5})
    made = "was made by run followe2 in version 3, of what is to be undone and of version"
    advice = "undo run followe2 first, or leave out the days that these are made of"
    assert list_problems(tables.extents("nextnight")) == [
        f"stg_orders [2024-01-03] {made} 4 of raw_orders by run firstlat at once; {advice}",
        f"stg_orders [2024-01-04] {made} 5 of raw_orders by run nextlate at once; {advice}",
    ]
    # What the advice says leads there; the others name the same run, and not this one.
    assert advice in list_problems(tables.extents("firstlate"))[0]
    assert list_problems(tables.extents("followe2")) == []
    restored = {"run": "undo0004", "inputs": {RAW.name: 2}, "as_of": 2}
    tables.make(STAGED, 4, [3, 4], withdrawn=[5], **restored)
    for name, number in [("nextnight", 5), ("firstlate", 3), ("nextlate", 4)]:
        scopes = tables.extents(name)
        assert days_by_table(scopes) == {RAW.name: ({number}, set())}
        assert list_problems(scopes) == []


def test_days_that_were_made_by_other_code_meanwhile_are_refused(tables):
    tables.make(STAGED, 3, [3], run="restaged", inputs={RAW.name: 2}, code="other")
    tables.make(STAGED, 4, [4], run="reset123", inputs={RAW.name: 2}, config_digest="other")
    written = "has been written since, by run"
    assert list_problems(tables.extents("followed")) == [
        f"stg_orders [2024-01-03] {written} restaged in version 3; undo that first, or leave "
        "these days out",
        f"stg_orders [2024-01-04] {written} reset123 in version 4; undo that first, or leave "
        "these days out",
    ]


def test_days_whose_old_rows_were_made_of_what_is_undone_are_refused(tables):
    """The load of the fourth day is undone; the rows that a later run replaced are made of it."""
    tables.make(STAGED, 3, [2, 3, 4], run="restaged", inputs={RAW.name: 2})
    tables.undo(3, [], to=1, withdrawn=[4], touches=[3, 4])
    assert list_problems(tables.extents("restaged")) == [
        "stg_orders [2024-01-03...2024-01-04] was made before of what run nightrun had written to "
        "raw_orders, which run undo0003 has undone since; undo that undo first, or leave these "
        "days out"
    ]
    assert list_problems(tables.extents("restaged", days(2))) == []


def test_old_rows_whose_input_was_undone_before_the_change_come_back(tables):
    """They were there with that input, before the run and while its undo is half done."""
    tables.undo(3, to=1, withdrawn=[4], touches=[3, 4])
    tables.load(4, [4], run="loadagain", touches=[3, 4])
    tables.make(STAGED, 3, [3, 4], run="loadagain", inputs={RAW.name: 4})
    expected = {RAW.name: ({4}, set()), STAGED.name: ({3, 4}, set())}
    assert days_by_table(tables.extents("loadagain")) == expected
    assert list_problems(tables.extents("loadagain")) == []
    tables.undo(5, to=3, withdrawn=[4], touches=[3, 4])
    assert days_by_table(tables.extents("loadagain")) == {STAGED.name: ({3, 4}, set())}
    assert list_problems(tables.extents("loadagain")) == []


def test_an_undo_that_was_undone_is_not_named(tables):
    """The run has loaded twice, and between its loads another, which was undone and put back."""
    tables.load(3, [4], run="wrongrun", touches=[4])
    tables.load(4, [4], run="laterrun", touches=[3, 4])
    tables.make(STAGED, 3, [3], run="followe2", inputs={RAW.name: 4})
    tables.load(5, [5], run="wrongrun", touches=[3, 5])
    tables.make(STAGED, 4, [3], run="followe3", inputs={RAW.name: 5})
    tables.undo(6, [4], to=3, touches=[3, 4])
    tables.undo(7, [4], to=5, touches=[3, 4])
    assert list_problems(tables.extents("wrongrun")) == [
        "raw_orders [2024-01-04] has been written since, by run laterrun in version 4; undo that "
        "first, or leave these days out"
    ]


def test_a_day_that_keeps_its_rows_is_not_refused_for_what_its_old_record_was_made_of(tables):
    tables.load(3, [4], run="laterrun", touches=[3])
    tables.make(STAGED, 3, [3], run="followe2", inputs={RAW.name: 3})
    tables.load(4, [5], run="wrongrun", touches=[3, 5])
    tables.make(STAGED, 4, [3], run="followe3", inputs={RAW.name: 4}, same=[3])
    tables.undo(5, [4], to=2, touches=[3])
    scopes = tables.extents("wrongrun")
    assert days_by_table(scopes) == {RAW.name: ({5}, set()), STAGED.name: (set(), {3})}
    assert list_problems(scopes) == []


# --- a table of its own past ----------------------------------------------------------------------


@pytest.fixture
def runs() -> InventedRuns:
    """Five days of balances, each built upon the one before, and of what is made of them."""
    settings = load_settings(
        tables="backfill_assets_tests.planned_tables:TABLES", start=START, window_days=2
    )
    runs = InventedRuns(Deployment(settings))
    runs.build(STAGED, (1, 6), run="firstrun")
    runs.build(balance, (1, 5), run="firstrun")
    runs.build(after_balance, (1, 5), run="firstrun")
    return runs


def find_scopes(runs, name, only=None):
    return undo_scopes(snapshot_ledgers(runs.ledgers, runs.deployment.policy), name, only)


def test_each_day_that_was_built_upon_an_undone_one_goes_with_it(runs):
    first = runs.ledgers[balance.name].records[0]
    wrong = runs.build(balance, 2, run="wrongrun")
    followed = runs.build(balance, (3, 6), run="followed")
    runs.build(after_balance, (2, 6), run="followed")
    scopes = find_scopes(runs, "wrongrun")
    # Day 6 was published first since: it stays, and is stale once the day before is reverted.
    assert scopes[balance.name] == UndoScope(
        changes={
            day(2): DayChange(0, 1, first, wrong),
            **{day(n): DayChange(1, 2, first, followed) for n in (3, 4, 5)},
        },
        unchanged={},
        already_reverted=set(),
        problems=[],
    )
    assert days_by_table(scopes) == {
        balance.name: ({2, 3, 4, 5}, set()),
        after_balance.name: ({2, 3, 4, 5}, set()),
    }
    assert list_problems(scopes) == []


def test_a_chain_ends_where_days_were_not_built_anew(runs):
    runs.build(balance, 2, run="wrongrun")
    runs.build(balance, 4, 5, run="followed")
    assert days_by_table(find_scopes(runs, "wrongrun")) == {balance.name: ({2}, set())}
    # Days with the same rows as before are spoken of, and those upon them stay.
    runs.build(balance, 3, run="followe2", same=days(3))
    runs.build(balance, 4, run="followe3")
    assert days_by_table(find_scopes(runs, "wrongrun")) == {balance.name: ({2}, {3})}


def test_days_of_the_run_that_are_left_out_stay(runs):
    runs.build(balance, (2, 4), run="wrongrun")
    runs.build(balance, 5, run="followed")
    assert days_by_table(find_scopes(runs, "wrongrun", days(2, 4))) == {
        balance.name: ({2, 4, 5}, set())
    }


def test_a_day_that_was_taken_back_meanwhile_is_published_first_since(runs):
    runs.build(balance, revoked=days(3), run="tookback")
    runs.build(balance, 2, run="wrongrun")
    runs.build(balance, 3, 4, run="followed")
    assert days_by_table(find_scopes(runs, "wrongrun")) == {balance.name: ({2}, set())}


def test_a_day_with_other_new_input_stays(runs):
    runs.build(balance, 2, run="wrongrun")
    runs.build(STAGED, 3, run="restaged")
    runs.build(balance, (3, 4), run="followed")
    assert days_by_table(find_scopes(runs, "wrongrun")) == {balance.name: ({2}, set())}


def test_a_day_upon_one_that_was_put_back_stays(runs):
    runs.build(balance, 2, run="wrongrun")
    undone = {"as_of": {"0": [str(day(2))]}}
    runs.build(balance, 2, run="undo0002", **undone)
    runs.build(balance, 3, run="followed")
    scopes = find_scopes(runs, "wrongrun")
    assert days_by_table(scopes) == {}
    assert scopes[balance.name].already_reverted == days(2)


def test_a_day_upon_one_that_others_changed_as_well_is_refused(runs):
    runs.build(STAGED, 3, run="wrongrun")
    runs.build(balance, 2, run="another1")
    runs.build(balance, 3, run="followed")
    runs.build(balance, 4, run="followed")
    scopes = find_scopes(runs, "wrongrun")
    assert days_by_table(scopes) == {STAGED.name: ({3}, set()), balance.name: ({3, 4}, set())}
    assert list_problems(scopes) == [
        "balance [2024-01-03] was made by run followed in version 2, of what is to be undone and "
        "of version 1 of balance by run another1 at once; undo run followed first, or leave out "
        "the days that these are made of"
    ]
    # What the advice says leads there.
    assert list_problems(find_scopes(runs, "followed")) == []
    scopes = find_scopes(runs, "another1")
    assert days_by_table(scopes) == {balance.name: ({2}, set())}


@pytest.mark.parametrize("taken_back", [True, False], ids=["published anew", "built anew"])
def test_a_day_upon_one_that_another_undo_has_reverted_is_not_refused(runs, taken_back):
    """The other undo has left the day, as it had other new input or was published first since."""
    runs.build(balance, 6, run="firstrun")
    if taken_back:
        runs.build(balance, revoked=days(6), run="tookback")
    runs.build(STAGED, 6, run="olderrun")
    later = runs.build(balance, 5, run="laterrun")
    runs.build(balance, 6, run="followed")
    (problem,) = list_problems(find_scopes(runs, "olderrun"))
    assert "by run laterrun at once; undo run followed first" in problem
    assert days_by_table(find_scopes(runs, "laterrun")) == {balance.name: ({5}, set())}
    undo = {"as_of": {str(later.version - 1): [str(day(5))]}}
    undone = runs.build(balance, 5, run="undo0001", **undo)
    scopes = find_scopes(runs, "olderrun")
    assert days_by_table(scopes) == {STAGED.name: ({6}, set()), balance.name: ({6}, set())}
    assert list_problems(scopes) == []
    # If that undo is undone, the later run is named again.
    restored = {"as_of": {str(undone.version - 1): [str(day(5))]}}
    runs.build(balance, 5, run="undo0002", **restored)
    assert list_problems(find_scopes(runs, "olderrun")) == [problem]


def test_days_upon_one_of_another_writer_are_refused(runs):
    runs.build(STAGED, 3, run="wrongrun")
    runs.ledgers[balance.name] = replace(
        runs.ledgers[balance.name],
        version=1,
        external_commits=[ExternalCommit(1, "UPDATE", days(2))],
    )
    runs.build(balance, 3, run="followed")
    assert list_problems(find_scopes(runs, "wrongrun")) == [
        "balance [2024-01-03] was made by run followed in version 2, of what is to be undone and "
        "of version 1 of balance by another writer (UPDATE) at once; undo run followed first, or "
        "leave out the days that these are made of"
    ]


def test_a_day_whose_old_rows_are_upon_an_undone_day_is_refused(runs):
    runs.build(balance, 2, 3, run="wrongrun")
    runs.build(balance, 3, run="rebuilds")
    runs.build(balance, 2, run="undo0002", as_of={"0": [str(day(2))]})
    assert list_problems(find_scopes(runs, "rebuilds")) == [
        "balance [2024-01-03] was made before of what run wrongrun had written to balance, which "
        "run undo0002 has undone since; undo that undo first, or leave these days out"
    ]


def test_a_day_whose_old_rows_stood_upon_an_undone_day_comes_back(runs):
    runs.build(balance, 2, 3, run="wrongrun")
    runs.build(balance, 2, run="undo0002", as_of={"0": [str(day(2))]})
    runs.build(balance, 3, run="rebuilds")
    scopes = find_scopes(runs, "rebuilds")
    assert days_by_table(scopes) == {balance.name: ({3}, set())}
    assert list_problems(scopes) == []


def test_a_day_of_the_load_that_was_taken_back_meanwhile_goes_with_it(runs):
    """What took it back has no code of its own, from which that of the day could differ."""
    runs.build(STAGED, 6, 7, run="theload0")
    runs.build(balance, 6, run="followed")
    runs.build(balance, revoked=days(6), run="tookback")
    runs.build(balance, 6, run="followe2")
    scopes = find_scopes(runs, "theload0")
    assert days_by_table(scopes) == {STAGED.name: ({6, 7}, set()), balance.name: ({6}, set())}
    assert list_problems(scopes) == []
