"""Lab `quota`: a service that is asked once a row and retry, and once a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from threading import Lock

import requests

from backfill_assets.audit.verdicts import DayMetrics
from backfill_assets.backfills.backfill_plan import DayOutcome
from backfill_assets.backfills.forecast import DayForecast, estimate_api_calls
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.tables.graph import tables_of
from backfill_assets_guide.labs.lab import START, JobDiedError, Lab, Line
from backfill_assets_guide.labs.loopback import NO_PROXY, Loopback, set_environment
from backfill_assets_guide.labs.quota_tables import PLACES, order_places

_DAYS = Window(START, START + 3 * DAY)
_ORDERS, _CUSTOMERS = 40, 8
#: Of the quota of the day.
_REMAINING_CALLS = 200
_LOADED = ("raw_orders", "stg_orders", order_places.name)
#: Of the plan, whose rows nobody loads.
_PLANNED = Window(START, START + 20 * DAY)
_ROWS = 500_000


class _Places(Loopback):
    """Says where a customer is, and has calls left for today.

    Attributes:
        answered: calls.
        refused: calls beyond the quota.
    """

    def __init__(self) -> None:
        super().__init__(self._answer_place)
        self.answered = self.refused = 0
        self.lock = Lock()

    def _answer_place(self, path: str) -> tuple[int, Mapping[str, str]]:
        """Where a customer is, or that the quota is used up."""
        with self.lock:
            is_within = self.answered < _REMAINING_CALLS
            self.answered += is_within
            self.refused += not is_within
        customer = path.rpartition("/")[2]
        country = "AT" if int(customer[2:]) % 2 else "FR"
        return (200, {"customer_id": customer, "country": country}) if is_within else (429, {})


def quota_lab(lab: Lab) -> None:
    """A service with a quota says where the customers of orders are."""
    lab.say(
        f"{len(_DAYS)} days with {_ORDERS} orders each, of {_CUSTOMERS} customers. A service says "
        f"in which country a customer is. It allows 10 calls a second and 10,000 a day, of which "
        f"{_REMAINING_CALLS} are left. It is a server of this lab, on this machine."
    )
    days = {day: [_order_line(day, n) for n in range(_ORDERS)] for day in _DAYS}
    with _run_service() as service:
        lab.step("A job asks for each row. It dies after two and a half days.")
        rows = [line for lines in days.values() for line in lines]
        with lab.expect_death():
            _ask_each(service, rows[: len(rows) * 5 // 6])
            raise JobDiedError
        _report_calls(lab, service)
        lab.step("Its retry begins again, and asks all of that again.")
        lab.show("retry", f"rows {len(rows)}   with a country {_ask_each(service, rows)}")
        _report_calls(lab, service)
        lab.say("Nobody gets an answer from the service until tomorrow.")
    lab.say("The same here, on another day with as many calls left.")
    with _run_service() as service:
        pipeline = lab.create_pipeline(
            tables="backfill_assets_guide.labs.quota_tables:TABLES", window_days=0
        )
        for day, lines in days.items():
            pipeline.land_lines(day, lines)

        def show_answers() -> None:
            counts = "count(*) AS orders, count_if(country = 'AT') AS `in Austria`"
            lab.show_query(
                "reader", f"SELECT {counts} FROM {pipeline.table_sql(order_places.name)}"
            )
            lab.show_query(
                "answers that are kept",
                f"SELECT count(*) AS rows FROM {pipeline.table_sql(PLACES.name)}",
            )
            _report_calls(lab, service)

        lab.step("A run of the three days: each customer is asked for once.")
        pipeline.run_tables(_DAYS, _LOADED)
        show_answers()
        lab.step("The days are computed again, whatever is published.")
        pipeline.run_tables(_DAYS, [order_places.name], {REWRITE_TAG: "true"})
        show_answers()
        lab.step("A fourth day comes, with the same customers and a new one.")
        fourth = Window(_DAYS.end, _DAYS.end + DAY)
        pipeline.land_lines(_DAYS.end, [_order_line(_DAYS.end, n) for n in range(_CUSTOMERS + 1)])
        pipeline.run_tables(fourth, _LOADED)
        show_answers()
    lab.step(
        f"The plan of {len(_PLANNED)} days with {_ROWS:,} orders each. These are numbers in a "
        "plan: no such orders are loaded, and nobody is asked."
    )
    ledgers = {name: Ledger(table) for name, table in tables_of(pipeline.settings).items()}
    rows_of_day = DayMetrics(_ROWS, {}, "")
    staged = ledgers["stg_orders"].table
    ledgers[staged.name] = Ledger(staged, 0, measured=dict.fromkeys(_PLANNED, rows_of_day))
    fates = dict.fromkeys(_PLANNED, DayForecast(DayOutcome.COMPUTED, "never published"))
    for name, calls in estimate_api_calls({order_places.name: fates}, ledgers).items():
        lab.show(f"calls of {name}", str(calls))
    lab.lesson(
        "a row is not a request. Ask each request once, keep the answer, and a retry or a replay "
        "costs nothing. Look at the plan before the first call: a quota makes days of rows."
    )


def _ask_each(service: _Places, rows: list[Line]) -> int:
    """Ask for each row, as a job does that keeps nothing; how many were answered."""
    with requests.Session() as session:
        return sum(session.get(f"{service.url}/places/{row['customer_id']}").ok for row in rows)


@contextmanager
def _run_service() -> Iterator[_Places]:
    """A service that listens, and that the lookup knows; it ends with the block."""
    with (
        _Places() as server,
        set_environment({PLACES.url: server.url, **NO_PROXY}),
        server.answer_in_thread(),
    ):
        yield server


def _report_calls(lab: Lab, service: _Places) -> None:
    lab.show("service", f"calls answered {service.answered}   refused {service.refused}")


def _order_line(day: date, n: int) -> Line:
    moment = f"{day}T10:00:00Z"
    return {
        "order_id": f"o-{day}-{n}",
        "customer_id": f"c-{n % (_CUSTOMERS + (day == _DAYS.end))}",
        "order_ts": moment,
        "amount": "10.00",
        "ingestion_ts": moment,
    }
