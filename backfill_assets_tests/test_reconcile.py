"""What a backfill is told to have done, against its plan and code, over ledgers made by hand."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgspec

from backfill_assets.audit.verdicts import DayContent
from backfill_assets.backfills.backfill_plan import BackfillPlan, BackfillRequest, TableForecast
from backfill_assets.backfills.changes import changed_days_by_table
from backfill_assets.backfills.diff import DayDiff, TableDiff, as_table, report_values
from backfill_assets.backfills.reconcile import (
    CodeProvenance,
    ReconcileResult,
    code_provenance,
    compare_with_plan,
    encode_result,
    find_final_days_behind,
    find_mixed_backfills,
    find_replaced_days,
    reconcile_facts,
    reconcile_report,
)
from backfill_assets.delta.records import (
    ACCEPTED_CODE,
    CommitRecord,
    ExternalCommit,
    Provenance,
    PublishedDay,
)
from backfill_assets.orders.tables import FACT, LATE, RAW, STAGED
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets_tests.helpers.invented_logs import (
    days,
    ledger,
    ledgers,
    make_raw_record,
    record,
    snapshot_ledgers,
)
from backfill_assets_tests.helpers.invented_states import POLICY, TODAY, make_healthy_ledgers
from backfill_assets_tests.helpers.pipeline import day


def config_record(digest: str, *numbers: int, version: int = 0) -> CommitRecord:
    return record(version, days(*numbers), backfill="abc-rest", config_digest=digest)


def test_tables_have_configurations_of_their_own():
    all_ledgers = ledgers(
        ledger(RAW, config_record("r", 1, 2)),
        ledger(STAGED, config_record("w", 1, 2)),
        ledger(FACT, config_record("w", 1, 2)),
    )
    assert find_mixed_backfills(all_ledgers) == []
    proof = code_provenance(all_ledgers, "abc")
    assert proof.problems == []
    assert proof.config_digests == {RAW.name: ["r"], STAGED.name: ["w"], FACT.name: ["w"]}


def test_two_configurations_in_one_table():
    all_ledgers = ledgers(
        ledger(RAW, config_record("r", 1, 2)),
        ledger(STAGED, config_record("w", 1), config_record("v", 2, version=1)),
    )
    (problem,) = find_mixed_backfills(all_ledgers)
    assert "configuration w made stg_orders [2024-01-01]; code code with configuration v" in problem
    assert code_provenance(all_ledgers, "abc").problems == [
        "its days of stg_orders carry 2 configurations: v, w"
    ]


def test_days_that_were_made_again_are_no_longer_mixed():
    rebuild = record(2, days(1, 2), backfill="def", config_digest="v")
    all_ledgers = ledgers(
        ledger(STAGED, config_record("w", 1), config_record("v", 2, version=1), rebuild)
    )
    assert find_mixed_backfills(all_ledgers) == []


def test_a_backfill_by_several_codes_names_the_days_of_each():
    by_day = {
        "old": {RAW.name: [day(1), day(2)], FACT.name: [day(4)]},
        "new": {RAW.name: [day(3)]},
    }
    digests = {RAW.name: ["r"], STAGED.name: ["v", "w"], FACT.name: ["a", "b", "c"]}
    assert CodeProvenance(by_day, frozenset(), digests).problems == [
        "its days carry 2 code versions: old made raw_orders [2024-01-01...2024-01-02], "
        "fact_daily_orders [2024-01-04]; new made raw_orders [2024-01-03]",
        "its days of stg_orders carry 2 configurations: v, w",
        "its days of fact_daily_orders carry 3 configurations: a, b, c",
    ]


def test_the_provenance_of_a_backfill_is_that_of_each_of_its_days():
    """Of a restored day, its rows' code and settings; of an accepted one, the accepted code."""
    restored = PublishedDay(1, "d", "ok", made_under="v", provenance=Provenance("older"))
    own_record = msgspec.structs.replace(
        config_record("w", 1, 2),
        days={day(1): PublishedDay(1, "d", "ok"), day(2): restored},
        git_commit="0123456789abcdef",
        git_dirty=True,
    )
    accepted_since = msgspec.structs.replace(
        record(2, days(3), kind=ACCEPTED_CODE), code_version="accepted"
    )
    all_ledgers = ledgers(
        ledger(RAW, record(0, days(1), backfill="another", config_digest="x")),
        ledger(STAGED, own_record),
        ledger(FACT, config_record("w", 2), config_record("w", 1, 3, version=1), accepted_since),
    )
    provenance = code_provenance(all_ledgers, "abc")
    assert provenance == CodeProvenance(
        {
            "code": {STAGED.name: [day(1)], FACT.name: [day(2), day(1)]},
            "older": {STAGED.name: [day(2)]},
            "accepted": {FACT.name: [day(3)]},
        },
        frozenset(
            [
                "code (commit 0123456789, with uncommitted changes)",
                "older (commit unknown)",
                "code (commit unknown)",
            ]
        ),
        {STAGED.name: ["v", "w"], FACT.name: ["w"]},
    )
    assert code_provenance(all_ledgers, "nobody") == CodeProvenance({}, frozenset(), {})


def with_code(code: str, of_record: CommitRecord) -> CommitRecord:
    return msgspec.structs.replace(of_record, code_version=code)


def test_a_mixed_backfill_names_what_each_code_and_configuration_made():
    """Stages are of one backfill; those that only one code and configuration made are left out."""
    stage = {"backfill": "b-002", "config_digest": "w"}
    all_ledgers = ledgers(
        ledger(
            STAGED,
            record(0, days(1, 2), backfill="b-001", config_digest="w"),
            with_code("new", record(1, days(3), **stage)),
            record(2, days(8), backfill="whole-rest", config_digest="v"),
            record(3, days(9), config_digest="v"),
            with_code("new", record(4, days(10), config_digest="v")),
        ),
        ledger(
            FACT,
            record(0, days(1), backfill="b-001", config_digest="w"),
            record(1, days(6, 7), backfill="a", config_digest="v"),
            record(2, days(7), backfill="a", config_digest="w"),
            with_code("new", record(3, days(8), backfill="whole-rest", config_digest="v")),
        ),
    )
    whole = ledgers(*all_ledgers.values())
    whole[FACT.name] = ledger(FACT, *all_ledgers[FACT.name].records[:3])
    mixed = [
        "backfill a: code code with configuration v made fact_daily_orders [2024-01-06]; "
        "code code with configuration w made fact_daily_orders [2024-01-07]",
        "backfill b: code code with configuration w made "
        "stg_orders [2024-01-01...2024-01-02], fact_daily_orders [2024-01-01]; "
        "code new with configuration w made stg_orders [2024-01-03]",
    ]
    assert find_mixed_backfills(whole) == mixed
    # Other code in another table is another code too; another configuration there is not.
    assert find_mixed_backfills(all_ledgers) == [
        *mixed,
        "backfill whole: code code with configuration v made stg_orders [2024-01-08]; "
        "code new with configuration v made fact_daily_orders [2024-01-08]",
    ]


def test_days_that_were_undone_or_changed_since_are_told_by_table():
    own = {"backfill": "b-rest"}
    undo = record(2, days(1, 2), undoes="b", as_of={"0": ["2024-01-01...2024-01-02"]})
    undone = ledger(
        STAGED,
        record(0, days((1, 3)), digest="old"),
        record(1, days((1, 3)), digest="new", **own),
        undo,
    )
    changed = ledger(
        FACT,
        record(0, days((1, 4)), **own),
        record(2, days(2)),
        external=[ExternalCommit(1, "UPDATE", days(2, 3)), ExternalCommit(3, "UPDATE", days(4))],
    )
    both = ledger(
        RAW,
        record(0, days(1, 2), digest="old"),
        record(1, days(1, 2), digest="new", **own),
        record(2, days(1), undoes="b", as_of={"0": ["2024-01-01"]}),
        external=[ExternalCommit(3, "DELETE", days(2))],
    )
    all_ledgers = ledgers(undone, changed, both, ledger(LATE, record(0, days(1), **own)))
    changes = changed_days_by_table(all_ledgers, "b")
    assert [*find_replaced_days(all_ledgers, "b", changes)] == [
        "raw_orders [2024-01-01] has been undone since",
        "raw_orders [2024-01-02] has been changed by another writer since",
        "stg_orders [2024-01-01...2024-01-02] has been undone since",
        "fact_daily_orders [2024-01-03...2024-01-04] has been changed by another writer since",
    ]
    # Of a table without changes, only other writers are told of.
    del changes[STAGED.name], changes[RAW.name], changes[FACT.name]
    assert [*find_replaced_days(all_ledgers, "b", changes)] == [
        "raw_orders [2024-01-02] has been changed by another writer since",
        "fact_daily_orders [2024-01-03...2024-01-04] has been changed by another writer since",
    ]
    assert [*find_replaced_days(all_ledgers, "another", {})] == []


def make_plan(**outlooks: TableForecast) -> BackfillPlan:
    return BackfillPlan(
        id="plan",
        parameters=BackfillRequest(days="2024-01-01...2024-01-09"),
        code_version="c",
        code="c",
        config_digest="d",
        versions={},
        landing="",
        tables=outlooks,
        files=1,
        size=1,
        commits=1,
        runs=1,
        seconds=None,
    )


def test_what_became_of_planned_days_is_counted_by_their_planned_outcome():
    """A day counts as written if one commit of the backfill wrote it, whatever another did."""
    own = {"backfill": "plan-rest"}
    unwritten = msgspec.structs.replace(record(2, days((3, 5)), **own), written_days=days(5))
    all_ledgers = ledgers(
        ledger(
            FACT,
            record(0, days(9), backfill="another"),
            record(1, days((1, 3)), **own),
            unwritten,
            msgspec.structs.replace(record(3, days(1), **own), written_days=days()),
        ),
        ledger(STAGED, record(0, days(1, 2), **own)),
    )
    outlooks = {
        STAGED.name: TableForecast(computed=("2024-01-01...2024-01-02",)),
        FACT.name: TableForecast(
            identical=("2024-01-06...2024-01-07",),
            computed=("2024-01-01...2024-01-05", "2024-01-08"),
            depends=("2024-01-09",),
        ),
    }
    assert [*compare_with_plan(make_plan(**outlooks), all_ledgers)] == [
        ("stg_orders", "2 computed", "2 written"),
        ("fact_daily_orders", "2 identical", "2 left alone"),
        (
            "fact_daily_orders",
            "6 computed",
            "4 written, 1 computed with the rows that were there, 1 left alone",
        ),
        ("fact_daily_orders", "1 depends on its input", "1 left alone"),
    ]


def test_final_days_behind_a_backfill_are_those_that_read_what_it_changed():
    """No schedule builds them. Final days behind somebody else's commit are not its concern."""
    raw = ledger(
        RAW,
        make_raw_record(0, days((1, 10))),
        msgspec.structs.replace(make_raw_record(1, days(2), touches=days(2)), backfill_id="b-rest"),
        make_raw_record(2, days(3), touches=days(3)),
        msgspec.structs.replace(make_raw_record(3, days(9), touches=days(9)), backfill_id="b-rest"),
    )
    all_ledgers = make_healthy_ledgers() | {RAW.name: raw}
    behind = find_stale_days(snapshot_ledgers(all_ledgers, POLICY, TODAY))
    assert behind.final[STAGED.name].keys() == days(2, 3)
    assert behind.open[STAGED.name].keys() >= days(9)
    snapshot = snapshot_ledgers(all_ledgers, POLICY, TODAY)
    assert find_final_days_behind(snapshot, "b") == {STAGED.name: [day(2)]}
    assert find_final_days_behind(snapshot, "another") == {}


def make_result(**changes: Any) -> ReconcileResult:
    figures = DayContent(2, {"orders": 3, "revenue": Decimal("1.50")}, "0" * 64, 2)
    table_diff = TableDiff(FACT, [DayDiff(day(1), (None, 4), None, figures)])
    provenance = CodeProvenance(
        {}, frozenset(["new", "code"]), {RAW.name: ["r"], STAGED.name: ["v", "w"], FACT.name: ["r"]}
    )
    return replace(ReconcileResult("b", [table_diff], provenance, [], []), **changes)


WHOLE = make_result()
PROBLEMATIC = make_result(
    problems=["its days carry 2 codes", "a day is missing"],
    plan_error="plan b cannot be read",
    plan_results=[("fact_daily_orders", "2 computed", "1 written, 1 left alone")],
    final_days_behind={FACT.name: [day(1), day(2)], STAGED.name: [day(4)]},
)


def test_the_facts_of_a_reconciliation_begin_with_its_verdict():
    made_by = [
        ("made by code", "code"),
        ("made by code", "new"),
        ("configuration", "r: raw_orders, fact_daily_orders"),
        ("configuration", "v, w: stg_orders"),
    ]
    assert [*reconcile_facts(WHOLE)] == [("verdict", "all of it is there, and adds up"), *made_by]
    assert [*reconcile_facts(PROBLEMATIC)] == [
        ("verdict", "its days carry 2 codes; a day is missing"),
        ("plan", "plan b cannot be read"),
        (
            "final days behind",
            "fact_daily_orders [2024-01-01...2024-01-02] read its days, and only a person builds "
            "final days: backfill-assets backfill 2024-01-01...2024-01-02 "
            "--select fact_daily_orders",
        ),
        (
            "final days behind",
            "stg_orders [2024-01-04] read its days, and only a person builds final days: "
            "backfill-assets backfill 2024-01-04 --select stg_orders",
        ),
        ("planned for fact_daily_orders", "2 computed: 1 written, 1 left alone"),
        *made_by,
    ]


def test_the_report_of_a_reconciliation_has_a_table_for_each_diff():
    report = reconcile_report(WHOLE)
    assert report.facts == tuple(reconcile_facts(WHOLE))
    assert report.tables == (as_table(WHOLE.reports[0]),)
    assert report.notes == ()


def test_a_reconciliation_is_encoded_with_its_verdict_and_with_details_if_asked_for():
    report = reconcile_report(WHOLE)
    summary = {
        "backfill": "b",
        "verdict": "all of it is there, and adds up",
        "good": True,
        "problems": [],
    }
    assert encode_result(WHOLE, report, details=False) == {
        "summary": summary,
        "report": report.to_json(),
        "details": {},
    }
    assert encode_result(WHOLE, report, details=True) == {
        "summary": summary,
        "report": report.to_json(),
        "details": {
            "code": ["code", "new"],
            "configuration": {RAW.name: ["r"], STAGED.name: ["v", "w"], FACT.name: ["r"]},
            **report_values(WHOLE.reports),
        },
    }
    assert encode_result(PROBLEMATIC, report, details=False)["summary"] == {
        "backfill": "b",
        "verdict": "its days carry 2 codes; a day is missing",
        "good": False,
        "problems": ["its days carry 2 codes", "a day is missing"],
        "plan": "plan b cannot be read",
    }
