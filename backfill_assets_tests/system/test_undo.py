"""Undo: exactly the days of one backfill go back to what they were, or nothing is touched.

And the plan of a backfill: what it says will become of the days is what becomes of them.
"""

import os
import random
import shutil
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from decimal import Decimal

import pyarrow.parquet as pq
import pytest

from backfill_assets.assets import backfill_jobs
from backfill_assets.audit.raw_expectations import ACCEPT_TAG
from backfill_assets.backfills import undo as undoing
from backfill_assets.backfills.backfill_plan import BackfillRequest, DayOutcome
from backfill_assets.backfills.changes import changed_days, commits_of, is_commit_of
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.commits import PublishError
from backfill_assets.delta.data_files import list_data_files
from backfill_assets.delta.ledger_reader import read_ledger, read_ledgers
from backfill_assets.monitoring.incidents import Monitor
from backfill_assets.monitoring.states import DayState, day_states
from backfill_assets.orders.tables import FACT, RAW, REJECTED, STAGED
from backfill_assets.publish.publication import AuditedDays
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.shadow.switch import is_mixed
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets.staleness.unloaded import loaded_manifests
from backfill_assets_tests.helpers.invented_logs import snapshot_ledgers
from backfill_assets_tests.helpers.pipeline import (
    EVERYTHING,
    LAYERS,
    Pipeline,
    copy_loaded,
    day,
    order,
    run_undo,
)

#: A table of each layer: what is undone where it does not matter of how many tables.
CHAIN = (RAW.name, STAGED.name, FACT.name)
#: A project of these and of what goes with a load.
FEW = [RAW, REJECTED, STAGED, FACT]
FEW_NAMES = tuple(table.name for table in FEW)


def published_digests(pipeline):
    """By table and day, the digest that the ledger says; it is that of the files."""
    file_digests = pipeline.digests()
    digests = {}
    for name, ledger in read_ledgers(pipeline.deployment).items():
        assert {str(d) for d in ledger.published_days} >= file_digests.get(name, {}).keys()
        for d in ledger.latest:
            digest = ledger.current_record(d).digest
            assert digest == file_digests.get(name, {}).get(str(d), "0-0-0"), (name, d)
            digests[name, d] = digest
    return digests


def few_tables(engine, root):
    return Pipeline(engine, root, tables=f"{__name__}:FEW", window_days=1)


@pytest.fixture(scope="module")
def original(engine, spark, tmp_path_factory):
    """Four days of a few tables, published by a backfill, to be copied."""
    pipeline = few_tables(engine, tmp_path_factory.mktemp("original"))
    land_four_days(pipeline)
    pipeline.run(1, 4, FEW_NAMES, tags={"dagster/backfill": "firstone"})
    return pipeline.root


def land_four_days(pipeline):
    for n in range(1, 5):
        pipeline.land(n, [order(f"o{n}", n, f"{n}.00"), order(f"p{n}", n, "7.50", "c2")])


@pytest.fixture
def loaded(engine, original, tmp_path):
    copy_loaded(original, tmp_path)
    return few_tables(engine, tmp_path)


@pytest.fixture(scope="module")
def original_with_wrong_days(engine, original, tmp_path_factory):
    """The same days; by the backfill `wrongone`, days 2 and 3 have an order more. To be copied."""
    root = tmp_path_factory.mktemp("wrong")
    copy_loaded(original, root)
    pipeline = few_tables(engine, root)
    for n in (2, 3):
        pipeline.land(n, [order(f"x{n}", n, "50.00")], "more.jsonl")
    pipeline.run(2, 3, CHAIN, tags={"dagster/backfill": "wrongone"})
    return root


@pytest.fixture
def wrong(engine, original_with_wrong_days, tmp_path):
    copy_loaded(original_with_wrong_days, tmp_path)
    return few_tables(engine, tmp_path)


@pytest.fixture(scope="module")
def first_digests(engine, original):
    """What the first backfill has published."""
    return published_digests(few_tables(engine, original))


@pytest.fixture(scope="module")
def complete_original(engine, spark, tmp_path_factory):
    """The same days, of all tables there are, to be copied."""
    pipeline = Pipeline(engine, tmp_path_factory.mktemp("complete"))
    land_four_days(pipeline)
    pipeline.run(1, 4, EVERYTHING)
    return pipeline.root


@pytest.fixture
def complete(engine, complete_original, tmp_path):
    copy_loaded(complete_original, tmp_path)
    return Pipeline(engine, tmp_path)


@dataclass(frozen=True)
class Undone:
    """A project on which `wrongone` worked; then a night loaded something else; then the undo.

    Attributes:
        pipeline: as it ended.
        before: the digests before the backfill.
        after: those after it.
        later: those after the night.
        now: those after the undo.
        commits: of the undo, by table.
    """

    pipeline: Pipeline
    before: dict
    after: dict
    later: dict
    now: dict
    commits: dict


@pytest.fixture(scope="module")
def undone(engine, original, tmp_path_factory):
    root = tmp_path_factory.mktemp("undone")
    copy_loaded(original, root)
    pipeline = few_tables(engine, root)
    before = published_digests(pipeline)
    for n in (1, 2):
        pipeline.land(n, [order(f"x{n}", n, "99.00")], "more.jsonl")
    pipeline.run(1, 4, FEW_NAMES, tags={"dagster/backfill": "wrongone"})
    after = published_digests(pipeline)
    # Its log is not read by the days that are to be undone.
    pipeline.land(4, [order("x4", 4, "1.00")], "more.jsonl")
    pipeline.night(day(5), FEW_NAMES)
    later = published_digests(pipeline)
    versions = {name: pipeline.log(name).version() for name in FEW_NAMES}
    run_undo(pipeline, "wrongone")
    commits = {name: pipeline.log(name).version() - versions[name] for name in FEW_NAMES}
    return Undone(pipeline, before, after, later, published_digests(pipeline), commits)


def test_exactly_its_days_go_back(undone):
    before, after, later = undone.before, undone.after, undone.later
    assert {
        d for (name, d) in after if name == FACT.name and after[name, d] != before[name, d]
    } == {
        day(1),
        day(2),
    }
    # Another day, written by somebody else since, stays.
    assert later[FACT.name, day(4)] != after[FACT.name, day(4)]
    assert undone.now == {key: later[key] if key[1] == day(4) else before[key] for key in later}
    assert undone.commits == {**dict.fromkeys(CHAIN, 1), REJECTED.name: 0}
    record = read_ledger(undone.pipeline.settings.table(FACT.name), FACT).records[-1]
    assert (record.reason, record.details.undoes) == ("a drill", "wrongone")


def test_an_undo_holds(undone):
    """Neither the schedule nor the sensor does again what a person has undone."""
    pipeline = undone.pipeline
    # Nor has it to look at what the backfill had found unchanged: the undo speaks of that too.
    assert pipeline.night(day(5)) == []
    # The log says so as well: files lie there whose lines it does not have.
    monitor = Monitor(pipeline.deployment, lambda: pipeline.now)
    snapshot = monitor.read_snapshot(pipeline.instance)
    states = day_states(RAW.name, snapshot)
    assert [d for d, state in states.items() if state is DayState.ON_HOLD] == [day(1), day(2)]
    reasons = {
        (table, *sorted(days)): reason
        for table, days, reason in monitor.planner.days_for_a_person(day(5))
    }
    assert "files that still lie there" in reasons[RAW.name, day(1), day(2)]
    # Until something else lands: then the schedule loads it.
    pipeline.land(2, [order("y2", 2, "1.00")], "other.jsonl")
    assert pipeline.launch(pipeline.tick_schedule())
    assert published_digests(pipeline)[RAW.name, day(2)] != undone.now[RAW.name, day(2)]
    snapshot = monitor.read_snapshot(pipeline.instance)
    states = day_states(RAW.name, snapshot)
    assert [d for d, state in states.items() if state is DayState.ON_HOLD] == [day(1)]


def test_an_undo_can_be_undone(wrong, original, first_digests, engine):
    """It names the old files again, with the records that they had."""
    first = few_tables(engine, original)
    old_files, old_ledgers = files_of(first, 2), read_ledgers(first.deployment)
    wrong_digests = published_digests(wrong)
    plan = undoing.plan_undo(wrong.deployment, "wrongone")
    assert plan.problems == []
    changed = {key for key, content in wrong_digests.items() if content != first_digests.get(key)}
    assert {(name, d) for name, extent in plan.scopes.items() for d in extent.changes} == changed
    result = run_undo(wrong, "wrongone")
    assert published_digests(wrong) == first_digests
    put_back = undoing.days_written_by_run(wrong.deployment, result.run_id)
    assert changed <= {(name, d) for name, days in put_back.items() for d in days}
    assert files_of(wrong, 2) == old_files
    ledgers = read_ledgers(wrong.deployment)
    for name in CHAIN[1:]:
        old, record = old_ledgers[name].latest[day(2)], ledgers[name].latest[day(2)]
        assert record.version > old.version
        assert record.code_version == old.code_version, name
        # They hold again what they held: what comes later is newer than these.
        assert record.inputs.keys() == old.inputs.keys(), name
        assert record.days[day(2)].input_digest == old.days[day(2)].input_digest, name
    second_undo = run_undo(wrong, "wrongone", fails=True)
    assert "wrongone is undone already" in wrong.failure(second_undo)
    # Dagster's retry of a run that lost its process after the last commit has nothing to do.
    versions = {name: wrong.log(name).version() for name in CHAIN}
    run_undo(wrong, "wrongone", tags={"dagster/retry_number": "1"})
    assert {name: wrong.log(name).version() for name in CHAIN} == versions
    run_undo(wrong, result.run_id[:8])
    assert published_digests(wrong) == wrong_digests


def test_what_was_written_since_is_left_alone(wrong):
    wrong.land(3, [order("y3", 3, "60.00")], "right.jsonl")
    right = wrong.run(3, assets=CHAIN)
    digests = published_digests(wrong)
    versions = {name: wrong.log(name).version() for name in CHAIN}
    problems = undoing.plan_undo(wrong.deployment, "wrongone").problems
    refused = wrong.failure(run_undo(wrong, "wrongone", fails=True))
    assert problems and all(problem in refused for problem in problems)
    for name in CHAIN:
        assert f"{name} [2024-01-03] has been written since, by run {right.run_id[:8]}" in refused
    assert "2024-01-02" not in refused
    assert (published_digests(wrong), versions) == (
        digests,
        {name: wrong.log(name).version() for name in CHAIN},
    )
    # The day that nobody wrote since can go back by itself.
    run_undo(wrong, "wrongone", "2024-01-02")
    now = published_digests(wrong)
    assert {d for (_, d) in now if any(now[n, d] != digests[n, d] for n in CHAIN)} == {day(2)}


@pytest.mark.slow
def test_the_advice_of_a_refused_undo_is_enough(loaded):
    first = published_digests(loaded)
    loaded.land(2, [order("x2", 2, "50.00")], "wrong.jsonl")
    loaded.run(2, assets=CHAIN[:1], tags={"dagster/backfill": "wrongone"})
    loaded.run(2, assets=CHAIN[1:])
    digests = published_digests(loaded)
    loaded.land(2, [order("y2", 2, "60.00")], "since.jsonl")
    since = loaded.run(2, assets=CHAIN)
    refused = loaded.failure(run_undo(loaded, "wrongone", fails=True))
    assert f"has been written since, by run {since.run_id[:8]}" in refused
    assert "undo that first" in refused
    run_undo(loaded, since.run_id[:8])
    assert published_digests(loaded) == digests
    # The run has no part any more in what was made of the wrong load.
    run_undo(loaded, "wrongone")
    assert published_digests(loaded) == first


def test_a_first_load_is_taken_back_with_what_was_made_of_it(loaded):
    """Other runs have made it, as the sensor does; and the day before has changed as well."""
    before = published_digests(loaded)
    loaded.land(5, [order("o5", 5), order("late", 4, "99.00")])
    load = loaded.run(5, assets=CHAIN[:1])
    loaded.run(4, 5, CHAIN[1:])
    made = published_digests(loaded)
    assert made.keys() - before.keys() == {(name, day(5)) for name in CHAIN}
    assert made[FACT.name, day(4)] != before[FACT.name, day(4)]
    result = run_undo(loaded, load.run_id[:8])
    assert published_digests(loaded) == before
    assert day(5) not in read_ledgers(loaded.deployment)[FACT.name].published_days
    messages = [
        evaluation.description or ""
        for evaluation in result.get_asset_check_evaluations()
        if (evaluation.check_name, evaluation.partition) == ("conservation", str(day(5)))
    ]
    assert len(messages) == len(CHAIN)
    assert all("it counts as never published" in text for text in messages)
    # What was put back is in order, and nobody is asked to do anything.
    states = day_states(STAGED.name, current_snapshot(loaded, day(5)))
    assert {states[day(n)] for n in range(1, 5)} <= {
        DayState.OPEN,
        DayState.FINAL,
        DayState.INPUT_MISSING,
    }
    assert stale_days(loaded, STAGED) == set()
    message = loaded.failure(run_undo(loaded, load.run_id[:8], fails=True))
    assert "is undone already" in message

    # It can be loaded again. What is then built too early is on hold, and no schedule builds it.
    loaded.run(5, assets=CHAIN[:1])
    loaded.run(5, assets=CHAIN[1:2], tags={"dagster/backfill": "tooearly"})
    assert (STAGED.name, day(5)) in published_digests(loaded)
    run_undo(loaded, "tooearly")
    states = day_states(STAGED.name, current_snapshot(loaded, day(6)))
    assert states[day(5)] is DayState.ON_HOLD
    loaded.run(4, 5, CHAIN[1:2], tags={"dagster/schedule_name": "nightly"})
    assert (STAGED.name, day(5)) not in published_digests(loaded)
    loaded.run(5, assets=CHAIN[1:2])
    assert (STAGED.name, day(5)) in published_digests(loaded)


def test_old_files_are_not_named_again_when_the_time_to_undo_is_over(
    wrong, original, first_digests, engine, monkeypatch
):
    """A VACUUM that has begun may be about to remove them: the rows are written again."""
    old = files_of(few_tables(engine, original), 2)
    monkeypatch.setattr(undoing, "_MARGIN", timedelta(days=400))
    run_undo(wrong, "wrongone")
    assert published_digests(wrong) == first_digests
    assert old.isdisjoint(files_of(wrong, 2))


def files_of(pipeline, n):
    """The data files of a day of the facts."""
    url, version = pipeline.settings.table(FACT.name), pipeline.log(FACT.name).version()
    return {*list_data_files(url, FACT, [day(n)], version)["path"].to_pylist()}


@pytest.mark.slow
def test_launched_again_after_an_undo(loaded):
    """It is the second launch that is undone then, as often as one likes."""
    before = published_digests(loaded)
    loaded.land(2, [order("x2", 2, "50.00")], "more.jsonl")
    for _ in range(2):
        loaded.run(2, assets=CHAIN, tags={"dagster/backfill": "wrongone"})
        assert published_digests(loaded) != before
        run_undo(loaded, "wrongone")
        assert published_digests(loaded) == before


def old_files(pipeline, table):
    """The version before `wrongone`, and its files of day 2."""
    ledger = read_ledgers(pipeline.deployment)[table.name]
    change = changed_days(ledger, commits_of("wrongone"))[day(2)]
    url = pipeline.settings.table(table.name)
    files = list_data_files(url, table, [day(2)], change.version_before)["path"].to_pylist()
    return change, [pipeline.warehouse / table.name / path for path in files]


def test_old_files_that_cannot_come_back(wrong):
    """What they hold is read before the first table is put back, and again where a run came."""
    versions = {name: wrong.log(name).version() for name in CHAIN}
    # The last table of the undo has an old file with other rows than its commit tells of.
    change, (path,) = old_files(wrong, FACT)
    rows = pq.read_table(path)
    path.unlink()  # it may be a hard link
    pq.write_table(rows.slice(1), path)
    refused = wrong.failure(run_undo(wrong, "wrongone", fails=True))
    assert "wrongone was not undone, and nothing was written" in refused
    assert (
        f"the files of {FACT.name} [2024-01-02] in version {change.version_before} give other "
        "rows than their commit tells of"
    ) in refused
    assert versions == {name: wrong.log(name).version() for name in CHAIN}
    # VACUUM has taken files.
    change, paths = old_files(wrong, STAGED)
    for path in paths:
        path.unlink()
    refused = wrong.failure(run_undo(wrong, "wrongone", fails=True))
    assert (
        f"the files that stg_orders [2024-01-02] had in version {change.version_before} are gone"
        in refused
    )
    assert versions == {name: wrong.log(name).version() for name in CHAIN}


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), pytest.param(PublishError("no space left"), marks=pytest.mark.slow)],
    ids=["killed", "failed"],
)
def test_one_that_was_killed_halfway_is_finished(wrong, first_digests, monkeypatch, error):
    def commit_or_die(audited, *others):
        if audited.plan.table is FACT:
            raise error
        return commit_once(audited, *others)

    commit_once = AuditedDays.commit_once
    monkeypatch.setattr(AuditedDays, "commit_once", commit_or_die)
    run_undo(wrong, "wrongone", fails=True)
    monkeypatch.undo()
    version = wrong.log(RAW.name).version()
    assert published_digests(wrong) != first_digests
    assert is_mixed(wrong.deployment)
    run_undo(wrong, "wrongone")
    assert not is_mixed(wrong.deployment)
    assert not [*wrong.warehouse.glob("_undo*")]
    assert published_digests(wrong) == first_digests
    assert wrong.log(RAW.name).version() == version


@pytest.mark.slow
def test_an_accepted_file_is_asked_about_again_after_the_undo(complete):
    """The orders that it lacks are there again, and only a person may take them away again."""
    complete.night(day(5))
    before = published_digests(complete)
    name, load = "arrival_date=2024-01-02/part-0.jsonl", ["raw_orders", "raw_orders_rejected"]
    complete.land(2, [order("o2", 2, "2.00")])
    accepted = {"dagster/backfill": "wrongone", ACCEPT_TAG: name}
    complete.run(2, 3, load, tags=accepted)
    assert published_digests(complete)["raw_orders", day(2)] != before["raw_orders", day(2)]
    run_undo(complete, "wrongone")
    assert published_digests(complete) == before
    assert complete.night(day(5)) == []

    complete.run(2, 3, load)
    assert published_digests(complete) == before
    assert loaded_manifests(complete.io_manager.ledger(RAW))[day(2)].awaiting_approval.keys() == {
        name
    }
    complete.run(2, 3, load, tags=accepted)
    assert {r["order_id"] for r in complete.rows("raw_orders") if r["log_date"] == day(2)} == {"o2"}


@pytest.mark.slow
def test_a_day_that_was_taken_back_stays_so(complete):
    """Also where its input is still there: nobody wants it until the input is another."""
    complete.land(5, [order("o5", 5)])
    complete.run(5, assets=["raw_orders", "raw_orders_rejected"])
    complete.run(
        5, assets=["stg_orders", "fact_daily_orders"], tags={"dagster/backfill": "tooearly"}
    )
    run_undo(complete, "tooearly")
    complete.night(day(6))
    assert (STAGED.name, day(5)) not in published_digests(complete)
    complete.land(5, [order("p5", 5)], "more.jsonl")
    complete.night(day(6))
    assert {(STAGED.name, day(5)), (FACT.name, day(5))} <= published_digests(complete).keys()


def stale_days(pipeline, table):
    policy = Policy.from_settings(pipeline.settings)
    return find_stale_days(
        snapshot_ledgers(read_ledgers(pipeline.deployment), policy, pipeline.now.date())
    ).all_days(table.name)


def order_ids(pipeline):
    return {row["order_id"] for row in pipeline.rows(STAGED.name)}


@pytest.mark.parametrize(
    "when", [pytest.param("before the undo", marks=pytest.mark.slow), "while it runs"]
)
def test_a_line_that_is_not_built_yet_is_built_after_an_undo(wrong, monkeypatch, when):
    """The undone rows were made without it, and so were the rows from before."""
    wrong.land(3, [order("late", 2, ingested=f"{day(3)}T20:00:00Z")], "late.jsonl")

    def load_day():
        wrong.run(3, assets=CHAIN[:1])
        assert day(2) in stale_days(wrong, STAGED)

    if when == "before the undo":
        load_day()
    else:
        waiting = [load_day]

        def commit_after_load(audited, *others):
            if audited.plan.table is STAGED and waiting:
                waiting.pop()()
            return commit_once(audited, *others)

        commit_once = AuditedDays.commit_once
        monkeypatch.setattr(AuditedDays, "commit_once", commit_after_load)
    run_undo(wrong, "wrongone", str(day(2)))
    monkeypatch.undo()
    assert day(2) in stale_days(wrong, STAGED)
    wrong.run(2, 3, CHAIN[1:])
    # Day 3 has still what the backfill gave it.
    assert order_ids(wrong) == {*(f"{x}{n}" for n in range(1, 5) for x in "op"), "x3", "late"}
    revenue = [row["revenue"] for row in wrong.rows(FACT.name) if row["run_date"] == day(2)]
    assert sum(revenue) == Decimal("19.50")
    assert stale_days(wrong, STAGED) == stale_days(wrong, FACT) == set()


@pytest.mark.slow
def test_rows_are_not_put_back_where_their_input_was_undone_since(loaded):
    """The line was loaded, and built by another run; what is made of it cannot outlive it."""
    before = published_digests(loaded)
    loaded.land(3, [order("x3", 3)], "more.jsonl")
    load = loaded.run(3, assets=CHAIN[:1])
    build = loaded.run(3, assets=CHAIN[1:])
    undo_of_build = run_undo(loaded, build.run_id[:8])
    undo_of_load = run_undo(loaded, load.run_id[:8])
    assert published_digests(loaded) == before
    refused = loaded.failure(run_undo(loaded, undo_of_build.run_id[:8], fails=True))
    assert (
        f"stg_orders [2024-01-03] was made before of what run {load.run_id[:8]} had written to "
        f"raw_orders, which run {undo_of_load.run_id[:8]} has undone since"
    ) in refused
    assert published_digests(loaded) == before
    # In the order of the advice, it can.
    run_undo(loaded, undo_of_load.run_id[:8])
    assert day(3) not in stale_days(loaded, STAGED), "an undo of its rows stands"
    run_undo(loaded, undo_of_build.run_id[:8])
    assert "x3" in order_ids(loaded)


@pytest.mark.slow
def test_an_undone_load_of_another_day_stands_in_no_ones_way(loaded):
    """Day 4 reads the log of day 5, which has no line of it."""
    loaded.land(5, [order("o5", 5)])
    load = loaded.run(5, assets=CHAIN[:1])
    loaded.run(4, 5, assets=CHAIN[1:])
    run_undo(loaded, load.run_id[:8])
    before = published_digests(loaded)
    loaded.run(4, assets=CHAIN[1:], tags={"dagster/backfill": "again", REWRITE_TAG: "true"})
    run_undo(loaded, "again")
    assert published_digests(loaded) == before


def current_snapshot(pipeline, today):
    pipeline.now = datetime.combine(today, time(3), tzinfo=pipeline.settings.zone)
    return Monitor(pipeline.deployment, lambda: pipeline.now).read_snapshot(pipeline.instance)


# random histories

STEPS = int(os.environ.get("BACKFILL_TEST_UNDOS", "4"))
SEEDS = int(os.environ.get("BACKFILL_TEST_UNDO_SEEDS", "1"))
DAYS = 6


def make_plan(pipeline, window):
    parameters = BackfillRequest(days=str(window), tables=LAYERS)
    code = pipeline.code
    return backfill_jobs.create_plan(pipeline.deployment, pipeline.instance, code, parameters)


def span_of(plan, name):
    """The first and the last day of a table in a plan; they have no gap."""
    days = [d for _, days in plan.tables[name].days_by_outcome() for d in days]
    return min(days), max(days)


def days_of_backfill(pipeline, name):
    """By table, the days that the commits of a backfill speak of."""
    return {
        table: {d for r in ledger.records if is_commit_of(r, name) for d in r.days}
        for table, ledger in read_ledgers(pipeline.deployment).items()
    }


def undo_with_a_kill(pipeline, name, commits):
    """An undo that is killed once so many tables are put back, and asked for again."""

    def run_job():
        return pipeline.repository.get_job("undo").execute_in_process(
            instance=pipeline.instance,
            run_config={"ops": {"put_back": {"config": {"backfill": name}}}},
            raise_on_error=False,
        )

    def commit_or_die(audited, *others):
        if next(remaining, None) is None:
            raise KeyboardInterrupt
        return commit_once(audited, *others)

    commit_once, remaining = AuditedDays.commit_once, iter(range(commits))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AuditedDays, "commit_once", commit_or_die)
        result = run_job()
    if result.success or "nothing was written" in pipeline.failure(result):
        return result
    assert commits or not is_mixed(pipeline.deployment)
    result = run_job()
    assert result.success, pipeline.failure(result)
    assert not is_mixed(pipeline.deployment)
    return result


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 1 + SEEDS))
def test_random_histories_of_backfills_and_undos(engine, tmp_path, seed):
    rnd = random.Random(seed)
    pipeline = Pipeline(engine, tmp_path, window_days=2, end=day(DAYS + 1))
    before: dict[str, dict] = {}
    wrote: list[str] = []
    for step in range(STEPS):
        for _ in range(rnd.randint(1, 3)):
            n = rnd.randint(1, DAYS)
            event = max(1, n - rnd.choice([0, 0, 1, 2, 3]))
            line = order(f"o{rnd.randint(1, 9)}", event, f"{rnd.randint(1, 99)}.00")
            line["ingestion_ts"] = f"{day(n)}T12:00:00Z"
            pipeline.land(n, [line], f"{step}-{rnd.random()}.jsonl")
        first = day(rnd.randint(1, DAYS))
        window = Window(first, min(first + rnd.randint(1, 4) * DAY, day(DAYS + 1)))
        plan = make_plan(pipeline, window)
        before[plan.id] = published_digests(pipeline)
        for wave in (("raw_orders", "raw_orders_rejected"), LAYERS[2:]):
            spans = {span_of(plan, n) for n in wave}
            for span in sorted(spans):
                names = [n for n in wave if span_of(plan, n) == span]
                lacking = any(plan.tables[n].lacking for n in names)
                pipeline.run(*span, names, tags={"dagster/backfill": plan.id}, fails=lacking)
        covered_days = days_of_backfill(pipeline, plan.id)
        for name, outlook in plan.tables.items():
            expectations = dict(outlook.days_by_outcome())
            assert not covered_days[name] & {*expectations.get(DayOutcome.IDENTICAL, ())}, (
                name,
                "identical",
            )
            assert covered_days[name] >= {*expectations.get(DayOutcome.COMPUTED, ())}, (
                name,
                "computed",
            )
            assert not covered_days[name] & {*expectations.get(DayOutcome.LACKING, ())}, (
                name,
                "lacking",
            )
        wrote.append(plan.id)
        for name in rnd.sample(wrote, min(2, len(wrote))):
            digests = published_digests(pipeline)
            versions = {t: pipeline.log(t).version() for t in LAYERS}
            own_days = {
                (table, d)
                for table, ledger in read_ledgers(pipeline.deployment).items()
                for d in changed_days(ledger, commits_of(name))
            }
            result = undo_with_a_kill(pipeline, name, rnd.choice([0, 1, 2, 3, len(LAYERS)]))
            if result.success:
                expected = {key: digest for key, digest in digests.items() if key not in own_days}
                expected |= {key: digest for key, digest in before[name].items() if key in own_days}
                assert published_digests(pipeline) == expected
                wrote.remove(name)
            else:
                assert "nothing was written" in pipeline.failure(result)
                assert versions == {t: pipeline.log(t).version() for t in LAYERS}
    shutil.rmtree(tmp_path)
