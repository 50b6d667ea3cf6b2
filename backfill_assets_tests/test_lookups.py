"""Asking a service without Spark: answers, the shared quota, tries, and what is kept."""

from __future__ import annotations

import inspect
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from email.utils import format_datetime
from functools import partial
from pathlib import Path

import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
import requests as web
from deltalake import DeltaTable
from pandera.pyspark import Field

from backfill_assets import Lookup, Quota
from backfill_assets.delta.ledger_reader import read_unpartitioned
from backfill_assets.lookups import batch, service
from backfill_assets.lookups.batch import (
    AnswerCache,
    AnswersError,
    SharedQuota,
    answer_requests,
    create_answer_table,
    forget_answers,
    rates_of,
)
from backfill_assets.lookups.service import Service, ServiceError, WrongAnswerError, parse_answer
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets_guide.examples.customers import rates
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.rate_server import SECRET, rate_server, true_rate

DAY = date(2024, 1, 5)


class Rate(pa.DataFrameModel):
    """What a currency was worth on a day."""

    day: T.DateType = Field(description="The day.")
    currency: T.StringType = Field(description="The currency.")
    in_euros: T.DecimalType(12, 6) = Field(gt=0, lt=10, description="In euros.")
    source: T.StringType = Field(nullable=True, isin=["ours", "theirs"], description="Whose.")


def make_lookup(**changes) -> Lookup:
    values = {
        "name": "rates",
        "model": Rate,
        "request": ["day", "currency"],
        "path": "/rates/{day}/{currency}",
        "url": "RATES_URL",
        "secret": "RATES_KEY",
        "quota": Quota(10_000, "second"),
        "timeout": 1.0,
        "tries": 3,
        **changes,
    }
    return Lookup(**values)


RATES = make_lookup()


def requests(count: int) -> list[tuple[date, str]]:
    return [(DAY + timedelta(days=n // 100), f"C{n % 100:02d}") for n in range(count)]


@pytest.fixture
def server(monkeypatch):
    with rate_server() as rate_service:
        monkeypatch.setenv("RATES_URL", rate_service.url)
        monkeypatch.setenv("RATES_KEY", SECRET)
        yield rate_service


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch):
    monkeypatch.setattr(batch, "_FIRST_PAUSE", 0.01)


class Kept(list):
    """What was handed over to be kept."""

    def __call__(self, rows) -> None:
        self.extend(rows)

    @property
    def rates(self) -> dict[tuple[date, str], Decimal]:
        return {(row["day"], row["currency"]): row["in_euros"] for row in self}


def ask_service(
    folder: Path, spec: Lookup, keys, *, live: bool = False
) -> tuple[batch.BatchResult, Kept]:
    keep, client = Kept(), Service(spec)
    quota = SharedQuota(folder, spec.name, spec.quotas, spec.share(live=live))
    try:
        return answer_requests(spec, keys, client, quota, keep), keep
    finally:
        client.close()
        quota.close()


def expected_rates(keys) -> dict[tuple[date, str], Decimal]:
    return {(day, currency): true_rate(str(day), currency) for day, currency in keys}


# --- declarations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "no name"}, "letters, digits and _"),
        ({"request": ["day", "colour"]}, "its request must be columns of the model"),
        ({"request": [*Rate.to_schema().columns]}, "may not be null"),
        ({"path": "/rates/{day}"}, "its path names ['day']"),
        ({"path": "/rates/{day:%Y}/{currency}"}, "its path names ['currency', 'day!None:%Y']"),
        ({"path": "/rates/{day}/{currency"}, "its path names []"),
        ({"path": "{currency}/{day}"}, "it begins with /"),
        ({"path": "/rates#{currency}/{day}"}, "has no #"),
        ({"url": "http://user:pw@host"}, "names of environment variables"),
        ({"reserve": 1.0}, "leaves backfills nothing"),
        ({"quota": Quota(1, "minute"), "reserve": 0.2}, "leaves backfills nothing of 1 calls"),
        ({"none_at": [404]}, "all columns of the answer must be nullable"),
        ({"tries": 0}, "must be positive"),
    ],
)
def test_a_lookup_that_is_not_possible_is_refused(changes, said):
    with pytest.raises(DeclarationError) as error:
        make_lookup(**changes)
    assert said in str(error.value)


def test_a_quota_says_how_long_calls_take():
    spec = make_lookup(quota=[Quota(100_000, "day"), Quota(10, "second")], reserve=0.2)
    assert spec.seconds_for(8) == 8 / 80_000 * 86400
    assert spec.seconds_for(80_000) == 86_400
    assert spec.seconds_for(100_000, live=True) == 86_400


@pytest.mark.parametrize(
    ("declared_quotas", "rates"),
    [
        # The library takes no rate that allows more in the same time than a shorter one.
        ([Quota(7, "second"), Quota(420, "minute")], [(5, 1_000), (300, 60_000)]),
        ([Quota(2, "second"), Quota(5_000, "hour")], [(1, 1_000), (3_600, 3_600_000)]),
        # What all of a longer time holds is held in a part of it.
        ([Quota(200, "second"), Quota(100, "hour")], [(80, 3_600_000)]),
    ],
)
def test_a_share_of_a_quota_holds_each_of_its_rates(declared_quotas, rates):
    assert [(rate.limit, rate.interval) for rate in rates_of(declared_quotas, 0.8)] == rates


def test_whatever_shares_are_used_no_rate_of_a_quota_is_exceeded(tmp_path, monkeypatch):
    allowed = [Quota(2, "second"), Quota(100, "minute")]
    live, backfill = (SharedQuota(tmp_path, "rates", allowed, share) for share in (1.0, 0.8))
    now, calls = 1_700_000_000_000, []
    monkeypatch.setattr(batch.time, "time_ns", lambda: now * 1_000_000)
    monkeypatch.setattr(batch, "_CLEAN_EVERY", -1.0)  # each call looks for what may be deleted
    for step in range(4 * 180):
        now += 250
        # For a minute both ask, then backfills alone, then both again.
        for quota in (backfill, live) if not 240 <= step < 480 else (backfill,):
            if quota.take() == 0:
                calls.append(now)
    for length, most in ((1_000, 2), (60_000, 100)):
        assert max(sum(at - length < c <= at for c in calls) for at in calls) <= most
    assert len(calls) > 2 * 80


# --- answers --------------------------------------------------------------------------------------


GOOD = {"in_euros": "0.91"}


def read_answer(answer: object) -> dict:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return parse_answer(RATES, {"day": DAY, "currency": "USD"}, body)


def test_an_answer_has_the_types_of_the_model():
    expected = {"in_euros": Decimal("0.910000"), "source": None}
    assert read_answer(GOOD) == expected
    assert read_answer(b'{"in_euros": 0.91, "more": [1]}') == expected
    assert read_answer({**GOOD, "day": "2024-01-05", "currency": "USD"}) == expected
    assert read_answer(b'{"in_euros": 1}')["in_euros"] == 1


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b"<html>", "no JSON"),
        (b'{"in_euros": 0.9', "no JSON"),
        (b'{"in_euros": NaN}', "no JSON"),
        ([1], "no JSON object"),
        ({}, "an answer without in_euros"),
        ({"in_euros": None}, "an answer without in_euros"),
        ({"in_euros": "-3"}, "in_euros is -3, which is not > 0"),
        ({"in_euros": "91"}, "in_euros is 91, which is not < 10"),
        ({"in_euros": 0.1234567}, "in_euros is 0.1234567, which is no decimal(12,6)"),
        ({"in_euros": "1e-3"}, "which is no decimal"),
        ({"in_euros": True}, "which is no decimal"),
        ({**GOOD, "day": "2024-01-06"}, "to another request: day is 2024-01-06"),
        ({**GOOD, "source": "x" * 99}, f"source is {'x' * 40}..., which is not in"),
        ({**GOOD, "source": 5}, "source is 5, which is no string"),
    ],
)
def test_a_wrong_answer_is_told_from_a_right_one(said, problem):
    with pytest.raises(WrongAnswerError) as error:
        read_answer(said)
    assert problem in str(error.value)


def test_a_service_may_answer_in_another_form():
    of = make_lookup(read=lambda body: {"in_euros": body["rates"]["EUR"]})
    request = {"day": DAY, "currency": "USD"}
    assert parse_answer(of, request, b'{"rates": {"EUR": 0.5}}')["in_euros"] == Decimal("0.5")
    with pytest.raises(WrongAnswerError, match=r"in another form \(KeyError\)"):
        parse_answer(of, request, b'{"rates": {}}')


# --- one call -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("status 503", "HTTP 503"),
        ("status 302", "HTTP 302"),
        ("text <html>", "an answer that is no JSON"),
        ("truncated", "a broken answer"),
        ("slow 0.6", "no answer within 0.3 s"),
        ("drip", "no answer within 0.3 s"),
        ('with {"in_euros": "-1"}', "in_euros is -1, which is not > 0"),
        ('with {"currency": "XXX"}', "an answer to another request"),
        ("echo", "an answer that has the secret in it"),
    ],
)
def test_what_is_no_answer_is_said_without_the_secret(server, how, problem):
    server.behave = lambda path, before: how
    reply = Service(make_lookup(timeout=0.3)).request_answer({"day": DAY, "currency": "USD"})
    assert reply.answer is None
    assert reply.problem.startswith(problem)
    assert SECRET not in reply.problem


def test_a_service_that_is_not_there_or_not_known(server, monkeypatch):
    monkeypatch.setenv("RATES_URL", "http://127.0.0.1:9")
    assert Service(RATES).request_answer({"day": DAY, "currency": "USD"}).problem == "no connection"
    for url in ("", "ftp://x", "http://me:hush@host", "http://host/#"):
        monkeypatch.setenv("RATES_URL", url)
        with pytest.raises(ServiceError) as error:
            Service(RATES)
        assert "RATES_URL" in str(error.value)
        assert "hush" not in str(error.value)


def test_the_secret_may_be_in_a_file(server, monkeypatch, tmp_path):
    monkeypatch.delenv("RATES_KEY")
    with pytest.raises(ServiceError, match="RATES_KEY_FILE"):
        Service(RATES)
    (tmp_path / "key").write_text(f"{SECRET}\n")
    monkeypatch.setenv("RATES_KEY_FILE", str(tmp_path / "key"))
    assert Service(RATES).request_answer({"day": DAY, "currency": "USD"}).answer
    monkeypatch.setenv("RATES_KEY_FILE", str(tmp_path / "gone"))
    with pytest.raises(ServiceError, match="cannot be read"):
        Service(RATES)


def test_retry_after_is_seconds_or_a_date():
    assert service._retry_after_seconds("7") == 7
    assert service._retry_after_seconds("soon") is None
    assert service._retry_after_seconds("9" * 400) == service._LONGEST_WAIT
    moment = time.time() + 60
    for text in (f"{moment:.0f}", f"{1000 * moment:.0f}"):  # no number of seconds to wait
        assert 55 < service._retry_after_seconds(text) < 65
    when = datetime.now(timezone.utc) + timedelta(seconds=30)
    assert 28 < service._retry_after_seconds(format_datetime(when, usegmt=True)) <= 30


def test_what_a_service_does_not_know_is_an_answer_too(server):
    class Place(pa.DataFrameModel):
        """Where a code lies."""

        code: T.StringType = Field(description="The code.")
        town: T.StringType = Field(nullable=True, description="The town; null if unknown.")

    spec = make_lookup(model=Place, request=["code"], path="/places/{code}", none_at=[404])
    assert Service(spec).request_answer({"code": "a/b ?"}).answer == {"town": None}
    assert server.requested_paths == ["/places/a%2Fb%20%3F"]


class Named(pa.DataFrameModel):
    """What a service says of two names."""

    name: T.StringType = Field(description="A name.")
    other: T.StringType = Field(description="Another name.")
    said: T.StringType = Field(nullable=True, description="What it says.")


NAMED = make_lookup(model=Named, request=["name", "other"], path="/p/{name}/{other}", none_at=[404])


@pytest.mark.parametrize("value", ["..", ".", ""])
def test_a_value_that_leads_to_another_path_is_not_asked(server, tmp_path, value):
    result, keep = ask_service(tmp_path, NAMED, [(value, "a"), ("a", value), ("a", "b")])
    assert server.requested_paths == ["/p/a/b"]
    assert [(row["name"], row["other"]) for row in keep] == [("a", "b")]
    assert result.unanswered == {
        key: f"{name} is {value!r}, which would ask another path than /p/{{name}}/{{other}}; mend "
        "the row, or leave it out of the requests"
        for key, name in [((value, "a"), "name"), (("a", value), "other")]
    }


@pytest.mark.parametrize(
    ("path", "request_values", "asked"),
    [
        ("/p/{name}{other}", ("..", ".."), "/p/...."),
        ("/p/{name}{other}", (".", "."), None),
        ("/p/{name}-{other}", ("..", ""), "/p/..-"),
        ("/p/{name}/{other}", ("%2e%2e", "../x"), "/p/%252e%252e/..%2Fx"),
        ("/p/{name}?of={other}", ("a", ".."), "/p/a?of=.."),
        ("/p/{name}?of={other}", ("a", ""), "/p/a?of="),
        ("/p/x?of=/{name}/{other}", ("a", ".."), "/p/x?of=/a/.."),
    ],
)
def test_a_value_is_part_of_one_segment_of_the_path(server, path, request_values, asked):
    named = make_lookup(model=Named, request=["name", "other"], path=path, none_at=[404])
    reply = Service(named).request_answer(dict(zip(named.request, request_values, strict=True)))
    assert server.requested_paths == ([asked] if asked else [])
    assert (reply.retry, bool(reply.problem)) == ((True, False) if asked else (False, True))


# --- many calls -----------------------------------------------------------------------------------


def test_each_request_is_asked_once(server, tmp_path):
    keys = requests(250)
    result, keep = ask_service(tmp_path, RATES, keys)
    assert keep.rates == expected_rates(keys)
    assert (sum(result.calls.values()), result.unanswered) == (250, {})
    assert len(server.requested_paths) == len(set(server.requested_paths)) == 250
    assert 1 < server.most_open <= RATES.connections


def test_what_fails_now_and_then_is_tried_again(server, tmp_path):
    """Slow, broken, refused and wrong answers, and one that is out of bounds."""
    kinds = ["status 500", "status 503", "text {", "truncated", "slow 0.6", "json []"]

    def behave(path: str, before: int) -> str:
        number = sum(map(ord, path)) % 100
        wrong = before == 0 and path.endswith("05/C77")
        return (
            'with {"in_euros": "-0.5"}'
            if wrong
            else kinds[number] * (not before)
            if (number < len(kinds))
            else ""
        )

    server.behave = behave
    keys = requests(400)
    result, keep = ask_service(tmp_path, make_lookup(timeout=0.4, connections=16), keys)
    assert keep.rates == expected_rates(keys)
    assert result.unanswered == {}
    assert sum(result.calls.values()) == len(server.requested_paths) > 400
    assert server.attempts["/rates/2024-01-05/C77"] == 2


def test_what_goes_on_failing_has_no_answer_and_the_rest_has(server, tmp_path):
    server.behave = lambda path, before: "status 503" if path.endswith("C03") else ""
    keys = requests(60)
    result, keep = ask_service(tmp_path, RATES, keys)
    assert result.unanswered == {(DAY, "C03"): "HTTP 503 (tried 3 times)"}
    assert keep.rates == expected_rates(key for key in keys if key[1] != "C03")


def test_an_outage_is_not_asked_a_million_times(server, tmp_path):
    server.behave = lambda path, before: "status 503"
    result, keep = ask_service(tmp_path, RATES, requests(5000))
    assert not keep
    assert len(result.unanswered) == 5000
    assert len(server.requested_paths) <= 3 * (batch.MAX_FAILURES_IN_A_ROW + RATES.connections)
    reasons = set(result.unanswered.values())
    assert reasons >= {
        "HTTP 503 (tried 3 times)",
        "not asked: 20 requests in a row had no answer",
    }


def test_a_wrong_secret_is_not_tried_again(server, tmp_path, monkeypatch):
    monkeypatch.setenv("RATES_KEY", "another")
    result, _ = ask_service(tmp_path, RATES, requests(100))
    assert len(server.requested_paths) <= RATES.connections
    assert "not asked: it takes no request of ours (HTTP 401)" in result.unanswered.values()


def test_an_interrupted_run_keeps_what_it_had(server, tmp_path, monkeypatch):
    class EndedError(Exception):
        pass

    def interrupt() -> None:
        if len(server.requested_paths) > 50:
            raise EndedError

    monkeypatch.setattr(batch, "raise_if_interrupted", interrupt)
    server.behave = lambda path, before: "slow 0.01"
    keep, quota = Kept(), SharedQuota(tmp_path, "rates", RATES.quotas, 1.0)
    with pytest.raises(EndedError):
        answer_requests(RATES, requests(500), Service(RATES), quota, keep)
    count = len(server.requested_paths)
    assert len(keep) == len(keep.rates) == count < 100
    time.sleep(0.1)
    assert len(server.requested_paths) == count


# --- the quota ------------------------------------------------------------------------------------


def test_the_quota_is_held(tmp_path, monkeypatch):
    with rate_server(calls=20, seconds=1.0) as server:
        monkeypatch.setenv("RATES_URL", server.url)
        monkeypatch.setenv("RATES_KEY", SECRET)
        spec = make_lookup(quota=Quota(20, "second"), reserve=0.2)
        began = time.monotonic()
        _, keep = ask_service(tmp_path, spec, requests(64))
        # 16 a second, and the first of them at once.
        assert time.monotonic() - began >= 3.0
        assert len(keep) == 64
        assert server.refused == 0


def test_429_and_retry_after_hold_all_processes(server, tmp_path):
    """The service allows less than was declared: what it says counts, for whoever shares it."""
    server.calls, server.seconds, server.retry_after = 10, 1.0, "1"
    began = time.monotonic()
    result, keep = ask_service(tmp_path, RATES, requests(25))
    assert time.monotonic() - began >= 2.0
    assert (len(keep), result.unanswered) == (25, {})
    # Only what was under way when it said so is refused.
    assert 0 < server.refused <= 2 * RATES.connections
    quota, other = (SharedQuota(tmp_path, "rates", RATES.quotas, 1.0) for _ in range(2))
    quota.pause_calls(30)
    quota.pause_calls(5)
    assert 5 < other.take() < 31


def test_a_quota_that_is_used_up_for_long_ends_the_asking(server, tmp_path):
    spec = make_lookup(quota=Quota(5, "day"), patience=2.0)
    result, keep = ask_service(tmp_path, spec, requests(8), live=True)
    assert len(keep) == 5
    (reason,) = set(result.unanswered.values())
    assert reason.startswith("not asked: the quota is used up until 20")


def test_a_service_that_is_always_busy_ends_the_asking(server, tmp_path):
    server.behave = lambda path, before: "status 429"
    result, keep = ask_service(tmp_path, make_lookup(patience=2.0), requests(3))
    assert not keep
    assert len(result.unanswered) == 3
    assert all("quota is used up" in text for text in result.unanswered.values())
    assert len(server.requested_paths) <= 4 * RATES.connections


def test_a_thread_that_breaks_ends_the_asking(server, tmp_path, monkeypatch):
    def raise_overflow(_: SharedQuota) -> float:
        raise OverflowError("date value out of range")

    monkeypatch.setattr(SharedQuota, "take", raise_overflow)
    with pytest.raises(OverflowError, match="out of range"):
        ask_service(tmp_path, RATES, requests(3))


def test_backfills_leave_the_reserve_to_live_runs(server, tmp_path):
    spec = make_lookup(quota=Quota(10, "day"), reserve=0.3, patience=1.0)
    _, keep = ask_service(tmp_path, spec, requests(20))
    assert len(keep) == 7
    _, keep = ask_service(tmp_path, spec, requests(20), live=True)
    assert len(keep) == 3
    assert len(server.requested_paths) == 10


def take_calls(quota: SharedQuota) -> list[float]:
    """When forty calls were taken, as fast as there may be so many."""
    quota._cleaned = time.monotonic()
    call_times: list[float] = []
    while len(call_times) < 40:
        wait = quota.take()
        if wait:
            time.sleep(min(wait, 0.05))
        else:
            call_times.append(time.time())
    return call_times


_TAKE = f"""
from __future__ import annotations
import sys, time
from pathlib import Path
from backfill_assets.lookups.batch import SharedQuota
from backfill_assets import Quota
{inspect.getsource(take_calls)}
quota = SharedQuota(Path(sys.argv[1]), "rates", [Quota(30, "second")], 1.0)
print("ready", flush=True)
input()
print(*take_calls(quota))
"""


def test_two_processes_share_a_quota(tmp_path):
    """This one and another."""
    command = [sys.executable, "-c", _TAKE, str(tmp_path)]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    quota = SharedQuota(tmp_path, "rates", [Quota(30, "second")], 1.0)
    with subprocess.Popen(command, **options) as process:
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("\n")
        process.stdin.flush()
        here = take_calls(quota)
        there = process.communicate()[0].split()
    assert process.returncode == 0
    assert len(here) == len(there) == 40
    with closing(sqlite3.connect(tmp_path / "rates.sqlite")) as file:
        times = [at for (at,) in file.execute("SELECT item_timestamp FROM calls")]
    assert len(times) == len(here) + len(there)
    # In no second more than the quota.
    assert max(sum(at <= other <= at + 1000 for other in times) for at in times) <= 30


# --- what is kept ---------------------------------------------------------------------------------


def answer_row(n: int, rate: str = "0.5") -> dict:
    (day, currency) = requests(n + 1)[n]
    at = datetime(2024, 2, 1, tzinfo=timezone.utc)
    values = {"day": day, "currency": currency, "in_euros": Decimal(rate)}
    return {**values, "source": None, "answered_at": at}


def held(url: str) -> list[dict]:
    return sorted(DeltaTable(url).to_pyarrow_table().to_pylist(), key=lambda r: r["currency"])


def test_a_request_is_kept_once_whoever_asks(tmp_path):
    url = str(tmp_path / "rates")
    create_answer_table(RATES, url)
    create_answer_table(RATES, url)
    first, second = AnswerCache(RATES, url), AnswerCache(RATES, url)
    first.add([answer_row(0), answer_row(1)], "run-1")
    second.add([answer_row(1, "9"), answer_row(2)], "run-2")
    first.add([answer_row(2, "8"), answer_row(3)], "run-1")
    second.add([answer_row(3, "7")], "run-2")
    assert [str(r["in_euros"]) for r in held(url)] == ["0.500000"] * 4
    assert first.version == second.version == 3


def test_two_that_keep_at_the_same_time_keep_each_request_once(tmp_path, monkeypatch):
    url = str(tmp_path / "rates")
    create_answer_table(RATES, url)
    first, second = AnswerCache(RATES, url), AnswerCache(RATES, url)
    append = AnswerCache._append

    def append_late(self, log, rows, run_id):
        if self is first and second.version == 0:
            second.add([answer_row(0, "0.7")], "run-2")
        append(self, log, rows, run_id)

    monkeypatch.setattr(AnswerCache, "_append", append_late)
    first.add([answer_row(0), answer_row(1)], "run-1")
    assert [str(r["in_euros"]) for r in held(url)] == ["0.700000", "0.500000"]


def test_small_files_are_put_together(tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "_COMPACT_AFTER_FILES", 3)
    url = str(tmp_path / "rates")
    create_answer_table(RATES, url)
    answers = AnswerCache(RATES, url)
    before = read_unpartitioned(url, grows=True)
    other = AnswerCache(RATES, url)
    for n in range(4):
        answers.add([answer_row(n)], "run")
    assert len(DeltaTable(url).file_uris()) == 2
    assert len(held(url)) == 4
    other.add([answer_row(0), answer_row(3), answer_row(4)], "another run")
    assert len(held(url)) == 5
    assert read_unpartitioned(url, grows=True).content == before.content


def test_what_is_forgotten_makes_another_input(tmp_path):
    url = str(tmp_path / "rates")
    with pytest.raises(AnswersError, match="there is no table of answers"):
        forget_answers(RATES, url, "TRUE")
    nothing = read_unpartitioned(url, grows=True).content
    create_answer_table(RATES, url)
    AnswerCache(RATES, url).add([answer_row(n) for n in range(3)], "run")
    before = read_unpartitioned(url, grows=True).content
    assert nothing != before
    assert forget_answers(RATES, url, "currency = 'ZZZ'") == 0
    assert read_unpartitioned(url, grows=True).content == before
    assert forget_answers(RATES, url, "currency = 'C01' AND day = '2024-01-05'") == 1
    assert read_unpartitioned(url, grows=True).content != before
    assert [r["currency"] for r in held(url)] == ["C00", "C02"]
    with pytest.raises(AnswersError, match=r"nothing was forgotten: .*colour"):
        forget_answers(RATES, url, "colour = 'red'")


def test_a_table_of_another_model_is_refused(tmp_path):
    url = str(tmp_path / "rates")
    create_answer_table(RATES, url)
    other = make_lookup(request=["day"], path="/rates/{day}", model=Fewer)
    with pytest.raises(AnswersError, match="is not the one of the model"):
        AnswerCache(other, url)


class Fewer(pa.DataFrameModel):
    """A rate of a day."""

    day: T.DateType = Field(description="The day.")
    in_euros: T.DecimalType(12, 6) = Field(description="In euros.")


def ask_missing(folder: Path) -> None:
    """Ask for what the table of answers lacks of 300 requests."""
    url = str(folder / "rates")
    create_answer_table(RATES, url)
    answers = AnswerCache(RATES, url)
    existing = {(r["day"], r["currency"]) for r in held(url)}
    missing = [request for request in requests(300) if request not in existing]
    quota = SharedQuota(folder, "rates", RATES.quotas, 1.0)
    answer_requests(RATES, missing, Service(RATES), quota, partial(answers.add, run_id="run"))


_ASK = """
import sys
from pathlib import Path
from backfill_assets.lookups import batch
from backfill_assets_tests.test_lookups import ask_missing
batch._BATCH = 10
ask_missing(Path(sys.argv[1]))
"""


def test_a_process_that_is_killed_has_kept_what_it_had(server, tmp_path):
    """Another one goes on where it ended."""
    server.behave = lambda path, before: "slow 0.02"
    command = [sys.executable, "-c", _ASK, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment) as process:
        while len(server.requested_paths) < 120:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    before = len(held(str(tmp_path / "rates")))
    calls = len(server.requested_paths)
    assert 0 < before <= calls < 300
    ask_missing(tmp_path)
    assert len(server.requested_paths) == calls + 300 - before
    rows = held(str(tmp_path / "rates"))
    assert {(r["day"], r["currency"]): r["in_euros"] for r in rows} == expected_rates(requests(300))
    assert len(rows) == 300


def test_the_service_of_the_example_wants_its_key_and_holds_its_quota(monkeypatch, capsys):
    module = "backfill_assets_guide.examples.customers.rates"
    command = [sys.executable, "-m", module, "--port", "0", "--calls", "2"]
    assert any(
        f"python -m {module}\n" in code for code in code_blocks("docs/enrichment.md", "text")
    )

    def refusal(*words: str) -> str:
        """What the program says that ends at once."""
        monkeypatch.setattr(sys, "argv", [module, *words])
        with pytest.raises(SystemExit) as ended:
            rates.main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    monkeypatch.delenv("RATES_KEY", raising=False)
    assert "RATES_KEY is not set" in refusal()
    monkeypatch.setenv("RATES_KEY", "mine")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stderr
            url = service.stderr.readline().split()[-1]
            rate_url, key = f"{url}/rates/2024-01-05/USD", {"Authorization": "Bearer mine"}
            assert url.startswith("http://127.0.0.1:")
            assert web.get(rate_url, timeout=10).status_code == 401
            responses: dict[int, web.Response] = {}
            while responses.keys() != {200, 429}:
                response = web.get(rate_url, headers=key, timeout=10)
                responses[response.status_code] = response
            rate = str(true_rate("2024-01-05", "USD"))
            assert responses[200].json() == {
                "day": "2024-01-05",
                "currency": "USD",
                "in_euros": rate,
            }
            assert responses[429].headers["Retry-After"] == "1"
            assert "is not free" in refusal("--port", url.rpartition(":")[2])
        finally:
            service.terminate()
