"""The incident drills: something goes wrong on purpose, and is found, mended and proven.

    python -m backfill_assets_tests.drills doubled      an old job appends days a second time
    python -m backfill_assets_tests.drills targeted     the source delivered bad amounts
    python -m backfill_assets_tests.drills refill       a month is built again, and taken back

Each starts a deployment of its own (engine, daemon, web server), prints a timeline with a
stopwatch, and ends with status 1 if anything does not come about. All that is done to the tables is
done by the project's commands, as a person would.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path
from threading import Event, Thread

import dagster as dg
import pyarrow.compute as pc
import requests
from deltalake import DeltaTable, write_deltalake

from backfill_assets.backfills import lacking_daemons
from backfill_assets.partitions import DAY, Window
from backfill_assets.records import read_ledger
from backfill_assets.schemas import FACT, TABLES
from backfill_assets_tests.killing import kill, processes

PROJECT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
#: Nothing of a drill takes longer, also beside somebody else's Spark.
PATIENCE = 900
LAYERS = ("raw_orders", "raw_orders_rejected", "stg_orders", "late_orders", "fact_daily_orders")


class Drill:
    """A deployment on folders of its own, and the timeline of what happens to it."""

    def __init__(self, root: Path, start: date, days: int) -> None:
        self.root, self.home = root, root / "home"
        self.days = Window(start, start + days * DAY)
        self.home.mkdir(parents=True)
        shutil.copy(PROJECT / "dagster.yaml", self.home)
        self.environment = {
            **os.environ,
            "DAGSTER_HOME": str(self.home),
            "BACKFILL_ASSETS_LANDING": str(root / "landing"),
            "BACKFILL_ASSETS_WAREHOUSE": str(root / "warehouse"),
            "BACKFILL_ASSETS_START": str(start),
            "BACKFILL_ASSETS_END": str(self.days.end),
        }
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        """A line of the timeline."""
        seconds = round(time.monotonic() - self.began)
        print(f"{seconds // 60:3d}:{seconds % 60:02d}  {text}", flush=True)

    def run(self, *command: str, fails: bool = False) -> str:
        """One of the project's commands; what it prints."""
        done = subprocess.run(
            [str(BIN / "backfill-assets"), *command],
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) is fails, f"{command}: {done.stdout}\n{done.stderr[-4000:]}"
        self.say(f"$ backfill-assets {' '.join(command)}{' -> status 1' if fails else ''}")
        return done.stdout

    def shown(self, said: str, *having: str) -> None:
        """The lines of an output that tell."""
        for line in said.splitlines():
            if any(text in line for text in having):
                print(f"           {line.rstrip()}", flush=True)

    @contextmanager
    def deployment(self) -> Iterator[None]:
        """Engine, daemon and web server, until the end of the drill."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with (self.root / "ui.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / "backfill-assets"), "ui", "--port", str(port)],
                env=self.environment,
                cwd=self.root,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            os.environ["DAGSTER_HOME"] = str(self.home)
            self.until(lambda: _answers(port) and not self._lacking())
            self.say("the deployment is up")
            yield
        finally:
            process.terminate()
            process.wait()
            kill(self.home)
            assert processes(self.home) == {}

    def _lacking(self) -> list[str]:
        with dg.DagsterInstance.get() as instance:
            return lacking_daemons(instance)

    def until(self, condition) -> None:
        """Wait for something to come about."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.5)

    def backfill(self, days: Window, *more: str, tables: Sequence[str] = LAYERS) -> str:
        """Plan and launch; the backfill's id."""
        of = [part for name in tables for part in ("--table", name)]
        said = self.run("backfill", str(days), *of, *more)
        self.shown(said, "complete", "Took", "computed")
        return said.splitlines()[0].removeprefix("Plan ").strip()

    def facts(self) -> dict[date, tuple[int, Decimal]]:
        """Rows and revenue by day, as a reader sees them now, without Spark."""
        rows = DeltaTable(self.root / "warehouse" / FACT.name).to_pyarrow_table(
            columns=["run_date", "revenue"]
        )
        sums = rows.group_by("run_date").aggregate([("revenue", "sum"), ("revenue", "count")])
        return {r["run_date"]: (r["revenue_count"], r["revenue_sum"]) for r in sums.to_pylist()}

    def digests(self) -> dict[tuple[str, date], str]:
        """The digest of each published day of each table."""
        ledgers = {
            name: read_ledger(str(self.root / "warehouse" / name), TABLES[name]) for name in LAYERS
        }
        return {(n, d): ledger.content(d) for n, ledger in ledgers.items() for d in ledger.latest}

    def evaluation(self, check: str) -> tuple[bool, str] | None:
        """What a check on the facts as a whole said last."""
        key = dg.AssetCheckKey(dg.AssetKey(FACT.name), check)
        with dg.DagsterInstance.get() as instance:
            log = instance.event_log_storage
            record = log.get_latest_asset_check_execution_by_key([key]).get(key)
        if record is None or record.event is None:
            return None
        said = record.event.dagster_event.event_specific_data
        return said.passed, said.description

    @contextmanager
    def reader(self) -> Iterator[list[dict[date, tuple[int, Decimal]]]]:
        """Somebody who reads the facts all the time: what was seen."""
        seen: list[dict[date, tuple[int, Decimal]]] = []
        enough = Event()

        def read() -> None:
            while not enough.is_set():
                now = self.facts()
                if not seen or seen[-1] != now:
                    seen.append(now)
                enough.wait(0.05)

        thread = Thread(target=read)
        thread.start()
        try:
            yield seen
        finally:
            enough.set()
            thread.join()


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/server_info", timeout=5).ok
    except requests.ConnectionError:
        return False


def total(facts: dict[date, tuple[int, Decimal]], days: Window) -> Decimal:
    """The revenue of some days."""
    return sum((facts[d][1] for d in days), Decimal(0))


def land_orders(drill: Drill, days: Window, name: str, amount: str) -> None:
    """One more order a day, in a file of its own, with the source's control totals to match."""
    for day in days:
        folder = drill.root / "landing" / "orders" / f"arrival_date={day}"
        stamp = f"{day}T11:00:00Z"
        line = {"order_id": f"x-{day}", "customer_id": "c-x", "order_ts": stamp}
        line |= {"amount": amount, "ingestion_ts": stamp}
        before = folder / name
        old = Decimal(json.loads(before.read_text())["amount"]) if before.exists() else None
        before.write_text(json.dumps(line) + "\n")
        control = folder / "_control.json"
        if control.exists():
            said = json.loads(control.read_text())
            rows = said["rows"] + (old is None)
            money = Decimal(said["amount"]) - (old or 0) + Decimal(amount)
            control.write_text(json.dumps({"rows": rows, "amount": str(money)}))


def doubled(root: Path, days: int = 28) -> None:
    """An old append-style job doubles half of the days behind the pipeline's back."""
    drill = Drill(root, date(2024, 1, 1), days)
    drill.run("sample", "--days", str(days))
    with drill.deployment():
        drill.backfill(drill.days, "--reason", "first load")
        right = drill.facts()
        first = drill.days.start + days // 4 * DAY
        hit = Window(first, first + days // 2 * DAY)
        drill.say(f"INCIDENT: an old job appends {hit} of {FACT.name} once more")
        table = DeltaTable(root / "warehouse" / FACT.name)
        rows = table.to_pyarrow_table()
        again = rows.filter((pc.field("run_date") >= hit.start) & (pc.field("run_date") < hit.end))
        write_deltalake(table, again, mode="append")
        drill.say(
            f"readers see {total(drill.facts(), hit)} of revenue on these days, "
            f"where {total(right, hit)} is right"
        )
        drill.until(lambda: (drill.evaluation("days") or (True, ""))[0] is False)
        said = (drill.evaluation("days") or (True, ""))[1]
        drill.say(f"DETECTED: the check `days` of {FACT.name} fails:")
        drill.shown(said, str(hit))
        assert str(hit) in said
        said = drill.run("verify", str(drill.days), "--table", FACT.name, fails=True)
        drill.shown(said, "another writer", "DIFFERS", "differs")
        said = drill.run("history", FACT.name)
        drill.shown(said, "another writer")
        assert str(hit) in said
        mended = drill.backfill(drill.days, "--pilot-days", "1", "--reason", "doubled by a job")
        said = drill.run("reconcile", mended)
        drill.shown(said, "verdict", f"{len(hit)} changed")
        assert f"{len(hit)} changed" in said
        drill.run("verify", str(drill.days))
        assert drill.facts() == right
        drill.say(f"REPAIRED: {total(right, hit)} of revenue on these days again, no other changed")


def targeted(root: Path, days: int = 20) -> None:
    """Five days are built again after bad amounts in the source, under the eyes of a reader."""
    drill = Drill(root, date(2025, 1, 1), days)
    drill.run("sample", "--days", str(days))
    hit = Window(date(2025, 1, 10), date(2025, 1, 15))
    land_orders(drill, hit, "source.jsonl", "1000000.00")
    with drill.deployment():
        drill.backfill(drill.days, "--reason", "first load")
        bad = drill.facts()
        drill.say(f"INCIDENT: the source sent a bad amount on each day of {hit}; it sends again")
        land_orders(drill, hit, "source.jsonl", "10.00")
        with drill.reader() as seen:
            mended = drill.backfill(hit, "--pilot-days", "1", "--reason", "bad amounts")
        good = drill.facts()
        wrong = Decimal("999990.00")
        for day in drill.days:
            less = wrong if day in hit else Decimal(0)
            assert (good[day][0], good[day][1] + less) == bad[day], day
            assert {state.get(day) for state in seen} <= {bad[day], good[day]}, day
        drill.say(
            f"the reader saw {len(seen)} states of the table, in each of them every day whole: "
            "either as it was or as it is right"
        )
        said = drill.run("reconcile", mended)
        drill.shown(said, "verdict", f"{FACT.name}: ")
        drill.run("verify", str(hit))


def refill(root: Path, days: int = 31) -> None:
    """All layers of a month are built again from files that turn out wrong, and taken back."""
    drill = Drill(root, date(2024, 1, 1), days)
    drill.run("sample", "--days", str(days))
    with drill.deployment():
        drill.backfill(drill.days, "--reason", "first load")
        before, right = drill.digests(), drill.facts()
        drill.say("a new delivery for all days of the month, which will turn out wrong")
        land_orders(drill, drill.days, "delivery.jsonl", "77777.00")
        id_ = drill.backfill(drill.days, "--pilot-days", "2", "--reason", "new delivery")
        said = drill.run("reconcile", id_)
        drill.shown(said, "verdict", f"{FACT.name}: ")
        assert total(drill.facts(), drill.days) - total(right, drill.days) == days * 77777
        drill.say("INCIDENT: the delivery was wrong, take all of it back")
        with drill.reader() as seen:
            drill.run("undo", id_, "--reason", "wrong delivery")
        assert drill.digests() == before
        assert drill.facts() == right
        assert all(state.keys() == right.keys() for state in seen)
        drill.say(
            f"TAKEN BACK: {len(before)} days of {len(LAYERS)} tables are what they were, digest "
            f"by digest; a reader saw {len(seen)} states, each of them whole"
        )


DRILLS = {drill.__name__: drill for drill in (doubled, targeted, refill)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run drills in a temporary folder, one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("drills", nargs="*", help=f"of {', '.join(DRILLS)} (all)")
    names = parser.parse_args(arguments).drills
    if unknown := set(names) - DRILLS.keys():
        parser.error(f"no such drill: {', '.join(unknown)}")
    for name in names or DRILLS:
        with tempfile.TemporaryDirectory(prefix="drill-") as root:
            print(f"\n--- {name}: {DRILLS[name].__doc__}", flush=True)
            DRILLS[name](Path(root))
    return 0


if __name__ == "__main__":
    sys.exit(main())
