"""A second, plain-Python reading of the design, to compare the pipeline with; no pipeline code.

It is slow and literal on purpose. It must not import `backfill_assets`: two derivations that share
code would agree on the same mistake.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq

_DAY = timedelta(days=1)
_FIELDS = ("order_id", "customer_id", "order_ts", "amount", "ingestion_ts")
_REQUIRED = ("order_id", "order_ts", "amount", "ingestion_ts")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FILE_NAME = re.compile(r"[^_.].*\.((jsonl|json|csv)(\.gz)?|parquet)", re.DOTALL)
_AMOUNT = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<whole>[0-9]+)(?:\.(?P<fraction>[0-9]*))?|\.(?P<bare>[0-9]+))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+))?"
)
_TIMESTAMP = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    r"(?:[T ](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})"
    r"(?::(?P<second>[0-9]{2})(?:[.,](?P<fraction>[0-9]+))?)?"
    r"(?P<offset>Z|(?P<sign>[+-])(?P<hours>[0-9]{2})(?::?(?P<minutes>[0-9]{2}))?)?)?"
)
# A field in quotes (in which "" is a quote), or one without any quote.
_CSV_FIELD = re.compile(r'"((?:[^"]|"")*)"|([^",]*)')


@dataclass
class Model:
    """What the tables must hold after a run over the days `start <= d < end`."""

    raw: list[dict] = field(default_factory=list)
    rejected: list[dict] = field(default_factory=list)
    late: list[dict] = field(default_factory=list)
    staged: list[dict] = field(default_factory=list)
    fact: dict[tuple[date, str], tuple[int, Decimal]] = field(default_factory=dict)
    landed: dict[date, int] = field(default_factory=dict)
    """By arrival day: lines that are not blank and not a header."""
    early: dict[date, int] = field(default_factory=dict)
    """By arrival day: accepted lines whose log day is the next day."""
    in_time: dict[date, int] = field(default_factory=dict)
    """By event day: raw rows logged while the day's window was open."""
    superseded: dict[date, int] = field(default_factory=dict)
    """By event day: rows in time that are not staged."""


class Unreadable(Exception):
    """A line is rejected; the message is the reason."""


class _Number(str):
    """The text of a JSON number, as written."""


@dataclass
class _Landed:
    """One line as found: its text, and its fields or the reason why it has none."""

    text: str
    fields: dict | None
    reason: str = ""


def run_model(landing: Path, *, start: date, end: date, window_days: int, timezone: str) -> Model:
    """Compute the state of all tables for the days `start <= d < end` from the landing files.

    Args:
        landing: The landing root, with the folder `orders` in it.
        start: The first day.
        end: The day after the last one.
        window_days: Days after the event day in which a version still counts.
        timezone: The name of the business time zone.

    Raises:
        OSError: If a file cannot be read at all (also `pyarrow.ArrowException`, `EOFError`), or
            a CSV file does not begin with a header that has every field of an order once.
    """
    zone = ZoneInfo(timezone)
    window = timedelta(days=window_days)
    model = Model()
    days = [start + n * _DAY for n in range((end - start).days)]
    for counts in (model.landed, model.early, model.in_time, model.superseded):
        counts.update(dict.fromkeys(days, 0))

    for arrival in [start - _DAY, *days]:
        for path in _list_files(landing, arrival):
            for landed_line in _read_lines(path):
                _log_line(
                    model, landed_line, f"{path.parent.name}/{path.name}", arrival, start, end, zone
                )

    _split_versions(model, start, end, window, zone)
    _aggregate_facts(model)
    return model


def _log_line(
    model: Model,
    landed_line: _Landed,
    source: str,
    arrival: date,
    start: date,
    end: date,
    zone: ZoneInfo,
) -> None:
    """Put one landed line where it belongs: raw, rejected, or outside the range."""
    in_range = arrival >= start
    if in_range:
        model.landed[arrival] += 1
    try:
        row = _parse_row(landed_line, arrival, zone)
    except Unreadable as reason:
        if in_range:
            model.rejected.append(
                {
                    "arrival_date": arrival,
                    "source_file": source,
                    "text": landed_line.text,
                    "reason": str(reason),
                }
            )
        return
    if in_range and row["log_date"] > arrival:
        model.early[arrival] += 1
    if start <= row["log_date"] < end:
        model.raw.append({**row, "source_file": source})


def _parse_row(landed_line: _Landed, arrival: date, zone: ZoneInfo) -> dict:
    if landed_line.fields is None:
        raise Unreadable(landed_line.reason)
    landed_line.fields = _name_fields(landed_line.fields)
    order_id = _parse_text(landed_line.fields.get("order_id"), "order_id")
    if not order_id:
        raise Unreadable("missing order_id")
    row = {
        "order_id": order_id,
        "customer_id": _parse_text(landed_line.fields.get("customer_id"), "customer_id") or None,
        "order_ts": parse_timestamp(landed_line.fields.get("order_ts"), "order_ts"),
        "amount": parse_amount(landed_line.fields.get("amount")),
        "ingestion_ts": parse_timestamp(landed_line.fields.get("ingestion_ts"), "ingestion_ts"),
    }
    _local_day(row["order_ts"], zone)
    version_day = _local_day(max(row["order_ts"], row["ingestion_ts"]), zone)
    if version_day > arrival + _DAY:
        raise Unreadable("version time in the future")
    return {"log_date": max(arrival, version_day), "arrival_date": arrival, **row}


def _name_fields(fields: dict) -> dict:
    """Name what is a field in another case, unless the field itself is there."""
    named = dict(fields)
    for name in _FIELDS:
        others = [other for other in fields if other.lower() == name]
        if name in others or not others:
            continue
        if len(others) > 1:
            raise Unreadable(f"more than one is named {name}")
        named[name] = fields[others[0]]
    return named


def _split_versions(
    model: Model, start: date, end: date, window: timedelta, zone: ZoneInfo
) -> None:
    """Divide raw by event day: late, staged, superseded."""
    versions: defaultdict[str, list[dict]] = defaultdict(list)
    for row in model.raw:
        event_day = _local_day(row["order_ts"], zone)
        versions[row["order_id"]].append({**row, "event_date": event_day})
        if row["log_date"] > event_day + window:
            model.late.append({**row, "event_date": event_day})
        elif start <= event_day < end:
            model.in_time[event_day] += 1

    for history in versions.values():
        history.sort(key=version_key)
        for position, row in enumerate(history):
            deadline = row["event_date"] + window
            if not start <= row["event_date"] < end or row["log_date"] > deadline:
                continue
            # Those behind it are greater, or fully identical: of identical rows the last one stays.
            if not any(other["log_date"] <= deadline for other in history[position + 1 :]):
                model.staged.append(
                    {name: row[name] for name in ("event_date", *_FIELDS, "log_date")}
                )
    model.staged.sort(key=lambda row: (row["event_date"], row["order_id"].encode()))

    model.superseded.update(model.in_time)
    for row in model.staged:
        model.superseded[row["event_date"]] -= 1


def _aggregate_facts(model: Model) -> None:
    for row in model.staged:
        customer = "unknown" if row["customer_id"] is None else row["customer_id"]
        key = (row["event_date"], customer)
        orders, revenue = model.fact.get(key, (0, Decimal("0.00")))
        model.fact[key] = (orders + 1, revenue + row["amount"])


def version_key(row: dict) -> tuple:
    """Return what the versions of one order are ordered by; the greatest wins."""
    customer = row["customer_id"]
    return (
        max(row["order_ts"], row["ingestion_ts"]),
        row["log_date"],
        row["order_ts"],
        row["ingestion_ts"],
        row["amount"],
        (0, b"") if customer is None else (1, customer.encode()),
    )


def _local_day(moment: datetime, zone: ZoneInfo) -> date:
    try:
        return moment.astimezone(zone).date()
    except OverflowError:
        raise Unreadable("timestamp out of range") from None


# --- fields -------------------------------------------------------------------------------------


def parse_amount(value: object) -> Decimal:
    """Return the amount with two decimals, if its exact value is one of `decimal(18,2)`.

    Raises:
        Unreadable: If it is missing, not a number, too fine or too large.
    """
    if value is None or value == "":
        raise Unreadable("missing amount")
    if isinstance(value, bool) or not isinstance(value, (str, int, Decimal)):
        raise Unreadable("bad amount")
    match = _AMOUNT.fullmatch(str(value)) if len(str(value)) <= 1000 else None
    if match is None:
        raise Unreadable("bad amount")
    fraction = match["fraction"] or match["bare"] or ""
    digits = ((match["whole"] or "") + fraction).lstrip("0")
    if not digits:
        return Decimal("0.00")
    significant = digits.rstrip("0")
    exponent_text = match["exponent"] or "0"
    if len(exponent_text.lstrip("+-").lstrip("0")) > 18:
        raise Unreadable("bad amount")  # no line is long enough to bring that back into range
    # The value is `significant` times ten to the power of `exponent`.
    exponent = int(exponent_text) - len(fraction) + len(digits) - len(significant)
    if exponent < -2:
        raise Unreadable("amount has more than two decimals")
    if len(significant) + exponent > 16:
        raise Unreadable("amount beyond decimal(18,2)")
    cents = int(significant) * 10 ** (exponent + 2)
    return Decimal(-cents if match["sign"] == "-" else cents).scaleb(-2)


def parse_timestamp(value: object, name: str = "timestamp") -> datetime:
    """Return the moment in UTC, microseconds kept, further digits cut off.

    Raises:
        Unreadable: If it is missing or not a date-time.
    """
    if value is None or value == "":
        raise Unreadable(f"missing {name}")
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str) or isinstance(value, _Number):
        raise Unreadable(f"bad {name}")
    match = _TIMESTAMP.fullmatch(value)
    if match is None:
        raise Unreadable(f"bad {name}")
    offset = timedelta(hours=int(match["hours"] or 0), minutes=int(match["minutes"] or 0))
    if int(match["minutes"] or 0) > 59 or offset > timedelta(hours=18):
        raise Unreadable(f"bad {name}")
    try:
        local = datetime(
            int(match["year"]),
            int(match["month"]),
            int(match["day"]),
            int(match["hour"] or 0),
            int(match["minute"] or 0),
            int(match["second"] or 0),
            int((match["fraction"] or "").ljust(6, "0")[:6]),
            tzinfo=timezone.utc,
        )
        return local + offset if match["sign"] == "-" else local - offset
    except (ValueError, OverflowError):
        raise Unreadable(f"bad {name}") from None


def _parse_text(value: object, name: str) -> str | None:
    """Return a string, or the digits of a whole number, as written."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, Decimal)):
        raise Unreadable(f"bad {name}")
    if isinstance(value, (_Number, Decimal)) and not re.fullmatch(r"-?[0-9]+", str(value)):
        raise Unreadable(f"bad {name}")
    try:
        str(value).encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only a JSON escape can spell
        raise Unreadable(f"bad {name}") from None
    return str(value)


# --- files --------------------------------------------------------------------------------------


def _list_files(landing: Path, arrival: date) -> list[Path]:
    folder = landing / "orders" / f"arrival_date={arrival.isoformat()}"
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_file() and _FILE_NAME.fullmatch(p.name))


def _read_lines(path: Path) -> Iterator[_Landed]:
    data = path.read_bytes()
    name = path.name
    if name.endswith(".gz"):
        name = name.removesuffix(".gz")
        data = gzip.decompress(data)
    if not data:
        return iter(())
    if name.endswith(".parquet"):
        return _parquet_lines(data)
    # Bytes know only \n, \r\n and \r as line ends; text would also split at others.
    # Files that were put together from several have a byte-order mark within.
    texts = _csv_records(data) if name.endswith(".csv") else data.splitlines()
    lines = [line.removeprefix(_BYTE_ORDER_MARK) for line in texts]
    lines = [line for line in lines if line.strip()]
    return _csv_lines(lines) if name.endswith(".csv") else map(_json_line, lines)


def _csv_records(data: bytes) -> Iterator[bytes]:
    """Cut a file at its line ends, but not at those within a field in quotes."""
    state, begin, position = "field begins", 0, 0
    while position < len(data):
        if position == begin and data.startswith(_BYTE_ORDER_MARK, position):
            position += len(_BYTE_ORDER_MARK)
        character = data[position : position + 1]
        position += 1
        if state == "in quotes":
            state = "quote" if character == b'"' else "in quotes"
        elif character == b'"' and state in ("field begins", "quote"):
            state = "in quotes"
        elif character in (b"\r", b"\n"):
            yield data[begin : position - 1]
            state, begin = "field begins", position
        else:
            state = "field begins" if character == b"," else "in a field"
    yield data[begin:]


def _json_line(line: bytes) -> _Landed:
    text = line.decode(errors="replace")
    try:
        value = json.loads(
            line.decode(), parse_int=_Number, parse_float=_Number, parse_constant=_not_a_number
        )
    except UnicodeDecodeError:
        return _Landed(text, None, "not UTF-8")
    except (ValueError, RecursionError):
        return _Landed(text, None, "not JSON")
    if not isinstance(value, dict):
        return _Landed(text, None, "not a JSON object")
    return _Landed(text, value)


def _not_a_number(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _csv_lines(lines: list[bytes]) -> Iterator[_Landed]:
    if not lines:
        return
    header = _csv_fields(lines[0].decode(errors="replace"))
    header = [name.strip() for name in header or ()]
    if not set(_REQUIRED) <= set(header) or any(header.count(name) > 1 for name in _FIELDS):
        raise OSError(f"no header of orders: {lines[0][:100]!r}")
    for line in lines[1:]:
        if line == lines[0]:
            continue
        text = line.decode(errors="replace")
        try:
            values = _csv_fields(line.decode())
        except UnicodeDecodeError:
            yield _Landed(text, None, "not UTF-8")
            continue
        if values is None or any("\0" in quoted for quoted, _ in _CSV_FIELD.findall(text)):
            yield _Landed(text, None, "not CSV")
        elif len(values) != len(header):
            yield _Landed(text, None, "wrong number of fields")
        else:
            yield _Landed(text, {n: v or None for n, v in zip(header, values, strict=True)})


def _csv_fields(text: str) -> list[str] | None:
    """Return the fields of a record, or None if its quotes do not match."""
    fields = []
    position = 0
    while True:
        match = _CSV_FIELD.match(text, position)
        if match is None:
            return None
        fields.append(match[2] if match[1] is None else match[1].replace('""', '"'))
        position = match.end()
        if position == len(text):
            return fields
        if text[position] != ",":
            return None
        position += 1


def _parquet_lines(data: bytes) -> Iterator[_Landed]:
    table = pq.read_table(io.BytesIO(data))
    names = _name_fields({name: name for name in table.column_names})
    table = table.select([*names.values()]).rename_columns([*names])
    columns = {name: _parquet_column(table, name) for name in _FIELDS if name in table.column_names}
    for number in range(table.num_rows):
        fields = {name: values[number] for name, values in columns.items()}
        yield _Landed(json.dumps(fields, default=str, ensure_ascii=False), fields)


def _parquet_column(table: pa.Table, name: str) -> list:
    """Return the values as text, int, Decimal or UTC datetime; what is none of them as it is."""
    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if name == "amount" and pa.types.is_floating(column.type):
        # The shortest text that means this float, which is what whoever wrote it meant.
        column = column.cast(pa.string())
    elif name in ("order_ts", "ingestion_ts"):
        if pa.types.is_date(column.type):
            column = column.cast(pa.timestamp("us"))
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            # Arrow's cast would round towards 1970.
            nanos = [scalar.value for scalar in column]
            micros = [None if nano is None else nano // 1000 for nano in nanos]
            column = pa.chunked_array([pa.array(micros, pa.timestamp("us", tz="UTC"))])
        elif pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", tz="UTC"), safe=False)
    return [_parquet_value(value) for value in column]


def _parquet_value(scalar: pa.Scalar) -> object:
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError):  # a moment no datetime can hold
        return ()
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc)
    if isinstance(value, bytes):
        return ()
    return value


# --- everything that is known now ---------------------------------------------------------------


def current_facts(
    raw: list[dict], *, start: date, end: date, window_days: int, timezone: str, drop: bool
) -> dict[tuple[date, str], tuple[int, Decimal]]:
    """Compute orders and revenue by day and customer, with everything known: an endless window.

    Args:
        raw: The rows of the raw log, as in `Model.raw`.
        start: The first day.
        end: The day after the last one.
        window_days: Days after the event day after which a line is late.
        timezone: The name of the business time zone.
        drop: Whether late lines count for nothing; then one only takes an order off a day that was
            open when it came, as staging does.
    """
    zone, window = ZoneInfo(timezone), timedelta(days=window_days)
    versions: defaultdict[str, list[dict]] = defaultdict(list)
    for row in raw:
        event_day = _local_day(row["order_ts"], zone)
        late = row["log_date"] > event_day + window
        versions[row["order_id"]].append({**row, "event_date": event_day, "late": late})
    sums: dict[tuple[date, str], tuple[int, Decimal]] = {}
    for history in versions.values():
        history.sort(key=version_key)
        for position, row in enumerate(history):
            greater = history[position + 1 :]
            if drop:
                closed = row["event_date"] + window
                greater = [u for u in greater if not u["late"] or u["log_date"] <= closed]
            if greater or (drop and row["late"]) or not start <= row["event_date"] < end:
                continue
            key = row["event_date"], row["customer_id"] or "unknown"
            orders, revenue = sums.get(key, (0, Decimal("0.00")))
            sums[key] = orders + 1, revenue + row["amount"]
    return sums


def by_delay(lines: Iterable[tuple[Decimal, int]]) -> dict[str, list]:
    """The columns by delay of lines, each given as amount and delay."""
    counts, money = Counter(), defaultdict(Decimal)
    for amount, delay in lines:
        counts[delay] += 1
        money[delay] += abs(amount)
    return {
        "delays": sorted(counts),
        "lines_by_delay": [counts[delay] for delay in sorted(counts)],
        "amount_by_delay": [money[delay] for delay in sorted(counts)],
    }
