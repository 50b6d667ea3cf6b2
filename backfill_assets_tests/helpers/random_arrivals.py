"""Random arrivals: what a source does to its landing, and what must be in the tables afterwards.

Files are added, also to old folders; replaced by more or by less; touched, renamed, purged; folders
come late or empty; orders move between days. `Truth` keeps what was loaded, by the rules of
DESIGN and without any code of the pipeline.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

from backfill_assets_tests.helpers.orders_model import Model, current_facts, run_model

DAY = timedelta(days=1)
Sums = dict[tuple[date, str], tuple[int, Decimal]]


def order_ids(text: str) -> set[str]:
    """The orders that a file tells of."""
    ids = set()
    for line in text.splitlines():
        try:
            ids.add(json.loads(line)["order_id"])
        except ValueError:
            continue
    return ids


class Source:
    """A source that does what it should not, a day after the other."""

    def __init__(self, landing: Path, start: date, seed: int, *, latest: int = 6) -> None:
        self.landing, self.start, self.latest = landing / "orders", start, latest
        self.landing.mkdir(parents=True, exist_ok=True)
        self.chance = random.Random(seed)
        self.serial = 0
        self.waiting: dict[date, list[tuple[date, list[str]]]] = {}
        self.moved: set[Path] = set()

    def simulate_day(self, today: date) -> None:
        """What comes on a day: its own folder, late ones, and whatever happens to old files."""
        chance = self.chance
        delay = chance.choice([0, 0, 0, 0, 1, 3])
        lines = [self.random_line(today) for _ in range(chance.randint(0, 8))]
        self.waiting.setdefault(today + delay * DAY, []).append((today, lines))
        for folder, texts in self.waiting.pop(today, []):
            self.arrival_folder(folder).mkdir(exist_ok=True)
            if texts:
                self.write_file(self.arrival_folder(folder), texts)
        for folder in self.landed_folders():
            if chance.random() < 0.15:
                day = date.fromisoformat(folder.name.partition("=")[2])
                self.write_file(
                    folder, [self.random_line(day) for _ in range(chance.randint(1, 3))]
                )
        files = sorted(self.landing.glob("*/*.jsonl"))
        for path in chance.sample(files, min(len(files), 2)):
            self.disturb_file(path)

    def disturb_file(self, path: Path) -> None:
        """Something that happens to a file after it has landed."""
        chance, text = self.chance, path.read_text()
        lines = text.splitlines(keepends=True)
        day = date.fromisoformat(path.parent.name.partition("=")[2])
        # A file that was renamed and then changed is a new file beside the rows of the old one,
        # unless its day was loaded in between: which of the two is not for a model to know.
        whole = ["more", "less", "rename"] if path not in self.moved else []
        what = chance.choice([*whole, "touch", "gone", "purge", "tmp", "nothing"])
        if what == "more":
            path.write_text(text + self.random_line(day))
        elif what == "less":
            path.write_text("".join(chance.sample(lines, len(lines) // 2)))
        elif what == "touch":
            os.utime(path, ns=(1, chance.randint(1, 10**18)))
        elif what == "gone":
            path.unlink()
        elif what == "purge":
            shutil.rmtree(path.parent)
        elif what == "rename":
            self.moved.add(path.rename(path.with_name(f"again-{path.name}")))
        elif what == "tmp":
            path.with_name(f"{path.name}.tmp").write_text("half a li")

    def random_line(self, arrival: date) -> str:
        """A version of one of a few orders, late, moved or broken now and then."""
        chance = self.chance
        end = datetime(arrival.year, arrival.month, arrival.day, tzinfo=timezone.utc) + DAY
        late = chance.choice([0, 0, 0, 0, 1, 2, self.latest])
        happened = end - late * DAY - timedelta(minutes=chance.randint(1, 1440))
        early = timedelta(hours=6) if chance.random() < 0.05 else timedelta()
        ingested = happened + (end - happened) * chance.random() + early
        fields = {
            "order_id": f"o{chance.randint(1, 25)}",
            "customer_id": chance.choice(["c1", "c2", None]),
            "order_ts": happened.isoformat(),
            "amount": f"{chance.randint(-300, 2000) / 100:.2f}",
            "ingestion_ts": ingested.isoformat(),
        }
        text = json.dumps(fields)
        return (text[:-5] if chance.random() < 0.04 else text) + "\n"

    def arrival_folder(self, day: date) -> Path:
        """The folder of an arrival day."""
        return self.landing / f"arrival_date={day}"

    def landed_folders(self) -> list[Path]:
        """The folders that are there."""
        return sorted(self.landing.iterdir())

    def write_file(self, folder: Path, lines: Iterable[str]) -> None:
        """Land a new file."""
        self.serial += 1
        (folder / f"part-{self.serial}.jsonl").write_text("".join(lines))


class Truth:
    """What the tables must hold: the landing as it was when it was loaded, never less."""

    def __init__(self, source: Source, root: Path, *, window_days: int, drop: bool) -> None:
        self.source, self.root, self.window_days, self.drop = source, root, window_days, drop
        (root / "orders").mkdir(parents=True)
        self.final: dict[date, Sums] = {}
        self.on_hold: set[str] = set()
        self.settled: set[date] = set()
        self.today = source.start

    def load_landing(self, today: date) -> None:
        """All that lies in the landing is loaded, as of a day's night."""
        self.today = today
        self.on_hold = set()
        landed_names = set()
        for folder in self.source.landed_folders():
            own_folder = self.root / "orders" / folder.name
            own_folder.mkdir(exist_ok=True)
            texts = {path.name: path.read_text() for path in sorted(folder.glob("*.jsonl"))}
            landed_names |= {f"{folder.name}/{name}" for name in texts}
            self._load_folder(own_folder, texts)
        self.model: Model = run_model(
            self.root,
            start=self.source.start,
            end=today,
            window_days=self.window_days,
            timezone="UTC",
        )
        for day in self.closed_days() - self.final.keys():
            self.final[day] = {key: sums for key, sums in self.model.fact.items() if key[0] == day}

    def _load_folder(self, folder: Path, texts: dict[str, str]) -> None:
        loaded_texts = {path.name: path.read_text() for path in sorted(folder.glob("*.jsonl"))}
        new = {name: text for name, text in texts.items() if name not in loaded_texts}
        for name in sorted(loaded_texts.keys() - texts.keys()):
            same = next((n for n in sorted(new) if new[n] == loaded_texts[name]), None)
            if same is not None:  # another name for what is there already
                (folder / name).rename(folder / same)
                del new[same]
        for name, text in texts.items():
            path = folder / name
            if path.exists() and not order_ids(path.read_text()) <= order_ids(text):
                self.on_hold.add(f"{folder.name}/{name}")
            else:
                path.write_text(text)

    def closed_days(self) -> set[date]:
        """The event days of whose window all has come by now, and nothing waits for a person."""
        start = self.source.start
        folders = {path.name for path in (self.root / "orders").iterdir()}
        waits = {date.fromisoformat(name[13:23]) for name in self.on_hold}
        days = [start + n * DAY for n in range((self.today - start).days)]

        def is_settled(day: date) -> bool:
            needed = {day} if day == start else {day, day - DAY}
            all_landed = all(f"arrival_date={d}" in folders for d in needed)
            return all_landed and not needed & waits

        self.settled = {day for day in days if is_settled(day)}
        return {
            day
            for day in days
            if all(day + n * DAY in self.settled for n in range(self.window_days + 1))
        }

    def expected_facts(self) -> Sums:
        """What `fact_daily_orders` must hold: final days as they were when they became final."""
        open_days = {k: sums for k, sums in self.model.fact.items() if k[0] not in self.final}
        return open_days | {
            k: sums for day_sums in self.final.values() for k, sums in day_sums.items()
        }

    def expected_current(self) -> Sums:
        """What `fact_daily_orders_current` must hold."""
        return current_facts(
            self.model.raw,
            start=self.source.start,
            end=self.today,
            window_days=self.window_days,
            timezone="UTC",
            drop=self.drop,
        )
