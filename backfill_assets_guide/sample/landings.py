"""Sample landings: invented orders with late lines and their expected result, and the CDNOW data.

The expected result is computed from the invented lines, not from the files, and shares no code with
the pipeline: so it is an independent check.

CDNOW is a public data set of real purchases. Its totals are known, so the fact table can be
compared with them.
"""

import gzip
import io
import json
import random
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DAY = timedelta(days=1)
#: The name of the source, which is its folder in the landing.
SOURCE = "orders"


@dataclass(frozen=True)
class Line:
    """One line of a landing file; it must be rejected if it has a `trouble`."""

    arrival: date
    order_id: str
    customer_id: str | None
    order_ts: datetime
    amount: Decimal
    ingestion_ts: datetime
    trouble: str | None = None
    detail: int = 0  # which variant of the trouble

    @property
    def event_day(self) -> date:
        """The day of the order, in UTC, which is the business time zone of the sample."""
        return self.order_ts.date()

    @property
    def log_day(self) -> date:
        """The log day: the arrival day, or the day of a later event or version time."""
        return max(self.arrival, self.event_day, self.ingestion_ts.date())

    @property
    def version_key(self) -> tuple[object, ...]:
        """The sort key of the versions of one order."""
        customer = (self.customer_id is not None, (self.customer_id or "").encode())
        version_time = max(self.order_ts, self.ingestion_ts)
        return (
            version_time, self.log_day, self.order_ts, self.ingestion_ts, self.amount, customer,
        )  # fmt: skip


def start_of(day: date) -> datetime:
    """The first moment of a day."""
    return datetime.combine(day, time(), tzinfo=timezone.utc)


def end_of(day: date) -> datetime:
    """The last millisecond of a day."""
    return start_of(day + DAY) - timedelta(milliseconds=1)


# Shares of the orders with each property; malformed lines are added to the orders of a day.
_NO_CUSTOMER = 0.02
_LATE_IN_WINDOW = 0.05
_LATE_BEYOND_WINDOW = 0.005
_RESENT = 0.02
_CORRECTED = 0.02
_EARLY = 0.003
_MALFORMED = 0.005
_REFUND = 0.005
_TROUBLES = ("broken", "missing", "bad number", "bad timestamp", "future")


@dataclass
class Emitter:
    """Generates orders, and the lines by which each of them arrives in the landing."""

    rng: random.Random
    start: date
    days: int
    orders_per_day: int
    window_days: int
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last = self.start + (self.days - 1) * DAY
        # Integer Zipf weights: the k-th customer orders in proportion to 1/k.
        population = max(20, 5 * self.orders_per_day)
        self.customer_weights = list(accumulate(10**9 // k for k in range(1, population + 1)))

    def emit_lines(self) -> list[Line]:
        """All lines of all files, in no defined order."""
        for offset in range(self.days):
            day = self.start + offset * DAY
            for number in range(self.orders_per_day):
                self._emit_order(day, f"o-{day:%Y%m%d}-{number:06d}")
            self._emit_malformed_lines(day)
        return self.lines

    def _emit_order(self, day: date, order_id: str) -> None:
        """Add the lines of an order: its first one, repeats of it, and corrections.

        An order that would arrive after the last day has no lines.
        """
        rng = self.rng
        order_ts = self._random_moment(day)
        roll = rng.random()
        if roll < _LATE_BEYOND_WINDOW:
            line = self._delayed_line(order_id, order_ts, self.window_days + 1 + rng.randrange(5))
        elif roll < _LATE_BEYOND_WINDOW + _LATE_IN_WINDOW and self.window_days:
            line = self._delayed_line(order_id, order_ts, 1 + rng.randrange(self.window_days))
        elif 1 - roll < _EARLY and day < self.last:
            line = self._early_line(order_id, day)
        else:
            line = self._prompt_line(order_id, order_ts)
        if line.arrival > self.last:
            return
        self.lines.append(line)
        if rng.random() < _RESENT:
            # Exactly the same line again: same content, same or later folder.
            resent_day = line.arrival + rng.choice((0, 0, 1, 2, 3)) * DAY
            self.lines.append(replace(line, arrival=min(resent_day, self.last)))
        while rng.random() < _CORRECTED:
            corrected = self._corrected_line(line)
            if corrected is None:
                break
            self.lines.append(corrected)
            line = corrected

    def _prompt_line(self, order_id: str, order_ts: datetime) -> Line:
        """A line ingested within minutes, in the folder of the day of ingestion."""
        latency = timedelta(milliseconds=self.rng.randrange(200, 5 * 60_000))
        ingestion_ts = min(order_ts + latency, end_of(self.last))
        return self._new_line(ingestion_ts.date(), order_id, order_ts, ingestion_ts)

    def _delayed_line(self, order_id: str, order_ts: datetime, delay: int) -> Line:
        """A line in a later folder: ingested late, or ingested at once and shipped late."""
        arrival = order_ts.date() + delay * DAY
        if self.rng.random() < 0.5:
            return self._new_line(arrival, order_id, order_ts, self._random_moment(arrival))
        ingestion_ts = order_ts + timedelta(seconds=self.rng.randrange(1, 3600))
        return self._new_line(arrival, order_id, order_ts, ingestion_ts)

    def _early_line(self, order_id: str, day: date) -> Line:
        """A line in today's folder with a version time on the next day."""
        midnight = start_of(day + DAY)
        ingestion_ts = midnight + timedelta(seconds=self.rng.randrange(1, 300))
        # Half of the events are before midnight; the other half have a clock that is ahead.
        shift = self.rng.choice((-1, 1)) * timedelta(seconds=self.rng.randrange(1, 60))
        return self._new_line(day, order_id, midnight + shift, ingestion_ts)

    def _corrected_line(self, line: Line) -> Line | None:
        """A later version of the order; None if it would arrive after the last day."""
        rng = self.rng
        # Counted from the ingestion, not the arrival: a correction may overtake what it corrects.
        since = line.ingestion_ts + timedelta(seconds=1)
        arrival = since.date() + rng.choice((0, 0, 1, 1, 2, 3, self.window_days + 1)) * DAY
        if arrival > self.last:
            return None
        kind = rng.choice(("amount", "customer", "day"))
        corrected = line
        if kind == "day":
            moved = line.event_day + rng.choice((-3, -2, -1, 1, 2, 3)) * DAY
            if not self.start <= moved <= arrival:
                kind = "amount"
            else:
                moved_ts = datetime.combine(moved, line.order_ts.timetz())
                corrected = replace(line, order_ts=moved_ts)
        if kind == "customer":
            corrected = replace(line, customer_id=self._random_customer())
        if kind == "amount":
            corrected = replace(line, amount=self._random_amount())
        earliest = max(since, corrected.order_ts, start_of(arrival))
        room = max((end_of(arrival) - earliest) // timedelta(milliseconds=1), 0)
        ingestion_ts = earliest + timedelta(milliseconds=rng.randrange(room + 1))
        return replace(corrected, arrival=arrival, ingestion_ts=ingestion_ts)

    def _emit_malformed_lines(self, day: date) -> None:
        """Add lines that must be rejected, in the folder of the day."""
        rng = self.rng
        share = _MALFORMED * self.orders_per_day
        count = int(share) + (rng.random() < share % 1)
        for number in range(count):
            moment = self._random_moment(day)
            order_id = f"x-{day:%Y%m%d}-{number:04d}"
            trouble = rng.choice(_TROUBLES)
            ingestion_ts = moment
            if trouble == "future":
                # The id of a real order, which this line must not replace.
                order_id = f"o-{day:%Y%m%d}-{rng.randrange(self.orders_per_day):06d}"
                ingestion_ts = moment + (2 + rng.randrange(400)) * DAY
            line = self._new_line(day, order_id, moment, ingestion_ts)
            self.lines.append(replace(line, trouble=trouble, detail=rng.randrange(60)))

    def _new_line(
        self, arrival: date, order_id: str, order_ts: datetime, ingestion_ts: datetime
    ) -> Line:
        """Draw the customer, then the amount: another order changes the sample of a seed."""
        return Line(
            arrival,
            order_id,
            self._random_customer(),
            order_ts,
            self._random_amount(),
            ingestion_ts,
        )

    def _random_moment(self, day: date) -> datetime:
        # The sum of two uniform draws: quiet nights, busy noons.
        half = 43_200_000
        milliseconds = self.rng.randrange(half) + self.rng.randrange(half)
        return start_of(day) + timedelta(milliseconds=milliseconds)

    def _random_customer(self) -> str | None:
        if self.rng.random() < _NO_CUSTOMER:
            return None
        draw = self.rng.randrange(self.customer_weights[-1])
        rank = bisect_right(self.customer_weights, draw) + 1
        # One regular customer whose id needs quoting and is not plain ASCII.
        return 'Zoë "Z", Köln' if rank == 5 else f"c-{rank:06d}"

    def _random_amount(self) -> Decimal:
        cents = self.rng.randrange(499, 5000) * self.rng.choice((1, 1, 1, 2, 2, 3, 5, 12))
        if self.rng.random() < _REFUND:
            cents = -cents
        return Decimal(cents).scaleb(-2)


_FIELDS = ("order_id", "customer_id", "order_ts", "amount", "ingestion_ts")
_REQUIRED = ("order_id", "order_ts", "amount", "ingestion_ts")

# Files take their format from this list in turn, so that a short run has all of them, too.
FORMATS = (
    "jsonl", "csv", "jsonl", "parquet", "jsonl", "jsonl.gz", "jsonl", "csv.gz", "json", "parquet",
    "jsonl", "jsonl.gz",
)  # fmt: skip
_CRLF_FILE = 1
_BOM_FILE = 2
_PARQUET_OF_STRINGS_FILE = 9

_PARQUET_TYPES = {
    "order_id": pa.string(),
    "customer_id": pa.string(),
    "order_ts": pa.timestamp("us", tz="UTC"),
    "amount": pa.decimal128(18, 2),
    "ingestion_ts": pa.timestamp("us", tz="UTC"),
}
_BAD_NUMBERS = ("12.345", "abc", "1e17", "12,50", "NaN")
_BAD_TIMESTAMPS = ("2024-02-30T10:00:00Z", "yesterday", "2024-01-15T25:00:00Z", "15/01/2024")


def render_file(suffix: str, lines: list[Line], file_number: int, rng: random.Random) -> bytes:
    """The bytes of one landing file."""
    kind = suffix.removesuffix(".gz")
    if kind == "parquet":
        return _render_parquet(lines, file_number)
    if kind == "csv":
        texts = _csv_lines(lines, file_number, rng)
        if suffix == "csv.gz":
            texts.insert(1 + len(texts) // 2, texts[0])  # two exports in one: a second header line
    else:
        texts = [_json_line(line, file_number) for line in lines]
    if kind == "json":
        texts.append("")  # a blank last line
    end = "\r\n" if file_number == _CRLF_FILE else "\n"
    data = "".join(text + end for text in texts).encode()
    if file_number == _BOM_FILE:
        data = b"\xef\xbb\xbf" + data
    return gzip.compress(data, mtime=0) if suffix.endswith(".gz") else data


def _text_cells(line: Line, file_number: int) -> dict[str, str | None]:
    """The fields as text, None if missing; the trouble `broken` is left to the caller."""
    cells = {
        "order_id": line.order_id,
        "customer_id": line.customer_id,
        "order_ts": _format_timestamp(line.order_ts, file_number),
        "amount": str(line.amount),
        "ingestion_ts": _format_timestamp(line.ingestion_ts, file_number),
    }
    if line.trouble == "missing":
        cells[_REQUIRED[line.detail % len(_REQUIRED)]] = None
    elif line.trouble == "bad number":
        cells["amount"] = _BAD_NUMBERS[line.detail % len(_BAD_NUMBERS)]
    elif line.trouble == "bad timestamp":
        name = ("order_ts", "ingestion_ts")[line.detail % 2]
        cells[name] = _BAD_TIMESTAMPS[line.detail % len(_BAD_TIMESTAMPS)]
    return cells


def _format_timestamp(moment: datetime, file_number: int) -> str:
    """A timestamp in the notation of this file."""
    style = file_number % 4
    if style == 1:
        return moment.astimezone(timezone(timedelta(hours=2))).isoformat()
    if style == 2:
        return moment.replace(tzinfo=None).isoformat(sep=" ")
    return moment.replace(tzinfo=None).isoformat() + "Z"


def _json_line(line: Line, file_number: int) -> str:
    """A line in the notation of its file: numbers or strings, null or no field; or broken JSON."""
    cells = _text_cells(line, file_number)
    parts = []
    for name, text in cells.items():
        if text is None and (name != "customer_id" or file_number % 3 == 0):
            continue
        # Amounts are numbers in most files and strings in the others.
        is_number = name == "amount" and file_number % 3 and text not in ("abc", "12,50")
        value = text if is_number else json.dumps(text, ensure_ascii=file_number % 2 == 0)
        parts.append(f'"{name}": {value}')
    if file_number % 5 == 0:
        parts.append('"channel": {"name": "web", "tags": []}')  # an unknown field
    text = "{" + ", ".join(parts) + "}"
    if line.trouble == "broken":
        variants = (text[: len(text) // 2], text + "}", f"[{text}]", text + text)
        return variants[line.detail % len(variants)]
    return text


def _csv_lines(lines: list[Line], file_number: int, rng: random.Random) -> list[str]:
    """The header and lines; columns in random order, with an unknown one in every other file."""
    columns = [*_FIELDS, "channel"] if file_number % 2 else list(_FIELDS)
    rng.shuffle(columns)
    texts = [",".join(columns)]
    for line in lines:
        cells = {**_text_cells(line, file_number), "channel": "web"}
        values = [_quote_csv(cells[name] or "") for name in columns]
        text = ",".join(values)
        if line.trouble == "broken":
            variants = (",".join(values[:-1]), text + ",", '"' + text.replace('"', ""))
            text = variants[line.detail % len(variants)]
        texts.append(text)
    return texts


def _quote_csv(text: str) -> str:
    if any(mark in text for mark in ',"'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _render_parquet(lines: list[Line], file_number: int) -> bytes:
    """A Parquet file; in typed columns, all malformed lines but those of the future have a null."""
    rows: list[dict] = []
    if file_number == _PARQUET_OF_STRINGS_FILE:
        types = dict.fromkeys(_FIELDS, pa.string())
        for line in lines:
            rows.append(_text_cells(line, file_number))
            if line.trouble == "broken":
                rows[-1]["amount"] = ""
    else:
        types = _PARQUET_TYPES
        for line in lines:
            rows.append({name: getattr(line, name) for name in _FIELDS})
            # A typed column cannot hold a bad number or a broken record, but it can hold a null.
            if line.trouble not in (None, "future"):
                rows[-1][_REQUIRED[line.detail % len(_REQUIRED)]] = None
    table = pa.Table.from_pylist(rows, schema=pa.schema(types))
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def expected_answer(lines: list[Line], calendar: list[date], window: timedelta) -> dict:
    """The counts and totals that the pipeline must produce."""
    accepted = [line for line in lines if line.trouble is None]
    landed = Counter(line.arrival for line in lines)
    rejected = Counter(line.arrival for line in lines if line.trouble is not None)
    early = Counter(line.arrival for line in accepted if line.log_day > line.arrival)
    raw = Counter(line.log_day for line in accepted)
    late = Counter(line.log_day for line in accepted if line.log_day > line.event_day + window)
    in_time = Counter(
        line.event_day for line in accepted if line.log_day <= line.event_day + window
    )

    staged, two_day_orders, no_day_orders = _winning_lines(accepted, calendar, window)
    event_days = _expected_event_days(staged, in_time)
    total_revenue = sum(
        (Decimal(str(day["revenue"])) for day in event_days.values()), Decimal("0.00")
    )
    return {
        "arrival_days": {
            str(day): {"landed": landed[day], "rejected": rejected[day], "early": early[day]}
            for day in calendar
        },
        "log_days": {str(day): {"raw": raw[day], "late": late[day]} for day in calendar},
        "event_days": event_days,
        "totals": {
            "landed": len(lines),
            "rejected": rejected.total(),
            "early": early.total(),
            "raw": len(accepted),
            "late": late.total(),
            "staged": sum(day["staged"] for day in event_days.values()),
            "superseded": sum(day["superseded"] for day in event_days.values()),
            "fact_rows": sum(day["customers"] for day in event_days.values()),
            "revenue": str(total_revenue),
            "orders_on_two_days": two_day_orders,
            "orders_on_no_day": no_day_orders,
        },
    }


def _winning_lines(
    accepted: list[Line], calendar: list[date], window: timedelta
) -> tuple[dict[date, list[Line]], int, int]:
    """By event day the winning lines; the number of orders with two days, and with none."""
    versions: defaultdict[str, list[Line]] = defaultdict(list)
    for line in accepted:
        versions[line.order_id].append(line)
    staged: dict[date, list[Line]] = {day: [] for day in calendar}
    two_day_orders = 0
    no_day_orders = 0
    for history in versions.values():
        days = 0
        # For each day: is the greatest version that was logged in its window one of this day?
        for day in sorted({line.event_day for line in history}):
            known = [line for line in history if line.log_day <= day + window]
            winner = max(known, key=lambda line: line.version_key, default=None)
            if winner is not None and winner.event_day == day:
                staged[day].append(winner)
                days += 1
        # Corrections that move an order to another day after one of the two days was final: the
        # order is on both days, or on none, if its new day was already final.
        two_day_orders += days > 1
        no_day_orders += days == 0 and any(
            line.log_day <= line.event_day + window for line in history
        )
    return staged, two_day_orders, no_day_orders


def _expected_event_days(staged: dict[date, list[Line]], in_time: Counter[date]) -> dict[str, dict]:
    """The expected figures by event day; `in_time` counts all lines, `staged` has the winners."""
    event_days = {}
    for day, winners in staged.items():
        revenue = sum((line.amount for line in winners), Decimal("0.00"))
        event_days[str(day)] = {
            "staged": len(winners),
            "superseded": in_time[day] - len(winners),
            "customers": len({line.customer_id for line in winners}),
            "orders": len(winners),
            "revenue": str(revenue),
        }
    return event_days


def write_invented_landing(
    landing: Path,
    *,
    start: date,
    days: int,
    orders_per_day: int = 200,
    seed: int = 7,
    window_days: int = 7,
) -> dict:
    """Write arrival folders and `expected.json` below `landing`; return the content of the latter.

    The same arguments give the same bytes; another seed gives other orders with the same troubles.
    The business time zone is UTC. All orders happen, and all lines arrive and are logged, from
    `start` to the day before `start + days`. `window_days` is that of the expected result.

    Raises:
        FileExistsError: If `landing` already has an `orders` folder.
        ValueError: If a count is out of range.
    """
    if days < 1 or orders_per_day < 0 or window_days < 0:
        raise ValueError("days must be positive; orders_per_day and window_days not negative")
    orders = landing / SOURCE
    orders.mkdir(parents=True)  # landed files are never changed, so an earlier landing is an error

    rng = random.Random(seed)
    lines = Emitter(rng, start, days, orders_per_day, window_days).emit_lines()
    calendar = [start + n * DAY for n in range(days)]
    by_arrival: dict[date, list[Line]] = {day: [] for day in calendar}
    for line in lines:
        by_arrival[line.arrival].append(line)

    _write_files(orders, by_arrival, rng)
    answer = {
        "start": str(start),
        "days": days,
        "orders_per_day": orders_per_day,
        "seed": seed,
        "window_days": window_days,
        "timezone": "UTC",
        **expected_answer(lines, calendar, timedelta(days=window_days)),
    }
    _write_json(landing / "expected.json", answer)
    return answer


def _write_files(orders: Path, by_arrival: dict[date, list[Line]], rng: random.Random) -> None:
    """Write the arrival folders; `by_arrival` has its days in order."""
    file_number = 0
    for index, (day, lines) in enumerate(by_arrival.items()):
        folder = orders / f"arrival_date={day}"
        folder.mkdir()
        parts: list[list[Line]] = [[] for _ in range(rng.choice((1, 2, 2, 3)))]
        for line in sorted(lines, key=lambda line: line.ingestion_ts):
            rng.choice(parts).append(line)
        for part, content in enumerate(parts):
            suffix = FORMATS[file_number % len(FORMATS)]
            data = render_file(suffix, content, file_number, rng)
            (folder / f"part-{part:03d}.{suffix}").write_bytes(data)
            file_number += 1
        if index == min(1, len(by_arrival) - 1):
            (folder / f"part-{len(parts):03d}.jsonl").write_bytes(b"")
        if index % 3 == 0:
            accepted = [line for line in lines if line.trouble is None]
            amount = sum((line.amount for line in accepted), Decimal("0.00"))
            _write_json(folder / "_control.json", {"rows": len(accepted), "amount": str(amount)})


def _write_json(path: Path, value: object) -> None:
    path.write_bytes((json.dumps(value, indent=2) + "\n").encode())


_RECORD = re.compile(r"\s*([0-9]+)\s+([0-9]{4})([0-9]{2})([0-9]{2})\s+[0-9]+\s+([0-9]+\.[0-9]+)\s*")


def write_cdnow_landing(master: Path, landing: Path) -> int:
    """Write one arrival folder per purchase day; return the number of lines.

    The master file has a header line, then customer, date, number of CDs and value, separated by
    whitespace. A record has no key, and exact repeats are real purchases. So the record's number
    in the file (1 for the first line after the header) becomes the order's id.

    Raises:
        FileExistsError: If `landing` already has an `orders` folder.
        ValueError: If a line is not a CDNOW record.
    """
    lines_by_day: defaultdict[date, list[str]] = defaultdict(list)
    records = 0
    with master.open(encoding="ascii") as file:
        next(file)  # the header
        for text in file:
            if not text.strip():
                continue
            match = _RECORD.fullmatch(text)
            if match is None:
                raise ValueError(f"{master.name}: not a CDNOW record: {text!r}")
            records += 1
            customer, year, month, day, value = match.groups()
            purchase = date(int(year), int(month), int(day))
            lines_by_day[purchase].append(
                f'{{"order_id": "cdnow-{records:06d}", "customer_id": "{customer}", '
                f'"order_ts": "{purchase}T00:00:00Z", "amount": "{value}", '
                f'"ingestion_ts": "{purchase}T12:00:00Z"}}\n'
            )

    orders = landing / SOURCE
    orders.mkdir(parents=True)  # landed files are never changed, so an earlier landing is an error
    for purchase, lines in sorted(lines_by_day.items()):
        folder = orders / f"arrival_date={purchase}"
        folder.mkdir()
        (folder / "part-000.jsonl").write_bytes("".join(lines).encode("ascii"))
    return records
