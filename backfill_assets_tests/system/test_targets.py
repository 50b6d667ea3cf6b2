"""Targets: days built beside production, compared, switched over, and put back."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from threading import Barrier, current_thread

import dagster as dg
import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from backfill_assets.backfills import state_store
from backfill_assets.backfills.backfill_plan import BackfillRequest
from backfill_assets.calendar.late_data import Policy
from backfill_assets.cli.targets import target_row
from backfill_assets.delta import commit_log, commits, delta_rs, targets
from backfill_assets.delta.commit_log import CloneError
from backfill_assets.delta.consistent_versions import versions_that_belong_together
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.maintenance import run_maintenance
from backfill_assets.delta.targets import ComparisonLimits, Target, TargetError
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import CORRECTIONS, CURRENT, FACT, RAW, STAGED
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.publish.types import Outcome
from backfill_assets.settings import load_settings
from backfill_assets.shadow import compare
from backfill_assets.shadow.build import prepare_target, stale_days, target_tables
from backfill_assets.shadow.compare import exceeded_limits, require_comparison
from backfill_assets.shadow.switch import is_mixed
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets_tests import target_tables as tables_before
from backfill_assets_tests import target_tables_after as tables_after
from backfill_assets_tests.helpers.command_line import publish_facts
from backfill_assets_tests.helpers.invented_logs import snapshot_ledgers
from backfill_assets_tests.helpers.object_stores import url_of
from backfill_assets_tests.helpers.pipeline import (
    Pipeline,
    copy_loaded,
    day,
    io_manager_of,
    order,
    run_undo,
)
from backfill_assets_tests.helpers.publish_rows import run_together
from backfill_assets_tests.helpers.shadow_targets import (
    AFTER,
    ALL,
    BEFORE,
    DAYS,
    RANKS,
    SCORES,
    STATE,
    build_shadow,
    compare_shadow,
    land_orders,
    read_scores,
    run_switch_over,
)

New = Callable[..., Pipeline]
STAGING = (RAW.name, STAGED.name)
#: Ten times as many points are another distribution, and there are the same rows.
ANY, LITTLE = ComparisonLimits(most_rows=0), ComparisonLimits(most_drift=0.25)


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def new(engine, spark, tmp_path: Path) -> New:
    """A deployment with the code of before, or of after; all of a folder have the same tables."""

    def make_pipeline(tables: str = AFTER, folder: str = "here", **more: object) -> Pipeline:
        return Pipeline(engine, tmp_path / folder, tables=tables, window_days=1, **more)

    return make_pipeline


@pytest.fixture(scope="module")
def loaded(engine, spark, tmp_path_factory) -> Path:
    """A landing and all tables by the code of before, to be copied."""
    root = tmp_path_factory.mktemp("loaded")
    land_orders(Pipeline(engine, root, tables=BEFORE, window_days=1))
    return root


@pytest.fixture
def production(new, loaded, tmp_path: Path) -> Pipeline:
    copy_loaded(loaded, tmp_path / "here")
    return new(BEFORE)


@pytest.fixture(scope="module")
def loaded_with_target(engine, loaded, tmp_path_factory) -> Path:
    """The same tables, and the target v2 of the code of after with its days built.

    Nobody who reads production has noticed: no version, no row, no event.
    """
    root = tmp_path_factory.mktemp("target")
    copy_loaded(loaded, root)
    after = Pipeline(engine, root, tables=AFTER, window_days=1)
    before, at = after.digests(), log_versions(after)
    _, stages = build_shadow(after)
    assert [stage.failure for stage in stages] == [""]
    assert log_versions(after) == at
    assert after.digests() == before
    assert not after.materialized(SCORES)
    return root


def copy_with_target(source: Path, root: Path) -> None:
    """Copy a landing and its tables, a target among them, over those of another pipeline."""
    for name in ("landing", "warehouse"):
        shutil.copytree(source / name, root / name, dirs_exist_ok=True)
    # The clones name the files of production in full.
    old, new = (url_of(folder).encode() for folder in (source, root))
    for file in (root / "warehouse" / targets.TARGETS_FOLDER).rglob("_delta_log/[0-9]*"):
        if old in (content := file.read_bytes()):
            file.write_bytes(content.replace(old, new))
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def built_target(production, loaded_with_target) -> None:
    """Production has the target v2 beside it, as `build_shadow` leaves it."""
    copy_with_target(loaded_with_target, production.root)


@pytest.fixture(scope="module")
def staged_beside_target(engine, loaded_with_target, tmp_path_factory) -> Path:
    """The same; since then, fifty orders more of day 5 were staged, and are not scored."""
    root = tmp_path_factory.mktemp("staged")
    copy_with_target(loaded_with_target, root)
    production = Pipeline(engine, root, tables=BEFORE, window_days=1)
    lines = [order(f"more-{n}", 5, "1.00", ingested=f"{day(6)}T10:00:00Z") for n in range(50)]
    production.land(6, lines, "late.jsonl")
    production.run(5, 6, STAGING)
    return root


@pytest.fixture
def more_orders(production, staged_beside_target) -> None:
    copy_with_target(staged_beside_target, production.root)


def log_versions(pipeline: Pipeline) -> dict[str, int]:
    return {name: pipeline.log(name).version() for name in ALL}


def stale_by_table(pipeline: Pipeline) -> dict[str, set[date]]:
    """By table, the days that are behind their inputs."""
    stale = find_stale_days(
        snapshot_ledgers(
            read_ledgers(pipeline.deployment), Policy.from_settings(pipeline.settings), day(7)
        )
    )
    return {name: {*days} for name, days in stale.open.items() if days}


def count_files(pipeline: Pipeline, name: str = SCORES) -> int:
    return len([*(pipeline.warehouse / name).glob("run_date=*/*.parquet")])


def require_bounds(pipeline: Pipeline, bounds: ComparisonLimits | None) -> Target:
    target = targets.load_target(pipeline.deployment, "v2")
    return require_comparison(pipeline.deployment, target, bounds)


def switch_refusal(pipeline: Pipeline) -> str:
    message = pipeline.failure(run_switch_over(pipeline, fails=True))
    assert "Nothing was written" in message
    assert not targets.load_target(pipeline.deployment, "v2").switching
    return message


@pytest.mark.usefixtures("built_target")
def test_a_target_from_end_to_end(production, new, spark):
    """Its days were built in `loaded_with_target`, where nobody noticed."""
    after, before, at = new(), production.digests(), log_versions(production)
    target = targets.load_target(after.deployment, "v2")
    assert target.tables == (SCORES, RANKS, STATE)
    # Any reader of Delta's reads the clone; it has all days.
    rows = spark.read.format("delta").load(target.table_url(after.deployment, SCORES))
    assert sorted(row.score for row in rows.collect()) == [1, 5, 6, 20, 30, 40]
    # Nothing is switched over without a passed comparison, where one is required.
    require_bounds(after, LITTLE)
    message = switch_refusal(after)
    assert "must pass a comparison with --most-drift 0.25 first: there was none" in message
    require_bounds(after, ANY)
    comparison = compare_shadow(after, spark)
    assert not comparison.problems
    # The bounds of before would not have let it pass.
    (problem,) = exceeded_limits(comparison.reports[0], LITTLE)
    assert "scores.score has drifted by" in problem
    # Of what was not asked for, the days are built that read a day that was.
    assert {r.table.name: r.summary_line for r in comparison.reports} == {
        SCORES: "scores: 3 changed",
        RANKS: "ranks: 5 changed",
        STATE: "sums: 5 changed",
    }
    run_switch_over(after)
    assert after.materialized(SCORES) == {str(day(n)) for n in (2, 3, 4)}
    assert read_scores(production) == {1: 1, 2: 20, 3: 30, 4: 40, 5: 5, 6: 6}
    assert read_scores(production, RANKS) == {1: 1, 2: 20, 3: 30, 4: 40, 5: 40, 6: 40}
    assert read_scores(production, STATE) == {1: 1, 2: 21, 3: 51, 4: 91, 5: 96, 6: 102}
    changed = {SCORES, RANKS, STATE}
    assert log_versions(production) == {name: n + (name in changed) for name, n in at.items()}
    # Nothing is due, neither by what the days are made of nor by the new code.
    assert not stale_days(after.deployment, target, after.code)
    assert not {SCORES, RANKS, STATE} & stale_by_table(after).keys()
    assert state_of(after, "v2") == "switched over: v2-1"
    run_undo(after, "v2")
    assert read_scores(production) == {n: n for n in range(1, 7)}
    assert production.digests() == before
    assert state_of(after, "v2") == "switched over: v2-1, and production has no day of it now"
    # The comparison holds still: production is as it was.
    run_switch_over(after)
    assert read_scores(production) == {1: 1, 2: 20, 3: 30, 4: 40, 5: 5, 6: 6}


def state_of(pipeline: Pipeline, name: str) -> str:
    """What the command `targets` says of a target's state."""
    return target_row(pipeline.deployment, name)["state"]


def test_what_is_known_now_of_a_table_belongs_to_it():
    settings = load_settings()
    assert target_tables(Deployment(settings), [FACT.name]) == (
        FACT.name,
        CURRENT.name,
        CORRECTIONS.name,
    )
    assert CURRENT.name in target_tables(Deployment(settings), [STAGED.name])
    assert FACT.name not in target_tables(Deployment(settings), [CURRENT.name])


def test_the_same_as_the_backfill_in_place(new, loaded, tmp_path, monkeypatch):
    """Also if its build is killed, and goes on by another release; in a folder with a space."""
    for folder in ("a b", "elsewhere"):
        copy_loaded(loaded, tmp_path / folder)
    with_new_code, after = new(AFTER, "elsewhere"), new(AFTER, "a b")
    with_new_code.run(2, 4, (SCORES,))
    with_new_code.run(2, 6, (RANKS, STATE))
    at = log_versions(after)
    # Killed before its third commit: the last table of the first stage.
    with monkeypatch.context() as patch:
        real, count = commits.Writer.commit, iter(range(9))

        def commit_or_die(self, *arguments):
            if next(count) == 2:
                raise KilledError
            return real(self, *arguments)

        patch.setattr(commits.Writer, "commit", commit_or_die)
        _, stages = build_shadow(after, chunk_days=2)
    assert "KilledError" in stages[-1].failure
    assert len(stages) == 1
    # The rest is built as if by another release.
    record = DeltaIOManager.run_metadata

    def record_of_other_code(manager: DeltaIOManager, *arguments: object) -> dict:
        return {**record(manager, *arguments), "release": "other", "git_commit": "0ther"}

    with monkeypatch.context() as patch:
        patch.setattr(DeltaIOManager, "run_metadata", record_of_other_code)
        _, stages = build_shadow(after, chunk_days=2)
    assert [stage.failure for stage in stages] == ["", ""]
    # It is one commit a table, which knows by which build each day was made.
    run_switch_over(after)
    assert after.digests() == with_new_code.digests()
    changed = {SCORES, RANKS, STATE}
    assert log_versions(after) == {name: n + (name in changed) for name, n in at.items()}
    assert read_scores(after, STATE) == {1: 1, 2: 21, 3: 51, 4: 91, 5: 96, 6: 102}
    latest = read_ledgers(after.deployment)[SCORES].latest
    assert [n for n in (2, 3, 4) if latest[day(n)].git_commit == "0ther"] == [4]
    assert commit_log.resolve_path("/x", "file:///a%20b/c") == "/a b/c"


#: Without a table that carries state, which has its runs one after another in any case.
RANKED, RANKED_AFTER = (
    [*module.SOURCES, module.scores, module.ranks] for module in (tables_before, tables_after)
)


def test_runs_of_a_target_at_a_time_build_the_same(production, new, monkeypatch):
    """Runs of different days wait for each other at a barrier: with one at a time, it breaks."""
    after = new(f"{__name__}:RANKED_AFTER", partitions_per_run=1)
    barrier, threads = Barrier(2, timeout=120), Counter()
    materialize = dg.materialize

    def wait_for_another(assets, *, selection, **more):
        threads[current_thread().name] += 1
        if [*selection] == [SCORES]:
            barrier.wait()
        return materialize(assets, selection=selection, **more)

    monkeypatch.setattr(dg, "materialize", wait_for_another)
    _, stages = build_shadow(after, f"{day(5)}...{day(6)}", max_parallel=2)
    assert [stage.failure for stage in stages] == [""]
    assert len(threads) == 2
    run_switch_over(after)
    assert read_scores(production) == {1: 1, 2: 2, 3: 3, 4: 4, 5: 50, 6: 60}
    assert read_scores(production, RANKS) == {1: 1, 2: 2, 3: 3, 4: 4, 5: 50, 6: 60}


@pytest.mark.slow
def test_runs_at_a_time_wait_for_the_days_that_they_read(new):
    """The best score of three days is that of a day before, which another run builds."""
    production = new(f"{__name__}:RANKED")
    after = new(f"{__name__}:RANKED_AFTER", partitions_per_run=1)
    for n in range(1, 7):
        production.land(n, [order(f"{n}-{k}", n) for k in range(7 - n)])
    production.run(1, 6, (*STAGING, SCORES, RANKS))
    _, stages = build_shadow(after, f"{day(1)}...{day(6)}", max_parallel=3)
    assert [stage.failure for stage in stages] == [""]
    run_switch_over(after)
    assert read_scores(production, RANKS) == {n: 10 * (7 - max(n - 2, 1)) for n in range(1, 7)}


def test_a_plan_tells_what_would_be_built(production, new):
    after = new()
    target = targets.new_target(after.deployment, "v2", (SCORES,), _parse_window(DAYS))
    stale = stale_days(after.deployment, target, after.code)
    assert {name: sorted(table_days) for name, table_days in stale.items()} == {
        SCORES: [day(2), day(3), day(4)]
    }
    # The deployments score by two functions of one name.
    assert {fate.reason for fate in stale[SCORES].values()} == {"other code: scores"}
    assert targets.list_targets(after.deployment) == []


def _parse_window(text: str):
    return BackfillRequest(days=text).window


@pytest.mark.usefixtures("built_target")
def test_an_unchanged_day_costs_no_file(production, new):
    at = count_files(production)
    same = new(BEFORE)
    target, _ = build_shadow(same, name="same")
    assert count_files(production) == at
    assert not (Path(target.table_url(same.deployment, SCORES)) / "run_date=2024-01-02").exists()
    # What has changed costs a file a day, until it is dropped.
    assert targets.drop_target(same.deployment, "v2") == 3 + 5 + 5
    assert count_files(production) == at - 3
    assert targets.list_targets(same.deployment) == ["same"]


@pytest.mark.usefixtures("built_target")
def test_dropping_leaves_what_was_switched_over(production, new, monkeypatch):
    after = new()
    run_switch_over(after, days=f"{day(2)}...{day(2)}")
    at = count_files(production)
    # Only the target knows that its undo is half done.
    targets.update_target(
        after.deployment, "v2", lambda current: current.model_copy(update={"undoing": "v2-1"})
    )
    with pytest.raises(TargetError, match="v2-1 is half undone: `backfill-assets undo v2-1` fin"):
        targets.drop_target(after.deployment, "v2")
    assert targets.list_targets(after.deployment) == ["v2"]
    targets.update_target(
        after.deployment, "v2", lambda current: current.model_copy(update={"undoing": ""})
    )
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(targets, "delete_target", _raise_killed)
        targets.drop_target(after.deployment, "v2")
    # Nobody takes up what is half gone, and the same again does the rest.
    with pytest.raises(TargetError, match="v2 is being dropped: `backfill-assets drop v2` ends"):
        build_shadow(after)
    assert "target v2 is being dropped" in after.failure(run_switch_over(after, fails=True))
    targets.drop_target(after.deployment, "v2")
    assert count_files(production) == at - 2
    assert read_scores(production) == {1: 1, 2: 20, 3: 3, 4: 4, 5: 5, 6: 6}
    with pytest.raises(TargetError, match="there is no target v2"):
        targets.load_target(after.deployment, "v2")


@pytest.mark.usefixtures("built_target")
def test_a_canary_goes_first_and_comes_back(production, new):
    after, before = new(), production.digests()
    run_switch_over(after, days=str(day(4)))
    assert read_scores(production) == {1: 1, 2: 2, 3: 3, 4: 40, 5: 5, 6: 6}
    assert is_mixed(after.deployment)
    # It was made of days that production has otherwise, and a person wants it so.
    policy = Policy.from_settings(after.settings)
    ledgers = read_ledgers(after.deployment)
    on_hold = find_stale_days(snapshot_ledgers(ledgers, policy, day(7))).on_hold
    assert on_hold == {RANKS: {day(4), day(5)}, STATE: {day(4)}}
    # The scores of the day are in production now; the state of the day before is not.
    inputs = ledgers[STATE].latest[day(4)].inputs
    assert inputs[SCORES] == ledgers[SCORES].version
    assert STATE not in inputs
    run_undo(after, "v2-1")
    assert not is_mixed(after.deployment)
    assert production.digests() == before
    run_switch_over(after, days=str(day(4)))
    run_switch_over(after)
    assert read_scores(production) == {1: 1, 2: 20, 3: 30, 4: 40, 5: 5, 6: 6}


@pytest.mark.usefixtures("built_target")
def test_what_lands_meanwhile_is_caught_up_or_the_target_is_refused(
    production, new, spark, monkeypatch
):
    after = new()
    # A late line of day 4 and two new days, the first of which does not pass.
    production.land(5, [order("late", 4, "1.00", at="11:00")], "late.jsonl")
    production.land(7, [order("7-0", 7, customer=None)])
    production.land(8, [order("8-0", 8)])
    production.run(4, 8, STAGING)
    message = after.failure(run_switch_over(after, fails=True))
    assert "target v2 is not switched over" in message
    assert f"scores [{day(4)}] (new input: stg_orders)" in message
    assert read_scores(production) == {n: n for n in range(1, 7)}
    # A day that does not pass ends the build: the last stage is not begun.
    _, stages = build_shadow(after, f"{day(4)}...{day(8)}", chunk_days=4)
    assert [(stage.name, bool(stage.failure)) for stage in stages] == [("001", True)]
    counts = stages[0].counts[SCORES]
    assert (counts[Outcome.WRITTEN], counts[Outcome.FAILED]) == (3, 1)
    assert f"{SCORES}[{day(7)}]  nulls: 1 null(s) in customer_id" in stages[0].failure
    assert "build the same into the target again" in stages[0].failure
    # A comparison of what is not whole does not pass.
    missing = f"{SCORES} [{day(7)}...{day(8)}] is not built (never published)"
    with monkeypatch.context() as patch:
        patch.setattr(compare, "built_days", lambda *_: set())  # whatever the rows of the others
        assert missing in compare_shadow(after, spark).problems
    message = after.failure(run_switch_over(after, fails=True))
    assert "target v2 is not switched over" in message
    # The day is mended.
    production.land(7, [order("7-0", 7, ingested=f"{day(7)}T11:00:00Z")])
    production.run(7, 7, STAGING)
    _, stages = build_shadow(after, f"{day(4)}...{day(8)}")
    assert [stage.failure for stage in stages] == [""]
    run_switch_over(after)
    assert read_scores(production) == {1: 1, 2: 20, 3: 30, 4: 50, 5: 50, 6: 60, 7: 10, 8: 10}


@pytest.mark.usefixtures("more_orders")
def test_a_day_that_production_has_rebuilt_beside_a_target_counts(production, new):
    """A follower of the target reads day 5, which it has as it was."""
    after = new()
    production.run(5, 6, (SCORES,))
    assert read_scores(production)[5] == 55
    refused = after.failure(run_switch_over(after, fails=True))
    assert f"ranks [{day(5)}...{day(6)}] (new input)" in refused
    build_shadow(after)
    run_switch_over(after)
    assert read_scores(production, RANKS) == {1: 1, 2: 20, 3: 30, 4: 40, 5: 55, 6: 55}
    assert read_scores(production, STATE) == {1: 1, 2: 21, 3: 51, 4: 91, 5: 146, 6: 152}
    assert not {SCORES, RANKS, STATE} & stale_by_table(after).keys()


@pytest.mark.usefixtures("more_orders")
@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_day_that_is_rebuilt_during_a_switch_over_is_behind(
    production, new, monkeypatch, is_killed
):
    """Between the commits of two tables; a later night makes it right, also if one is killed."""
    after = new()
    commit, waiting = commits.Writer.commit, [(SCORES,)]

    def commit_after_a_night(writer, *arguments):
        if writer.table.name == RANKS and waiting and "_targets" not in writer.url:
            production.run(5, 6, waiting.pop(), fails=is_killed)
            return None  # as where another commit of the table came first
        if is_killed and writer.table.name == SCORES and not waiting:
            raise KilledError
        return commit(writer, *arguments)

    monkeypatch.setattr(commits.Writer, "commit", commit_after_a_night)
    run_switch_over(after)
    monkeypatch.undo()
    assert read_scores(production)[5] == (5 if is_killed else 55)
    stale = find_stale_days(
        snapshot_ledgers(
            read_ledgers(after.deployment), Policy.from_settings(after.settings), day(7)
        )
    )
    behind = SCORES if is_killed else RANKS
    assert stale.all_days(behind) == ({day(5)} if is_killed else {day(5), day(6)})
    # Day 5 is final. The scores were behind before the switch-over, which is whole all the same.
    assert is_killed or day(6) in stale.open[RANKS]
    assert stale.any_open is not is_killed
    assert (after.warehouse / "_versions.json").exists() is is_killed
    if is_killed:
        # It is killed once more, by the new code, right after the switch-over.
        with monkeypatch.context() as patch:
            patch.setattr(commits.Writer, "commit", _raise_killed)
            after.run(5, 6, (SCORES, RANKS, STATE), fails=True)
        assert read_scores(production)[5] == 5
        after.run(5, 6, (SCORES, RANKS, STATE))
        assert read_scores(production) == {1: 1, 2: 20, 3: 30, 4: 40, 5: 550, 6: 60}
        assert read_scores(production, RANKS)[6] == 550
        assert not {SCORES, RANKS, STATE} & stale_by_table(after).keys()


@pytest.mark.usefixtures("built_target")
def test_what_others_wrote_is_not_replaced(production, new):
    after = new()
    # Another day of theirs stays; one that the target has made is in the way.
    row = {"run_date": [day(5)], "customer_id": ["theirs"], "score": [5]}
    write_deltalake(str(production.warehouse / RANKS), pa.table(row), mode="append")
    row["run_date"] = [day(1)]
    write_deltalake(str(production.warehouse / SCORES), pa.table(row), mode="append")
    message = after.failure(run_switch_over(after, fails=True))
    assert f"others have changed ranks [{day(5)}] in production" in message
    assert read_scores(production)[2] == 2
    with pytest.raises(TargetError, match="others have changed"):
        build_shadow(after)
    # As they say, production publishes the day again.
    production.run(5, 5, (RANKS,))
    build_shadow(after)
    run_switch_over(after)
    assert read_scores(production, RANKS)[5] == 40


@pytest.mark.usefixtures("built_target")
def test_a_switch_over_that_is_killed_is_finished(production, new, monkeypatch):
    after = new()
    real, count = commits.Writer.commit, iter(range(9))
    refused: list[str] = []

    def commit_or_die(self, *arguments):
        if next(count) == 1:
            # While its run is at work, nothing of it is put back.
            refused.append(after.failure(run_undo(after, "v2", fails=True)))
            raise KilledError
        return real(self, *arguments)

    monkeypatch.setattr(commits.Writer, "commit", commit_or_die)
    assert run_switch_over(after, reason="more points", fails=True)
    (text,) = refused
    assert "v2 was not undone, as run " in text
    assert "of the job switch_over is at work. Nothing was written. Let it end" in text
    assert read_scores(production)[2] == 20
    assert read_scores(production, RANKS)[2] == 2
    # Dagster is told when all tables are whole.
    assert not after.materialized(SCORES)
    monkeypatch.setattr(commits.Writer, "commit", real)
    # Nobody may build upon a half, and the sensor asks for the rest, once.
    with pytest.raises(TargetError, match="is being switched over"):
        build_shadow(after)
    with pytest.raises(TargetError, match="is being switched over"):
        targets.drop_target(after.deployment, "v2")
    (request,) = after.tick("switch_overs").run_requests
    at = production.log(SCORES).version()

    def finish_switch(*, fails: bool = False) -> None:
        result = after.repository.get_job("switch_over").execute_in_process(
            instance=after.instance,
            run_config=request.run_config,
            tags=request.tags,
            raise_on_error=False,
        )
        assert result.success is not fails

    # Nor is it finished while Dagster is not told of all tables.
    with monkeypatch.context() as patch:
        patch.setattr(DeltaIOManager, "events", _raise_killed)
        finish_switch(fails=True)
    assert read_scores(production, RANKS)[2] == 20
    assert not after.materialized(SCORES)
    (request,) = after.tick("switch_overs").run_requests
    finish_switch()
    assert production.log(SCORES).version() == at
    assert read_scores(production, RANKS) == {1: 1, 2: 20, 3: 30, 4: 40, 5: 40, 6: 40}
    assert not after.tick("switch_overs").run_requests
    assert after.materialized(SCORES) == {str(day(n)) for n in (2, 3, 4)}
    assert after.materialized(RANKS) == {str(day(n)) for n in range(2, 7)}
    # It is for the reason that whoever began it gave.
    ledgers = read_ledgers(after.deployment)
    last = [ledgers[name].records[-1] for name in (SCORES, RANKS, STATE)]
    assert [(record.backfill_id, record.reason) for record in last] == [("v2-1", "more points")] * 3


@pytest.mark.slow
@pytest.mark.usefixtures("built_target")
def test_a_killed_switch_over_that_is_undone_rests(production, new, monkeypatch):
    after, before = new(), production.digests()
    with monkeypatch.context() as patch:
        real, count = commits.Writer.commit, iter(range(9))

        def commit_or_die(self, *arguments):
            if next(count) == 1:
                raise KilledError
            return real(self, *arguments)

        patch.setattr(commits.Writer, "commit", commit_or_die)
        run_switch_over(after, fails=True)
    run_undo(after, "v2-1")
    assert production.digests() == before
    assert not after.tick("switch_overs").run_requests


def test_a_clone_that_is_killed_is_none(production, new, monkeypatch):
    after = new()
    request = BackfillRequest(days=DAYS, tables=(SCORES,))
    with monkeypatch.context() as patch:
        patch.setattr(targets, "shallow_clone", _raise_killed)
        with pytest.raises(KilledError):
            prepare_target(io_manager_of(after.defs), after.deployment, "v2", request)
    assert targets.list_targets(after.deployment) == []
    prepare_target(io_manager_of(after.defs), after.deployment, "v2", request)
    assert targets.list_targets(after.deployment) == ["v2"]


def _raise_killed(*_: object) -> None:
    raise KilledError


@pytest.mark.usefixtures("built_target")
def test_files_of_a_target_outlive_maintenance(production, new, spark):
    after = new(undo_days=1)
    (result,) = run_maintenance(spark, after.deployment, [SCORES])
    # Retention had another value, which is mended first.
    (result,) = run_maintenance(spark, after.deployment, [SCORES])
    assert "target(s) v2 may still need it" in result.notes[-1]
    run_switch_over(after)
    assert read_scores(production)[2] == 20


def test_of_two_who_change_a_target_one_is_refused(new, tmp_path):
    url = str(tmp_path / "known")
    result = []
    assert not run_together(
        *(lambda n=n: result.append(delta_rs.write_document(url, n, -1)) for n in "ab")
    )
    assert sorted(result, key=str) == [0, None]
    first = delta_rs.read_document(url)
    assert (first.revision, first.text in ("a", "b")) == (0, True)
    assert delta_rs.write_document(url, "c", 0) == 1
    assert delta_rs.write_document(url, "d", 0) is None
    assert delta_rs.read_document(url) == (1, "c")
    # A target says so, and nothing of what the other has written is lost.
    settings = new().settings
    target = targets.save_target(
        Deployment(settings),
        Target(name="v9", tables=(SCORES,), requested_days=(DAYS,), pins={}),
    )
    targets.save_target(Deployment(settings), target.model_copy(update={"reason": "first"}))
    with pytest.raises(TargetError, match="another command has changed target v9 meanwhile"):
        targets.save_target(Deployment(settings), target.model_copy(update={"reason": "second"}))
    targets.update_target(
        Deployment(settings), "v9", lambda current: current.model_copy(update={"canary": True})
    )
    result = targets.load_target(Deployment(settings), "v9")
    assert (result.reason, result.canary, result.revision) == ("first", True, 2)


def test_a_target_of_a_table_that_is_retired_is_no_mix(tmp_path):
    settings = load_settings(warehouse=f"{tmp_path}/warehouse")
    publish_facts(tmp_path, {day(1): "ok"}, backfill_id="v9-1")
    names = ("retired", FACT.name)
    target = Target(name="v9", tables=names, requested_days=(DAYS,), pins={}, canary=True)
    targets.save_target(Deployment(settings), target)
    assert not is_mixed(Deployment(settings))
    with pytest.raises(TargetError, match=r"declared any more\..*drop v9"):
        target.table_ledger(Deployment(settings), "retired")


def test_a_name_that_is_none(new):
    after = new()
    for name in ("V2", "a b", "../x", "", "x" * 40):
        with pytest.raises(TargetError, match="is no name for a target"):
            build_shadow(after, name=name)


@pytest.mark.usefixtures("built_target")
def test_what_cannot_be_asked_of_a_target(production, new):
    after = new()
    with pytest.raises(TargetError, match="raw_orders is what has landed"):
        build_shadow(after, tables=("raw_orders",))
    with pytest.raises(TargetError, match="no such table: nope"):
        build_shadow(after, tables=("nope",))
    with pytest.raises(TargetError, match="target v2 has the tables scores, ranks, sums, and not"):
        build_shadow(after, tables=(RANKS,))


def test_a_target_of_a_later_package_is_left_alone(production, new):
    after = new()
    odd = f"{targets.target_folder(after.deployment, 'odd')}/_state"
    delta_rs.write_document(odd, json.dumps({"name": "odd", "shape": 2}), delta_rs.NO_REVISION)
    with pytest.raises(TargetError, match="made by another version"):
        targets.load_target(after.deployment, "odd")
    assert not after.tick("switch_overs").run_requests


def test_a_log_that_was_cut_is_not_cloned(production, new):
    production.log(SCORES).create_checkpoint()
    (production.warehouse / SCORES / "_delta_log" / f"{0:020d}.json").unlink()
    with pytest.raises(CloneError, match="the commit of version 0 is gone"):
        build_shadow(new())


@pytest.mark.usefixtures("built_target")
def test_an_undo_writes_no_file(production, new):
    """And when a switch-over or its undo has ended, versions that belong together are kept."""
    after = new()

    def check_versions() -> None:
        ledgers = read_ledgers(production.deployment)
        now = {name: ledger.version for name, ledger in ledgers.items()}
        assert versions_that_belong_together(production.settings.warehouse) == now

    run_switch_over(after)
    check_versions()
    at = [count_files(production, name) for name in (SCORES, RANKS, STATE)]
    run_undo(after, "v2")
    check_versions()
    assert [count_files(production, name) for name in (SCORES, RANKS, STATE)] == at
    # And it can be undone: the files of the target are there still.
    (run,) = {record.run_id for record in read_ledgers(after.deployment)[SCORES].records[-1:]}
    run_undo(after, run)
    assert read_scores(production) == {1: 1, 2: 20, 3: 30, 4: 40, 5: 5, 6: 6}
    assert [count_files(production, name) for name in (SCORES, RANKS, STATE)] == at


@pytest.mark.usefixtures("built_target")
def test_a_clone_that_somebody_else_wrote_to_is_refused(production, new):
    after = new()
    target = targets.load_target(after.deployment, "v2")
    row = {"run_date": [day(2)], "customer_id": ["theirs"], "score": [5]}
    write_deltalake(target.table_url(after.deployment, SCORES), pa.table(row), mode="append")
    message = after.failure(run_switch_over(after, fails=True))
    assert f"scores [{day(2)}]" in message
    assert read_scores(production)[2] == 2


def test_a_column_more_comes_with_the_switch_over(production, new):
    def read_columns(columns: str) -> list[tuple]:
        with duckdb.connect() as connection:
            connection.register("seen", production.log(SCORES).to_pyarrow_table())
            return connection.sql(f"SELECT {columns} FROM seen ORDER BY run_date").fetchall()

    wider = new("backfill_assets_tests.target_tables_wider:TABLES")
    old = [(n,) for n in range(1, 7)]
    build_shadow(wider)
    assert read_columns("score") == old
    assert "bonus" not in production.log(SCORES).to_pyarrow_table().column_names
    run_switch_over(wider)
    assert read_columns("score") == old
    assert read_columns("bonus") == [(None,), (4,), (6,), (8,), (None,), (None,)]
    run_undo(wider, "v2")
    assert read_columns("bonus") == [(None,)] * 6
    assert read_columns("score") == old


def test_tables_that_there_were_none_of(production, new, monkeypatch):
    # The week is whole.
    production.land(7, [order("7-0", 7)])
    production.run(7, 7, (*STAGING, SCORES))
    after, week = new(AFTER.replace("TABLES", "MORE")), f"{day(1)}...{day(7)}"
    write_deltalake(str(production.warehouse / "weights"), pa.table({"weight": [2]}))
    target, stages = build_shadow(after, week, tables=("weighed",))
    assert target.tables == ("weighed", "weekly")
    assert [stage.failure for stage in stages] == [""]
    assert not (production.warehouse / "weighed/_delta_log").exists()
    # Their switch-over is killed: code without the tables does not finish it.
    with monkeypatch.context() as patch:
        patch.setattr(commits.Writer, "commit", _raise_killed)
        run_switch_over(after, fails=True)
    message = production.failure(run_switch_over(production, fails=True))
    assert (
        "this code cannot finish it (there is no table weighed; there is no table week" in message
    )
    run_switch_over(after)
    scores = {**{n: n for n in range(1, 7)}, 7: 1}
    assert read_scores(production, "weighed") == {n: 2 * score for n, score in scores.items()}
    assert read_scores(production, "weekly") == {1: 2 * sum(scores.values())}
    run_undo(after, "v2")
    assert read_scores(production, "weighed") == {}
    # A table without days has changed: the target is behind.
    write_deltalake(
        str(production.warehouse / "weights"), pa.table({"weight": [3]}), mode="overwrite"
    )
    message = after.failure(run_switch_over(after, fails=True))
    assert "weighed [2024-01-01...2024-01-07] (new input: weights)" in message


def test_a_name_is_used_but_once(tmp_path):
    deployment = Deployment(load_settings(warehouse=f"{tmp_path}/warehouse"))
    # Commits of a target that is gone: days of another one would be taken for switched over.
    publish_facts(tmp_path, {day(1): "ok"}, backfill_id="v2-1")
    with pytest.raises(TargetError, match="v2 is the name of a backfill or of a target that is"):
        targets.new_target(deployment, "v2", (FACT.name,), _parse_window(DAYS))
    for other in ("v3", "v", "v21"):
        target = targets.new_target(deployment, other, (FACT.name,), _parse_window(DAYS))
        assert target.name == other


@pytest.mark.usefixtures("built_target")
def test_files_that_are_gone_are_not_named(production, new):
    after, at = new(), log_versions(production)
    target = targets.load_target(after.deployment, "v2")
    for place in commit_log.added_files(
        target.table_url(after.deployment, STATE), target.pins[STATE]
    ):
        Path(place).unlink()
    message = after.failure(run_switch_over(after, fails=True))
    assert f"{STATE} [{day(2)}...{day(6)}]: data files that" in message
    assert log_versions(production) == at
    assert not targets.interrupted_switches(after.deployment)


@pytest.mark.usefixtures("built_target")
def test_a_copy_of_the_warehouse_drops_files_of_its_own(production, new, tmp_path):
    shutil.copytree(tmp_path / "here", tmp_path / "copy")
    copy, at = new(AFTER, "copy"), count_files(production)
    assert targets.drop_target(copy.deployment, "v2") == 0
    assert count_files(production) == at
    assert read_scores(production)[2] == 2


@pytest.mark.usefixtures("built_target")
def test_where_commits_are_gone_no_file_is_removed(production, new):
    after = new()
    production.log(SCORES).create_checkpoint()
    for n in range(3):
        (production.warehouse / SCORES / "_delta_log" / f"{n:020d}.json").unlink()
    at = count_files(production)
    targets.drop_target(after.deployment, "v2")
    assert count_files(production) == at
    assert read_scores(production) == {n: n for n in range(1, 7)}


@pytest.mark.slow
@pytest.mark.usefixtures("built_target")
def test_a_switch_over_is_finished_as_it_was_begun(production, new, monkeypatch):
    after = new()
    with monkeypatch.context() as patch:
        real, count = commits.Writer.commit, iter(range(9))

        def commit_or_die(self, *arguments):
            if next(count) == 1:
                raise KilledError
            return real(self, *arguments)

        patch.setattr(commits.Writer, "commit", commit_or_die)
        run_switch_over(after, fails=True)
    with pytest.raises(AssertionError, match="some days of it cannot be undone"):
        run_undo(after, "v2-1", days=str(day(2)))
    # By the code of before, which would switch over other days, or know other tables.
    (request,) = production.tick("switch_overs").run_requests
    finished = production.repository.get_job("switch_over").execute_in_process(
        instance=production.instance,
        run_config=request.run_config,
        tags={**request.tags, "dagster/sensor_name": "switch_overs"},
    )
    assert finished.success
    assert read_scores(production, RANKS) == {1: 1, 2: 20, 3: 30, 4: 40, 5: 40, 6: 40}
    record = read_ledgers(after.deployment)[RANKS].latest[day(2)]
    assert (record.backfill_id, record.by_person) == ("v2-1", True)


def test_versions_are_not_kept_in_the_middle_of_a_backfill(production):
    def kept_versions() -> dict[str, int]:
        production.tick("watch_days")
        return versions_that_belong_together(production.settings.warehouse)

    before = kept_versions()
    assert before[SCORES] == log_versions(production)[SCORES]
    production.run(6, 6, (RAW.name,), tags={"backfill_assets/rewrite": "true"})
    production.instance.add_dynamic_partitions(state_store.ACTIVE, ["one"])
    assert kept_versions() == before
    production.instance.delete_dynamic_partition(state_store.ACTIVE, "one")
    after = kept_versions()
    assert after["raw_orders"] == before["raw_orders"] + 1


@pytest.mark.slow
def test_versions_are_not_kept_of_a_part_of_a_target(production, new):
    def kept_versions() -> dict[str, int]:
        after.tick("watch_days")
        return versions_that_belong_together(production.settings.warehouse)

    after = new()
    build_shadow(after, f"{day(1)}...{day(6)}")
    run_switch_over(after)
    whole = kept_versions()
    assert whole[SCORES] == production.log(SCORES).version()
    run_undo(after, "v2", days=str(day(6)))
    assert read_scores(production) == {**{n: 10 * n for n in range(1, 6)}, 6: 6}
    assert kept_versions() == whole
    # Runs of the new code make the rest as the target has it: it is one state again.
    after.run(6, 6, (SCORES, RANKS, STATE))
    assert not is_mixed(after.deployment)
    assert kept_versions()[SCORES] == production.log(SCORES).version() > whole[SCORES]
