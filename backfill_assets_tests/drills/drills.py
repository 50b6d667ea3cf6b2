"""The incident drills: something goes wrong on purpose, and is found, mended and proven.

    make drill                   all of them, one after another
    make drill ARGS=targeted     the source delivered bad amounts
    make drill ARGS=doubled      an old job appends days a second time
    make drill ARGS=refill       all days are built again, and taken back

On a deployment of its own (engine, daemons, web server) with sample orders. Whatever is done to the
tables but for the incident itself is done by the project's commands, as a person would. A timeline
is printed, in minutes and seconds; the status is 1 if anything does not come about.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path
from threading import Event, Thread

import dagster as dg
from deltalake import DeltaTable

from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.states import DayState
from backfill_assets.orders.tables import FACT, LATE, RAW, REJECTED, STAGED, TABLES
from backfill_assets.settings import load_settings
from backfill_assets_guide.drills.breaking import Facts, append_again, read_facts, send_orders
from backfill_assets_tests.helpers.deployment import ServedDeployment
from backfill_assets_tests.helpers.pipeline import LAYERS

#: Nothing of a drill takes longer, also beside somebody else's Spark.
PATIENCE = 900
CALENDAR = Window.parse("2025-01-01...2025-01-31")
#: The days on which the source sends bad amounts, and those that the old job doubles.
BAD = Window.parse("2025-01-10...2025-01-14")
DOUBLED = Window.parse("2025-01-15...2025-01-28")
WRONG, RIGHT = Decimal("1000000.00"), Decimal("10.00")

#: Of what a command prints, so many of the lines that tell are shown.
_MOST = 9


class Drill:
    """A deployment on folders of its own, and the timeline of what happens to it."""

    def __init__(self, root: Path, calendar: Window, *, short: bool = False) -> None:
        """On the days of a calendar.

        Args:
            root: a folder for all of it.
            calendar: the days.
            short: fewer tables, and fewer pilots.
        """
        self.days, self.short = calendar, short
        self.tables = LAYERS if short else tuple(TABLES)
        self.settings = load_settings(
            landing=str(root / "landing"),
            warehouse=str(root / "warehouse"),
            start=calendar.start,
            end=calendar.end,
        )
        self.deployment = ServedDeployment(root, self.settings)
        self.began = time.monotonic()

    def __enter__(self) -> Drill:
        """With the calendar's days published."""
        try:
            self.run_command("sample", "--days", str(len(self.days)))
            land_orders(self, BAD, "source.jsonl", WRONG)
            self.deployment.wait_for_daemons()
            self.print_text("the deployment is up")
            self.run_backfill(self.create_plan(self.days, "first load"))
        except BaseException:
            self.deployment.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.deployment.stop()

    def print_text(self, text: str) -> None:
        """A line of the timeline."""
        seconds = round(time.monotonic() - self.began)
        print(f"{seconds // 60:3d}:{seconds % 60:02d}  {text}", flush=True)

    def run_command(self, *command: str, fails: bool = False) -> str:
        """One of the project's commands; what it prints."""
        process = self.deployment.run(*command)
        output = f"{process.stdout}\n{process.stderr[-4000:]}"
        assert (process.returncode != 0) is fails, (
            f"{command}, status {process.returncode}: {output}"
        )
        quoted = (f'"{part}"' if " " in part else part for part in command)
        self.print_text(f"$ backfill-assets {' '.join(quoted)}{'    (status 1)' if fails else ''}")
        return process.stdout

    def print_note(self, text: str) -> None:
        """A line beside the timeline."""
        print(f"         {text}", flush=True)

    def note_lines(self, output: str, *having: str) -> None:
        """The lines of an output that tell, each once."""
        lines = [line.rstrip() for line in output.splitlines() if any(h in line for h in having)]
        lines = list(dict.fromkeys(lines))
        more = len(lines) - _MOST
        for line in lines[:_MOST] + [f"... and {more} lines like these"] * (more > 0):
            self.print_note(line)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait for something to come about."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.5)

    def run_backfill(self, id_: str) -> None:
        """Launch a plan, final days included, and see it through."""
        output = self.run_command("backfill", id_, "--yes")
        self.note_lines(output, "did not pass", "complete", "Took")

    def create_plan(self, days: Window, reason: str, pilot: int = 0) -> str:
        """Plan days; the plan's id."""
        pilots = ["--pilot-days", str(pilot)] if pilot else []
        output = self.run_command(
            "plan", str(days), *pilots, "--reason", reason, "--full", *self._table_options
        )
        self.note_lines(output, " computed ", " depends on ")
        match = re.search(r"backfill-assets backfill (\w+)", output)
        assert match, output
        return match[1]

    @property
    def _table_options(self) -> list[str]:
        return [part for name in self.tables for part in ("--table", name)]

    def run_verify(self, days: Window, *, fails: bool = False) -> str:
        """Days computed again and compared."""
        return self.run_command("verify", str(days), *self._table_options, fails=fails)

    def run_reconcile(self, id_: str) -> str:
        """The account of a backfill."""
        output = self.run_command("reconcile", id_)
        self.note_lines(output, *(f"{name}: " for name in TABLES), "verdict")
        return output

    def read_facts(self) -> Facts:
        """Orders and revenue by day, as a reader sees them now, without Spark."""
        return read_facts(self.settings.table(FACT.name))

    def keys_twice(self) -> int:
        """How many rows of the facts have a key that another has."""
        key = [FACT.partition, *FACT.key]
        rows = DeltaTable(self.settings.table(FACT.name)).to_pyarrow_table(columns=key)
        return rows.num_rows - rows.group_by(key).aggregate([]).num_rows

    def read_digests(self) -> dict[tuple[str, date], str]:
        """What each published day of each table of the drill holds."""
        ledgers = read_ledgers(Deployment(self.settings))
        return {
            (name, d): ledgers[name].content_key(d)
            for name in self.tables
            for d in ledgers[name].latest
        }

    def days_check(self) -> str:
        """What the check `days` of the facts said last."""
        key = dg.AssetCheckKey(dg.AssetKey(FACT.name), "days")
        with self.deployment.instance() as instance:
            log = instance.event_log_storage
            record = log.get_latest_asset_check_execution_by_key([key]).get(key)
        if record is None or record.event is None or record.event.dagster_event is None:
            return ""
        return record.event.dagster_event.asset_check_evaluation_data.description or ""

    @contextmanager
    def watch_facts(self) -> Iterator[list[Facts]]:
        """Somebody who reads the facts all the time: all that was seen."""
        snapshots: list[Facts] = []
        enough = Event()

        def poll_facts() -> None:
            while not enough.is_set():
                now = self.read_facts()
                if not snapshots or snapshots[-1] != now:
                    snapshots.append(now)
                enough.wait(0.05)

        thread = Thread(target=poll_facts)
        thread.start()
        try:
            yield snapshots
        finally:
            enough.set()
            thread.join()


def total_revenue(facts: Facts, days: Window) -> Decimal:
    """The revenue of some days."""
    return sum((facts[d][1] for d in days), Decimal(0))


def land_orders(drill: Drill, days: Window, name: str, amount: Decimal) -> None:
    """One more order a day, in a file of its own, with the source's control totals to match."""
    send_orders(Path(drill.settings.landing), days, name, amount)


def read_balance(drill: Drill) -> tuple[str, int]:
    """What the source says it sent against the orders of the facts, and how many are too many."""
    expectations = {}
    for table in (RAW, REJECTED, STAGED, LATE):
        ledger = read_ledgers(Deployment(drill.settings))[table.name]
        days = [record.days[day] for day, record in ledger.latest.items()]
        expectations[table.name] = {
            entry: sum(int(day.entries.get(entry, 0)) for day in days)
            for entry in ("landed", "rejected", "superseded", "late")
        }
    # Where a day has a control total, the audit has held what landed against it.
    landed, rejected = expectations[RAW.name]["landed"], expectations[REJECTED.name]["rejected"]
    superseded, late = expectations[STAGED.name]["superseded"], expectations[LATE.name]["late"]
    right = landed - rejected - superseded - late
    orders = sum(count for count, _ in drill.read_facts().values())
    text = (
        f"the source's control totals: {landed:,} lines; {rejected} rejected, {superseded} "
        f"superseded, {late} late: {right:,} orders. {FACT.name} has {orders:,}"
    )
    return text, orders - right


def targeted(drill: Drill) -> None:
    """The source sent a bad amount on each of five days; they are built again before a reader."""
    bad = drill.read_facts()
    drill.print_text(f"INCIDENT: an order of {WRONG:,} on each day of {BAD}; {RIGHT} is right")
    land_orders(drill, BAD, "source.jsonl", RIGHT)
    drill.print_text("the source has sent these days again")
    id_ = drill.create_plan(BAD, "bad amounts in the source", 0 if drill.short else 1)
    with drill.watch_facts() as snapshots:
        drill.run_backfill(id_)
    good = drill.read_facts()
    for day in drill.days:
        less = WRONG - RIGHT if day in BAD else Decimal(0)
        assert (good[day][0], good[day][1] + less) == bad[day], day
        assert {state.get(day) for state in snapshots} <= {bad[day], good[day]}, day
    drill.print_text(
        f"REPAIRED: the revenue of {BAD} is {total_revenue(good, BAD):,}, was "
        f"{total_revenue(bad, BAD):,}; a reader saw {len(snapshots)} states of the table, in each "
        "of them every day as it was or right"
    )
    drill.run_reconcile(id_)
    drill.run_verify(BAD)


def doubled(drill: Drill) -> None:
    """An old append-style job doubles days of the facts behind the pipeline's back."""
    right = drill.read_facts()
    hit = Window(DOUBLED.start, min(DOUBLED.end, drill.days.end))
    drill.print_note(read_balance(drill)[0])
    append_again(drill.settings.table(FACT.name), FACT.partition, hit)
    drill.print_text(f"INCIDENT: an old job has appended {hit} of {FACT.name} once more")
    happened = time.monotonic()
    now = drill.read_facts()
    drill.print_text(
        f"readers see {total_revenue(now, hit):,} of revenue, where {total_revenue(right, hit):,} "
        "is right"
    )
    state_text = f"{DayState.EXTERNAL.value}: {hit}"
    drill.wait_until(lambda: state_text in drill.days_check())
    drill.print_text(
        f"DETECTED after {time.monotonic() - happened:.0f} seconds, by the check `days`, which "
        "would have been so after the first of these days:"
    )
    drill.note_lines(drill.days_check().replace(" (", "\n"), state_text)
    text, too_many = read_balance(drill)
    drill.print_note(f"{text}: {too_many:,} too many")
    assert too_many == sum(right[day][0] for day in hit)
    twice = drill.keys_twice()
    drill.print_note(
        f"{twice:,} rows have a key that is there already; through the pipeline, `unique_key` and "
        "`conservation` would not have let one of these days be published"
    )
    assert twice > 0
    output = drill.run_command("history", FACT.name)
    drill.note_lines(output, "another writer")
    assert str(hit) in output
    output = drill.run_verify(hit, fails=True)
    drill.note_lines(output, f"{FACT.name}[")
    id_ = drill.create_plan(drill.days, "doubled by an old job", 1)
    drill.run_backfill(id_)
    drill.run_reconcile(id_)
    wrote = [
        r
        for r in read_ledgers(Deployment(drill.settings))[FACT.name].records
        if (r.backfill_id or "").startswith(id_)
    ]
    assert {d for r in wrote for d in r.rewritten_days} == {*hit}
    drill.run_verify(hit)
    assert drill.read_facts() == right
    assert read_balance(drill)[1] == drill.keys_twice() == 0
    drill.print_note(read_balance(drill)[0])
    drill.wait_until(lambda: DayState.EXTERNAL.value not in drill.days_check())
    drill.print_text(
        f"REPAIRED: revenue of {hit} is {total_revenue(right, hit):,}; no other day was written, "
        "and the check `days` finds no other writer any more"
    )


def refill(drill: Drill) -> None:
    """All layers of all days are built again from a wrong delivery, and taken back."""
    before, right = drill.read_digests(), drill.read_facts()
    land_orders(drill, drill.days, "delivery.jsonl", Decimal("77777.00"))
    drill.print_text("one more order landed for every day, which will turn out wrong")
    id_ = drill.create_plan(drill.days, "new delivery", 0 if drill.short else 2)
    drill.run_backfill(id_)
    drill.run_reconcile(id_)
    wrong = total_revenue(drill.read_facts(), drill.days) - total_revenue(right, drill.days)
    assert wrong == len(drill.days) * 77777
    drill.print_text(
        f"INCIDENT: the delivery was wrong by {wrong:,}; all of it is to go, and nothing else"
    )
    with drill.watch_facts() as snapshots:
        drill.run_command("undo", id_, "--reason", "wrong delivery")
    assert drill.read_digests() == before
    assert drill.read_facts() == right
    assert all(state.keys() == right.keys() for state in snapshots)
    drill.print_text(
        f"TAKEN BACK: {len(before)} days of {len(drill.tables)} tables are what they were, "
        f"digest by digest; a reader saw {len(snapshots)} states of the facts, each of them whole"
    )


DRILLS = {drill.__name__: drill for drill in (targeted, doubled, refill)}


def run_drills(names: Sequence[str], root: Path, calendar: Window, *, short: bool = False) -> None:
    """Some drills, one after another, on one deployment."""
    with Drill(root, calendar, short=short) as drill:
        for name in names:
            print(f"\n--- {name}: {DRILLS[name].__doc__}\n", flush=True)
            DRILLS[name](drill)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run drills in a temporary folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("drills", nargs="*", help=f"of {', '.join(DRILLS)} (all)")
    names = parser.parse_args(arguments).drills
    if unknown := set(names) - DRILLS.keys():
        parser.error(f"no such drill: {', '.join(unknown)}")
    with tempfile.TemporaryDirectory(prefix="drill-") as root:
        run_drills(names or list(DRILLS), Path(root), CALENDAR)
    return 0


if __name__ == "__main__":
    sys.exit(main())
