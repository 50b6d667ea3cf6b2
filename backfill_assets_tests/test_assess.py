"""Why a day is computed, why it cannot be, and whether it is final: over ledgers made by hand."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

import msgspec
import pytest

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.calendar.reach import Reach
from backfill_assets.delta.commits import PublishError
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import ACCEPTED_CODE, CommitRecord, ExternalCommit, Provenance
from backfill_assets.landing.load_manifest import NO_FOLDER
from backfill_assets.orders.tables import CURRENT, FACT, LATENESS, RAW, REJECTED, STAGED
from backfill_assets.staleness import assess as assess_module
from backfill_assets.staleness.assess import (
    Obstacle,
    assess,
    days_on_hold,
    new_input_reason,
    recompute_reason,
    refuse_other_code,
)
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Dependency, Table
from backfill_assets_guide.examples.customers.lifetime_value import customer_lifetime_value
from backfill_assets_tests.helpers.invented_logs import (
    days,
    ledger,
    ledgers,
    make_raw_record,
    record,
    snapshot_ledgers,
)
from backfill_assets_tests.helpers.pipeline import START, day

POLICY = Policy(START, None, window_days=2, lag_days=1, corrects=True, only_touched=True)

# --- why a day is computed ------------------------------------------------------------------------


def snapshot_table(
    own: Ledger,
    inputs: Iterable[Ledger] = (),
    *,
    code: str = "code",
    settings: str = "config",
    change: str = "",
    input_digests: Mapping[date, str] | None = None,
) -> Snapshot:
    """A table and its inputs, whose other inputs are empty, by the code and settings of now."""
    name = own.table.name
    return replace(
        snapshot_ledgers(ledgers(*inputs, own), POLICY),
        code_versions={name: code},
        config_digests={name: settings},
        changes={name: {day(1): change}},
        digests={name: input_digests} if input_digests else {},
    )


def find_reason(own: Ledger, *inputs: Ledger, requested: bool = False, change: str = "") -> str:
    """Why the first day is computed, if the input digest of its inputs is `input_digest`."""
    snapshot = snapshot_table(own, inputs, change=change)
    return recompute_reason(snapshot, own.table.name, day(1), "input_digest", requested)


def set_input_digest(
    published: CommitRecord, input_digest: str = "input_digest", **changed
) -> CommitRecord:
    """A record of days that were made of this."""
    day_details = {
        d: msgspec.structs.replace(x, input_digest=input_digest) for d, x in published.days.items()
    }
    return msgspec.structs.replace(published, days=day_details, **changed)


def external_commit(version: int, *numbers: int) -> ExternalCommit:
    return ExternalCommit(version, "DELETE", days(*numbers))


#: The ledger of `fact_daily_orders`, or its one record, by why its first day is computed.
LEDGERS: Mapping[str, Ledger] = {
    "": ledger(FACT, set_input_digest(record(3, days(1)))),
    "never published": ledger(FACT, set_input_digest(record(3, days(2)))),
    "external commit": ledger(
        FACT, set_input_digest(record(3, days(1))), external=[external_commit(4, 1)]
    ),
    "new input: stg_orders": ledger(FACT, set_input_digest(record(3, days(1)), "another")),
    "input not on record": ledger(FACT, set_input_digest(record(3, days(1)), "")),
    "other code": ledger(FACT, set_input_digest(record(3, days(1)), code_version="old")),
    "other settings": ledger(FACT, set_input_digest(record(3, days(1)), config_digest="old")),
    "new input: stg_orders; other code; other settings": ledger(
        FACT,
        set_input_digest(record(3, days(1)), "another", code_version="old", config_digest="old"),
    ),
}
STAGING = ledger(STAGED, set_input_digest(record(1, days(1))))


@pytest.mark.parametrize("reason", LEDGERS)
def test_the_reason(reason):
    assert find_reason(LEDGERS[reason], STAGING) == reason


@pytest.mark.parametrize("reason", LEDGERS)
def test_who_asks_for_a_day_is_the_reason_only_without_another(reason):
    assert find_reason(LEDGERS[reason], STAGING, requested=True) == (reason or "asked for")


def test_rows_that_nobody_recorded():
    fact_ledger = ledger(FACT, set_input_digest(record(3, days(1))))
    unrecorded = Ledger(FACT, 3, (), (), fact_ledger.measured)
    assert find_reason(unrecorded) == "rows without a record"


def test_a_day_that_was_taken_back_counts_as_never_published():
    undo_record = msgspec.structs.replace(record(4, ()), revoked_days=days(1))
    fact_ledger = Ledger(FACT, 4, [set_input_digest(record(3, days(1))), undo_record])
    assert find_reason(fact_ledger) == "never published"


def test_a_day_that_was_never_published_tells_only_that_its_folder_is_missing():
    raw = ledger(RAW)
    assert find_reason(raw, change=NO_FOLDER) == f"never published; {NO_FOLDER}"
    assert find_reason(raw, change="other content") == "never published"


def test_the_input_that_is_new_is_named():
    lateness_record = set_input_digest(
        record(3, days(1), inputs={RAW.name: 5, REJECTED.name: 2}), "another"
    )
    rejected = ledger(REJECTED, record(2, days(1)))
    #: A commit that found the rows that were there, and one that did not.
    same, new = record(6, days(1), digest="digest 5"), record(7, days(1))
    for raw, names in (
        (ledger(RAW, record(5, days(1)), same), "new input"),
        (ledger(RAW, record(5, days(1)), same, new), "new input: raw_orders"),
        (
            ledger(RAW, record(5, days(1)), external=[external_commit(6, 1)]),
            "new input: raw_orders",
        ),
    ):
        assert find_reason(ledger(LATENESS, lateness_record), rejected, raw) == names


def test_who_knows_better_what_is_new_is_heard():
    for reason in ("new input: stg_orders", "input not on record"):
        assert find_reason(LEDGERS[reason], change="new files") == "new files"
    assert find_reason(LEDGERS["other code"], change="new files") == "other code"
    assert find_reason(LEDGERS[""], change="new files") == ""


def test_the_name_of_each_changed_input_is_in_the_reason():
    built = set_input_digest(record(3, days(1), inputs={RAW.name: 5}), "another")
    changed = ledger(RAW, record(6, days(1)))
    # It is not among the inputs that the record names.
    unnamed = ledger(REJECTED, record(0, days(1)))
    lateness = ledger(LATENESS, built)
    inputs = [changed, unnamed, ledger(STAGED)]
    assert find_reason(lateness, *inputs) == "new input: raw_orders_rejected, raw_orders"
    # Inputs without days are named after the others.
    whole = replace(lateness, references={"countries": "version 2", "rates": "version 7"})
    assert find_reason(whole, *inputs) == (
        "new input: raw_orders_rejected, raw_orders, countries, rates"
    )
    assert find_reason(whole) == "new input: countries, rates"


def test_new_input_is_named_as_far_as_it_is_known():
    assert new_input_reason([]) == "new input"
    assert new_input_reason(["a"]) == "new input: a"
    assert new_input_reason(["a", "b"]) == "new input: a, b"


def test_a_person_who_asks_for_new_files_gives_them_as_the_reason():
    assert find_reason(LEDGERS[""], requested=True, change="new files") == "new files"


def test_each_day_of_a_run_has_its_own_reason():
    """Only what must be computed is in the result; unless it is asked for."""
    current = set_input_digest(record(3, days((1, 4)), inputs={STAGED.name: 0}))
    facts = ledger(FACT, current)
    input_digests = {
        day(1): "input_digest",
        day(2): "other",
        day(3): "other",
        day(5): "input_digest",
    }
    staged = ledger(STAGED, record(1, days((1, 9))))

    def find_reasons(requested: Container[date] = (), **now: str) -> dict[int, str]:
        snapshot = snapshot_table(facts, [staged], input_digests=input_digests, **now)
        assessments = assess(snapshot, FACT.name, input_digests, requested=requested)
        assert not any(
            a.obstacle or a.on_hold or a.follows_previous_day for a in assessments.values()
        )
        return {(d - START).days + 1: a.reason for d, a in assessments.items() if a.reason}

    new = dict.fromkeys((2, 3), "new input: stg_orders")
    assert find_reasons() == {**new, 5: "never published"}
    assert find_reasons(days(1, 2, 4)) == {1: "asked for", **new, 5: "never published"}
    assert find_reasons(code="newer")[1] == "other code"
    assert find_reasons(settings="newer")[1] == "other settings"


def test_other_code_is_told_by_what_differs_if_that_is_on_record(monkeypatch):
    parts = {"newer": {"RATE": "0.19"}, "other": {}}
    monkeypatch.setattr(assess_module, "parts_of_version", parts.__getitem__)
    built = set_input_digest(record(3, days(1)), code_version="old", code_parts={"RATE": "0.21"})
    snapshot = snapshot_table(ledger(FACT, built), code="newer")
    reason = recompute_reason(snapshot, FACT.name, day(1), "input_digest")
    assert reason.startswith("other code: ")
    assert "0.21 → 0.19" in reason
    unknown = snapshot_table(ledger(FACT, set_input_digest(built, code_parts={})), code="other")
    assert recompute_reason(unknown, FACT.name, day(1), "input_digest") == "other code"


def test_a_day_is_not_built_without_a_whole_table_that_it_reads():
    facts = replace(ledger(FACT), references={"rates": None, "countries": None, "markets": "1"})
    staged = ledger(STAGED, record(1, days((1, 9))))
    obstacles = {
        assessment.obstacle
        for assessment in assess(snapshot_table(facts, [staged]), FACT.name, days(1, 2)).values()
    }
    assert obstacles == {Obstacle("there is no table rates, countries")}


# --- days that a person put on hold ---------------------------------------------------------------


def hold_days(table: Table, input_digests: Mapping[int, str], *published: int) -> Ledger:
    """Some days are taken back, and wait as long as their inputs have these input digests."""
    holds = {str(day(n)): input_digest for n, input_digest in input_digests.items()}
    undo = record(1, (), on_hold=holds)
    undo = msgspec.structs.replace(undo, revoked_days=days(*input_digests))
    return ledger(table, undo, record(2, days(*published)))


def held_numbers(held: Ledger, input_digests: Mapping[int, str]) -> set[int]:
    by_day = {day(n): input_digest for n, input_digest in input_digests.items()}
    return {(d - START).days + 1 for d in days_on_hold(held, by_day)}


def test_a_day_stays_on_hold_while_its_inputs_are_those_that_gave_the_rejected_rows():
    held = hold_days(FACT, {1: "a", 2: "b", 3: "c", 5: "e"}, 5)
    assert held_numbers(held, {1: "a", 2: "other", 3: "c", 4: "d", 5: "e"}) == {1, 3}
    assert held_numbers(held, {2: "b", 4: "d"}) == {2}
    assert held_numbers(held, {}) == set()
    assert held_numbers(ledger(FACT, record(0, days(1))), {1: "a"}) == set()


def test_days_of_a_stateful_table_stay_on_hold_behind_one_that_does():
    """They were built from it, so that their own input digests are those of rows that are gone."""
    held = hold_days(customer_lifetime_value, {1: "a", 2: "b", 3: "c", 5: "e", 6: "f"})
    others = dict.fromkeys(range(1, 8), "other")
    assert held_numbers(held, {**others, 1: "a"}) == {1, 2, 3}
    assert held_numbers(held, {**others, 2: "b"}) == {2, 3}
    assert held_numbers(held, {**others, 6: "f"}) == {6}
    assert held_numbers(held, others) == set()
    # Of another table each day is judged alone.
    facts = hold_days(FACT, {1: "a", 2: "b", 3: "c"})
    assert held_numbers(facts, {**others, 1: "a"}) == {1}


# --- one backfill, one code -----------------------------------------------------------------------

#: What a run of a backfill is about to record of itself.
RUNNING = {
    "backfill_id": "bf-1",
    "code_version": "facts 2",
    "release": "all 2",
    "config_digest": "settings 2",
}


def backfill_record(version: int, *numbers: int, backfill: str = "bf-1", **more) -> CommitRecord:
    """A commit that a backfill made with the code and settings of `RUNNING`, unless told else."""
    current = {"code_version": "facts 2", "release": "all 2", "config_digest": "settings 2"}
    made = record(version, days(*numbers), backfill=backfill)
    return msgspec.structs.replace(made, **{**current, **more})


def refusal(
    own: Ledger, running: Mapping[str, str], inputs: Sequence[tuple[Ledger, str]] = ()
) -> str:
    """Why a run of three days is refused; empty if it is not."""
    try:
        refuse_other_code(own, Window(day(1), day(4)), running, inputs)
    except PublishError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "records",
    [
        [],
        [backfill_record(1, 1, 2)],
        # What other backfills and runs published may be of any code.
        [backfill_record(1, 1, 2), backfill_record(2, 3, backfill="bf-2", release="all 3")],
        [backfill_record(1, 1, 2, backfill=None, config_digest="settings 1")],
        # A commit of before there were releases, of days that a person has accepted since.
        [
            backfill_record(1, 1, code_version="facts 1", release="all 1"),
            msgspec.structs.replace(
                backfill_record(2, 1, backfill=None),
                details=msgspec.structs.replace(record(2, ()).details, kind=ACCEPTED_CODE),
            ),
        ],
    ],
)
def test_a_backfill_goes_on_with_the_code_and_settings_that_it_began_with(records):
    assert refusal(ledger(FACT, *records), RUNNING) == ""


def test_a_run_of_no_backfill_may_have_any_code():
    own = ledger(FACT, backfill_record(1, 1, backfill=None, release="all 1"))
    assert refusal(own, {**RUNNING, "backfill_id": None}) == ""
    assert refusal(own, {key: RUNNING[key] for key in ("code_version", "config_digest")}) == ""


ADVICE = (
    "Nothing was written. Put back what was deployed and launch what is missing and failed again, "
    "or launch all of its days as a new backfill. If the new code makes the same rows, "
    "`backfill-assets accept-code` says so for the days that are published."
)


@pytest.mark.parametrize(
    ("changed", "code", "settings"),
    [
        ({"release": "all 1"}, "all 1", "settings 2"),
        ({"config_digest": "settings 1"}, "all 2", "settings 1"),
        ({"release": "", "code_version": "facts 1"}, "facts 1", "settings 2"),
    ],
)
@pytest.mark.parametrize("later", [[], [backfill_record(2, 3, backfill="bf-2")]])
def test_a_backfill_is_not_continued_with_other_code_or_settings(changed, code, settings, later):
    own = ledger(FACT, backfill_record(1, 1, 2, **changed), *later)
    assert refusal(own, RUNNING) == (
        "fact_daily_orders [2024-01-01...2024-01-03]: backfill bf-1 has published "
        f"2024-01-01...2024-01-02 of fact_daily_orders with code {code} and configuration "
        f"{settings}, and this run has all 2 and settings 2. {ADVICE}"
    )


def test_without_a_release_the_code_of_the_table_is_compared():
    running = {key: text for key, text in RUNNING.items() if key != "release"}
    own = ledger(FACT, backfill_record(1, 1, release=""))
    assert refusal(own, running) == ""
    assert "and this run has facts 3 and settings 2." in refusal(
        own, {**running, "code_version": "facts 3"}
    )


def test_each_input_is_held_to_its_own_settings():
    """A backfill has published days of the input as well, under the settings that decide these."""
    own = ledger(FACT, backfill_record(1, 1))
    staged = ledger(STAGED, backfill_record(4, 1, 3, config_digest="settings of staging"))
    assert refusal(own, RUNNING, [(staged, "settings of staging")]) == ""
    assert refusal(own, RUNNING, [(ledger(RAW), "any"), (staged, "newer ones")]) == (
        "fact_daily_orders [2024-01-01...2024-01-03]: backfill bf-1 has published 2024-01-01, "
        "2024-01-03 of stg_orders with code all 2 and configuration settings of staging, and this "
        f"run has all 2 and newer ones. {ADVICE}"
    )


# --- days that an input lacks ---------------------------------------------------------------------


class RequiredReach(Reach):
    """All days that are read are required."""

    def required_days(self, day: date) -> Sequence[date]:
        return [*self.input_days(Window(day, day + DAY))]


@dataclass(frozen=True)
class InputDays:
    """An input of which `lasting` days decide a day."""

    ledger: Ledger
    lasting: int

    @property
    def dependency(self) -> Dependency:
        return Dependency(self.ledger.table, RequiredReach(before=self.lasting - 1))


def input_of(
    table: Table, *published: int, other_settings: Sequence[int] = (), lasting: int = 1
) -> InputDays:
    """An input of whose days some were made under other settings, and `lasting` are read."""
    records = [record(0, days(*published)), record(1, days(*other_settings), config_digest="old")]
    return InputDays(ledger(table, *records), lasting)


def problems(
    *inputs: InputDays, failed: Mapping[str, Collection[date]] | None = None
) -> dict[int, str]:
    """By number of a day of the first four, why it cannot be built."""
    snapshot = Snapshot(
        Graph({}, POLICY),
        {FACT.name: ledger(FACT), **{x.ledger.table.name: x.ledger for x in inputs}},
        config_digests={STAGED.name: "config", CURRENT.name: "config"},
        failed=failed or {},
        asset_inputs={FACT.name: tuple(x.dependency for x in inputs)},
    )
    assessments = assess(snapshot, FACT.name, Window(day(1), day(5)))
    assert all(a.reason == "never published" for a in assessments.values())
    return {(d - START).days + 1: a.obstacle.text for d, a in assessments.items() if a.obstacle}


OTHER_SETTINGS = "was made under other settings; rebuild these days first"


def test_nothing_is_lacking_where_all_input_days_are_published():
    assert problems() == {}
    assert problems(input_of(STAGED, 1, 2, 3, 4), input_of(CURRENT, 1, 2, 3, 4)) == {}


def test_a_day_that_an_input_lacks_is_not_an_empty_one():
    assert problems(input_of(STAGED, 1, 3), input_of(CURRENT, 1, 2, 3)) == {
        2: "stg_orders[2024-01-02] has never been published",
        4: "fact_daily_orders_current[2024-01-04] has never been published",
    }
    # Days of the table itself are built in order; what is read besides is asked for as ever.
    assert problems(input_of(FACT), input_of(STAGED, 1, 3, 4)) == {
        2: "stg_orders[2024-01-02] has never been published"
    }
    # All days that are lacking are named.
    assert problems(input_of(STAGED, 0, 2, 3, lasting=2)) == {
        1: "stg_orders[2024-01-01] has never been published",
        2: "stg_orders[2024-01-01] has never been published",
        4: "stg_orders[2024-01-04] has never been published",
    }
    assert problems(input_of(STAGED, 1, 4, lasting=3))[3] == (
        "stg_orders[2024-01-02...2024-01-03] has never been published"
    )


def test_a_day_that_just_failed_upstream_is_not_replaced_by_its_older_rows():
    staged = input_of(STAGED, 0, 1, 2, 3, lasting=2)
    failed = {STAGED.name: days(2), CURRENT.name: days((1, 4))}
    assert problems(staged, failed=failed) == {
        2: "stg_orders[2024-01-02] failed in this run",
        3: "stg_orders[2024-01-02] failed in this run",
        # It failed as well, or was never built: what is not there is said.
        4: "stg_orders[2024-01-04] has never been published",
    }
    assert problems(input_of(STAGED, 1), failed={STAGED.name: days((2, 4))})[2] == (
        "stg_orders[2024-01-02] failed in this run"
    )


def test_input_days_of_other_settings_are_rebuilt_first():
    mixed = input_of(STAGED, 0, 1, 2, 3, 4, other_settings=[2, 3], lasting=2)
    assert problems(mixed) == {
        2: f"stg_orders[2024-01-02] {OTHER_SETTINGS}",
        3: f"stg_orders[2024-01-02...2024-01-03] {OTHER_SETTINGS}",
        4: f"stg_orders[2024-01-03] {OTHER_SETTINGS}",
    }


def test_what_is_lacking_is_said_before_what_has_other_settings():
    """Whichever input comes first; of two with other settings, the first one is named."""
    mixed = input_of(STAGED, 1, 3, other_settings=[2, 4])
    known = input_of(CURRENT, 1, 3, other_settings=[4])
    lacking = "fact_daily_orders_current[2024-01-02] has never been published"
    for inputs, first in (((mixed, known), STAGED), ((known, mixed), CURRENT)):
        assert problems(*inputs) == {
            2: lacking,
            4: f"{first.name}[2024-01-04] {OTHER_SETTINGS}",
        }
    assert problems(mixed, known, failed={STAGED.name: days(4)})[4] == (
        "stg_orders[2024-01-04] failed in this run"
    )


# --- days that are final --------------------------------------------------------------------------

#: The windows of days 1 to 3 close: the first with version 3, the others with versions 4 and 5.
LOG = ledger(RAW, *(make_raw_record(n, days(n)) for n in range(1, 6)))


def final_numbers(*known: Ledger) -> dict[str, set[int]]:
    """The numbers of the final days, by name of the tables that have such days."""
    result = snapshot_ledgers(ledgers(*known), POLICY).final_by_table
    # What is known of a day may always change, and so may what is kept by log day.
    assert result.keys() == {STAGED.name, FACT.name}
    return {name: {(d - START).days + 1 for d in found} for name, found in result.items() if found}


def test_days_are_final_whose_records_say_so_or_that_a_log_has_closed():
    staged = ledger(STAGED, record(0, days((1, 4)), inputs={RAW.name: 5}))
    facts = ledger(FACT, record(0, days((2, 5)), inputs={STAGED.name: 0}, final=days(5)))
    assert final_numbers(LOG, staged, facts) == {STAGED.name: {1, 2, 3}, FACT.name: {2, 3, 5}}


def test_the_last_commit_that_changed_a_day_before_its_window_closed_decides():
    """Day 1 is changed by versions 1 and 2, and closes with version 3; version 4 comes later."""
    log = ledger(
        RAW,
        make_raw_record(1, days(1)),
        make_raw_record(2, days(2), days(1, 2)),
        make_raw_record(3, days(3)),
        make_raw_record(4, days(2), days(1)),
    )
    by_version = {
        built: final_numbers(log, ledger(STAGED, record(0, days(1), inputs={RAW.name: built})))
        for built in (0, 1, 2, 3, 4)
    }
    assert [built for built, final in by_version.items() if final] == [2, 3, 4]
    # A record that does not name the log was made of an unknown version.
    assert final_numbers(log, ledger(STAGED, record(0, days(1)))) == {}
    assert final_numbers(LOG, ledger(STAGED, record(0, days(1)))) == {}


def test_a_day_that_no_commit_changed_is_final_if_it_was_built_when_its_window_had_closed():
    log = ledger(RAW, make_raw_record(2, days((1, 3)), ()))
    for built, final in ((1, {}), (2, {STAGED.name: {1}}), (3, {STAGED.name: {1}})):
        staged = ledger(STAGED, record(0, days(1), inputs={RAW.name: built}))
        assert final_numbers(log, staged) == final


def staged_twice(first: int, second: int, *, same: bool, version: int = 1) -> Ledger:
    """Day 1, staged from two versions of the log, perhaps with the same rows."""
    digests = ("rows", "rows" if same else "other rows")
    return ledger(
        STAGED,
        record(0, days(1), inputs={RAW.name: first}, digest=digests[0]),
        record(version, days(1), inputs={RAW.name: second}, digest=digests[1]),
    )


@pytest.mark.parametrize(
    ("first", "second", "same", "facts_of", "is_final"),
    [
        # Of version 0 of staging, which is not final; version 1 has the same rows, and is.
        (0, 5, True, 0, True),
        (0, 5, False, 0, False),
        (0, 0, True, 0, False),
        # Of version 1.
        (0, 5, False, 1, True),
        (5, 0, False, 1, False),
        # Rows that were final once, and are the same since, are not asked for again.
        (5, 0, True, 0, True),
        (5, 0, True, 1, False),
        # Of a staging of before there was such a day.
        (5, 5, True, -1, False),
        (5, 5, True, 7, True),
    ],
)
def test_facts_are_final_if_the_rows_that_they_were_made_of_are(
    first, second, same, facts_of, is_final
):
    staged = staged_twice(first, second, same=same)
    facts = ledger(FACT, record(0, days(1), inputs={STAGED.name: facts_of}))
    assert (FACT.name in final_numbers(LOG, staged, facts)) is is_final


def test_a_day_that_was_taken_back_does_not_count_as_it_was_before():
    """Facts of it are not final, though their input was when they were built."""
    first = record(0, days(1), inputs={RAW.name: 5})
    facts = ledger(FACT, record(0, days(1), inputs={STAGED.name: 0}))
    assert final_numbers(LOG, ledger(STAGED, first), facts) == {STAGED.name: {1}, FACT.name: {1}}
    undo = msgspec.structs.replace(record(1, ()), revoked_days=days(1))
    again = record(3, days(1), inputs={RAW.name: 0})
    assert final_numbers(LOG, ledger(STAGED, first, undo, again), facts) == {}
    second_undo = msgspec.structs.replace(undo, version=2)
    assert final_numbers(LOG, ledger(STAGED, first, undo, second_undo, again), facts) == {}


def test_rows_that_an_undo_has_put_back_are_as_final_as_they_were():
    """The commit of the undo reads the log as it is; the rows were made of an older one."""
    restored = record(0, days(1, 2), inputs={RAW.name: 5})
    of_before = Provenance(code_version="code", inputs={RAW.name: 0})
    published = msgspec.structs.replace(restored.days[day(1)], provenance=of_before)
    restored = msgspec.structs.replace(restored, days={**restored.days, day(1): published})
    facts = ledger(FACT, record(0, days(1, 2), inputs={STAGED.name: 0}))
    assert final_numbers(LOG, ledger(STAGED, restored), facts) == {
        STAGED.name: {2},
        FACT.name: {2},
    }
