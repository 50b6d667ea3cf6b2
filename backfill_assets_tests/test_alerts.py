"""Alerts: against a real HTTP server that fails in every way a server can fail."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import dagster as dg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backfill_assets.backfills.stages import RECONCILES_TAG
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring import alerts
from backfill_assets.monitoring.alerts import Incident, Outbox, build_alerts_sensor, post_text
from backfill_assets.settings import load_settings
from backfill_assets_tests.helpers.postgres import instance_in

SECRET = "T000-B000-x7y8z9"
UI = "http://dagster.example:3000"
SHORT = 0.25  # the timeout where the server does not answer in time
RETRIES = {"enabled": True, "max_retries": 1, "retry_on_asset_or_op_failure": True}


class Webhook:
    """A chat system: what it got, what it took, and what it says next."""

    def __init__(self, port: int = 0) -> None:
        self.says: Callable[[str], int | str] = lambda text: 200
        self.received: list[str] = []
        self.accepted: list[str] = []
        self.visits: list[str] = []
        self.released = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.visits.append(self.path)
                text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
                hook.received.append(text)
                answer = hook.says(text)
                if isinstance(answer, int):
                    if 200 <= answer < 300:
                        hook.accepted.append(text)
                    self.send_response(answer)
                    self.send_header("Location", f"{hook.url}/elsewhere")
                    self.end_headers()
                elif answer == "silence":
                    hook.released.wait(30)
                elif answer == "drips":
                    self.send_slowly(b"HTTP/1.1 200 OK\r\nX-Long: ")
                elif answer == "drips the body":
                    hook.accepted.append(text)
                    self.send_slowly(b"HTTP/1.1 200 OK\r\n\r\n")

            def send_slowly(self, start: bytes) -> None:
                self.close_connection = True
                with suppress(OSError):  # the other side has gone
                    self.wfile.write(start)
                    while not hook.released.wait(SHORT / 20):
                        self.wfile.write(b"x")

            def do_GET(self) -> None:
                hook.visits.append(self.path)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/{SECRET}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Desk:
    """The sensor with its cursor, which a test ticks; every tick is one after a restart."""

    def __init__(self, url: str | None, instance: dg.DagsterInstance) -> None:
        self.url = url
        self.instance = instance
        self.incidents: list[Incident] = []
        self.find: Callable[[], Sequence[Incident]] = lambda: list(self.incidents)
        self.cursor: str | None = None

    def tick(self, timeout: float = 20.0) -> str:
        settings = load_settings(webhook=self.url, ui_url=UI)
        sensor = build_alerts_sensor(
            Deployment(settings), lambda context: self.find(), timeout=timeout
        )
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor)
        result = sensor.evaluate_tick(context)
        self.cursor = result.cursor
        assert result.skip_message
        return result.skip_message

    @property
    def outbox(self) -> Outbox:
        return Outbox.from_text(self.cursor)

    def fail_run(self, job: dg.JobDefinition, **tags: str) -> str:
        result = job.execute_in_process(
            instance=self.instance,
            raise_on_error=False,
            tags={f"dagster/{name}": value for name, value in tags.items()},
        )
        assert not result.success
        return result.run_id


@dg.op
def audit() -> None:
    raise dg.Failure("stg_orders: 1 day(s) failed the audit.\nMend the input named above.")


@dg.job
def reconcile() -> None:
    audit()


@dg.op
def divide() -> None:
    raise ZeroDivisionError("no orders on that day")


@dg.job
def nightly() -> None:
    audit()


@dg.job
def division() -> None:
    divide()


def store_failure(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Store the event of a failure without what follows it: the status, the tags."""
    event = dg.DagsterEvent(dg.DagsterEventType.RUN_FAILURE.value, run.job_name)
    instance.event_log_storage.store_event(
        dg.EventLogEntry(
            error_info=None,
            level=logging.ERROR,
            user_message="",
            run_id=run.run_id,
            timestamp=time.time(),
            dagster_event=event,
        )
    )


def make_incident(n: int, asset: str = "stg_orders", kind: str = "check failed") -> Incident:
    return Incident(kind, asset, f"2024-01-{n:02}", "the day is not published")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    hook = Webhook()
    yield hook
    hook.close()


@pytest.fixture(scope="module")
def instance_of_all(tmp_path_factory: pytest.TempPathFactory) -> dg.DagsterInstance:
    """An instance for all tests: its tables are made once."""
    return instance_in(tmp_path_factory.mktemp("instance"))


@pytest.fixture
def instance(instance_of_all: dg.DagsterInstance) -> dg.DagsterInstance:
    """An instance in which nothing has happened."""
    instance_of_all.wipe()
    return instance_of_all


@pytest.fixture
def desk(webhook: Webhook, instance: dg.DagsterInstance) -> Desk:
    """A desk that has ticked once before anything happened."""
    desk = Desk(webhook.url, instance)
    assert desk.tick() == "nothing new to tell"
    return desk


# Incidents


def test_one_message_an_incident_and_not_one_a_tick(desk: Desk, webhook: Webhook):
    desk.incidents = [make_incident(5)]
    assert desk.tick() == "1 alert delivered"
    assert [desk.tick() for _ in range(3)] == ["nothing new to tell"] * 3
    assert webhook.accepted == [
        "*stg_orders*: check failed for 2024-01-05\n"
        "the day is not published\n"
        f"{UI}/assets/stg_orders?view=partitions&partition=2024-01-05"
    ]


def test_what_a_look_finds_of_one_kind_about_one_asset_is_one_message(desk: Desk, webhook: Webhook):
    desk.incidents = [
        *map(make_incident, [9, 5, 7, 8]),
        make_incident(5, asset="fact_orders"),
        make_incident(5, kind="hole"),
    ]
    assert desk.tick() == "3 alerts delivered"
    assert webhook.accepted[0] == (
        "*stg_orders*: check failed for 2024-01-05, 2024-01-07...2024-01-09\n"
        "the day is not published\n"
        f"{UI}/assets/stg_orders?view=partitions"
    )
    assert [text.splitlines()[0] for text in webhook.accepted[1:]] == [
        "*fact_orders*: check failed for 2024-01-05",
        "*stg_orders*: hole for 2024-01-05",
    ]


def test_a_later_day_of_a_known_trouble_is_told_by_itself(desk: Desk, webhook: Webhook):
    desk.incidents = [make_incident(5)]
    desk.tick()
    desk.incidents.append(make_incident(6))
    desk.tick()
    assert "for 2024-01-06\n" in webhook.accepted[1]


def test_another_detail_of_a_known_incident_is_no_news(desk: Desk, webhook: Webhook):
    desk.incidents = [make_incident(5)]
    desk.tick()
    desk.incidents = [replace(make_incident(5), detail="3 hours late by now")]
    assert desk.tick() == "nothing new to tell"


def late_money(lines: float, amount: float) -> Incident:
    message = f"{lines:g} line(s) worth {amount:g}"
    return Incident("late money", "late", "2024-01-05", message, {"lines": lines, "amount": amount})


def test_money_that_has_doubled_since_it_was_told_is_told_again(desk: Desk, webhook: Webhook):
    sums = (10, 19, 20, 39, -40, 5, 70, 80)
    for amount in sums:
        desk.incidents = [late_money(3, amount)]
        desk.tick()
        assert desk.tick() == "nothing new to tell"
    assert [text.splitlines()[1] for text in webhook.accepted] == [
        "3 line(s) worth 10",
        "more than was told: 3 line(s) worth 20",
        "more than was told: 3 line(s) worth -40",
        "more than was told: 3 line(s) worth 80",
    ]


def test_lines_whose_amounts_cancel_out_are_told_by_their_number(desk: Desk, webhook: Webhook):
    for lines in (1, 2, 3, 4, 4):
        desk.incidents = [late_money(lines, 0)]
        desk.tick()
    assert len(webhook.accepted) == 3


def test_a_reason_that_was_not_told_is_told(desk: Desk, webhook: Webhook):
    for checks in (["nulls"], ["nulls", "unique_key"], ["unique_key"], ["nulls"], ["row_count"]):
        desk.incidents = [replace(make_incident(5), size=dict.fromkeys(checks, 1))]
        desk.tick()
    assert len(webhook.accepted) == 3


def test_growth_that_could_not_be_told_is_told_later(desk: Desk, webhook: Webhook):
    desk.incidents = [late_money(1, 10)]
    desk.tick()
    desk.incidents, webhook.says = [late_money(1, 50)], lambda text: 500
    desk.tick()
    webhook.says = lambda text: 200
    assert desk.tick() == "1 alert delivered"
    assert desk.tick() == "nothing new to tell"
    desk.incidents = [late_money(1, 99)]
    assert desk.tick() == "nothing new to tell"


def test_a_cursor_of_before_the_first_release_is_read_by_its_old_keys():
    spelled = [["2024-01-05", "2024-01-06"]]
    old = {
        "looked": 7.5,
        "seen": ["r1", "r2"],
        "waiting": {"r2": 6.5},
        "told": [["late money", "late", spelled, [], {"amount": 10}]],
        "attempts": {"run r2": 3},
        "blind": 2,
    }
    expected = Outbox(
        looked=7.5,
        seen_runs=frozenset({"r1", "r2"}),
        waiting={"r2": 6.5},
        reported={("late money", "late", "2024-01-05"): {"amount": 10}},
        attempts={"run r2": 3},
        unreadable_ticks=2,
    )
    assert Outbox.from_text(json.dumps(old)) == expected
    assert old.keys() & json.loads(expected.to_text()).keys() == {"attempts"}


def test_an_incident_that_comes_back_alerts_again(desk: Desk, webhook: Webhook):
    for incidents in [make_incident(5)], [], [make_incident(5)]:
        desk.incidents = incidents
        desk.tick()
    assert len(webhook.accepted) == 2


def test_an_incident_that_ends_before_it_could_be_told_is_not_told(desk: Desk, webhook: Webhook):
    webhook.says = lambda text: 500
    desk.incidents = [make_incident(5)]
    desk.tick()
    desk.incidents = []
    webhook.says = lambda text: 200
    assert desk.tick() == "nothing new to tell"
    assert not desk.outbox.attempts


def test_a_message_stays_short_whatever_it_tells(desk: Desk, webhook: Webhook):
    desk.incidents = [
        Incident("check failed", "stg_orders", f"20{n:02}-01-01", f"{n} " + "long" * 1000)
        for n in range(40)
    ]
    desk.tick()
    text = webhook.accepted[0]
    assert len(text) < 2500
    assert "2009-01-01, and 30 more\n" in text
    assert "and 35 more\n" in text


def test_an_incident_of_a_whole_asset_names_no_day(desk: Desk, webhook: Webhook):
    desk.incidents = [Incident("stale", "fact_orders", "", "nothing since 2024-01-05")]
    desk.tick()
    assert desk.tick() == "nothing new to tell"
    assert webhook.accepted == [
        f"*fact_orders*: stale\nnothing since 2024-01-05\n{UI}/assets/fact_orders"
    ]


def test_a_tick_tells_a_handful_and_the_next_ones_the_rest(desk: Desk, webhook: Webhook):
    desk.incidents = [make_incident(1, asset=f"asset_{n}") for n in range(12)]
    assert desk.tick() == "5 alerts delivered; 7 alerts waiting for the next tick"
    assert desk.tick() == "5 alerts delivered; 2 alerts waiting for the next tick"
    assert desk.tick() == "2 alerts delivered"
    assert len(set(webhook.accepted)) == len(webhook.accepted) == 12


def test_a_tick_ends_in_time_though_the_server_takes_its_time(
    desk: Desk, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(alerts, "POST_SECONDS", 0.1)
    webhook.says = lambda text: 500 if webhook.released.wait(0.15) else 200
    desk.incidents = [make_incident(1, asset=f"asset_{n}") for n in range(3)]
    assert "waiting for the next tick" in desk.tick()
    assert len(webhook.accepted) <= 1
    monkeypatch.setattr(alerts, "POST_SECONDS", 20.0)
    desk.tick()
    assert len(set(webhook.accepted)) == len(webhook.accepted) == 3


# Looking at the tables fails


def test_tables_that_cannot_be_looked_at_are_an_incident(desk: Desk, webhook: Webhook):
    desk.incidents = [make_incident(5)]
    desk.tick()
    known = desk.find

    def raise_unreachable() -> list[Incident]:
        raise OSError("the storage is gone")

    desk.find = raise_unreachable
    messages = [desk.tick() for _ in range(5)]
    trouble = "days cannot be checked: OSError: the storage is gone"
    assert messages == [trouble, trouble, f"1 alert delivered; {trouble}", trouble, trouble]
    assert webhook.accepted[1] == (
        "*all tables*: days cannot be checked\n"
        "OSError: the storage is gone. "
        "Checks, holes and delays go unnoticed until this is mended.\n"
        f"{UI}/assets"
    )
    # What was told before is still known, and the trouble is forgotten.
    desk.find = known
    assert desk.tick() == "nothing new to tell"
    desk.find = raise_unreachable
    assert "1 alert delivered" in [desk.tick() for _ in range(3)][2]


def test_a_failed_run_is_told_though_the_tables_cannot_be_looked_at(desk: Desk, webhook: Webhook):
    def raise_broken() -> list[Incident]:
        raise KeyError("what nobody thought of")

    desk.find = raise_broken
    desk.fail_run(nightly)
    assert desk.tick().startswith("1 alert delivered; ")
    assert "*nightly*" in webhook.accepted[0]


def test_a_storage_that_hangs_holds_nothing_up(
    desk: Desk, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(alerts, "LOOK_SECONDS", 0.05)
    release = threading.Event()

    def wait_for_release() -> list[Incident]:
        release.wait(30)
        return []

    desk.find = wait_for_release
    desk.fail_run(nightly)
    threads = set(threading.enumerate())
    message = desk.tick()
    new_threads = set(threading.enumerate()) - threads
    assert all(thread.daemon for thread in new_threads), "the process could not end"
    release.set()
    assert message == (
        "1 alert delivered; days cannot be checked: looking at the tables took longer than 0.05 s"
    )


# Failed runs


def test_a_failed_run_is_told_once_with_reason_and_link(desk: Desk, webhook: Webhook):
    run_id = desk.fail_run(
        nightly,
        asset_partition_range_start="2024-01-03",
        asset_partition_range_end="2024-01-05",
        schedule_name="nightly_schedule",
    )
    assert desk.tick() == "1 alert delivered"
    assert desk.tick() == "nothing new to tell"
    assert webhook.accepted == [
        "*nightly*: run failed for 2024-01-03...2024-01-05 (schedule nightly_schedule)\n"
        "audit: stg_orders: 1 day(s) failed the audit.\n"
        "Mend the input named above.\n"
        f"{UI}/runs/{run_id}"
    ]


def test_every_failed_run_is_a_message_of_its_own(desk: Desk, webhook: Webhook):
    runs = [desk.fail_run(nightly, partition="2024-01-05"), desk.fail_run(nightly, backfill="abcd")]
    assert desk.tick() == "2 alerts delivered"
    assert [text.splitlines()[-1] for text in webhook.accepted] == [f"{UI}/runs/{r}" for r in runs]
    assert "run failed for 2024-01-05 (started by hand)\n" in webhook.accepted[0]
    assert "run failed (backfill abcd)\n" in webhook.accepted[1]


def test_an_error_is_told_by_what_was_raised_and_not_by_its_stack(desk: Desk, webhook: Webhook):
    desk.fail_run(division)
    desk.tick()
    assert "\ndivide: ZeroDivisionError: no orders on that day\nhttp" in webhook.accepted[0]


def test_a_run_of_assets_names_them(desk: Desk, webhook: Webhook):
    @dg.asset
    def stg_orders() -> None:
        raise ValueError("x" * 5000)

    repository = dg.Definitions([stg_orders]).get_repository_def()
    result = repository.get_implicit_global_asset_job_def().execute_in_process(
        instance=desk.instance, raise_on_error=False, asset_selection=[dg.AssetKey("stg_orders")]
    )
    assert not result.success
    desk.tick()
    assert "run failed of stg_orders (started by hand)\n" in webhook.accepted[0]
    assert len(webhook.accepted[0]) < 2000


def test_a_run_that_came_to_no_step_says_why(desk: Desk, webhook: Webhook):
    run = desk.instance.create_run_for_job(nightly)
    desk.instance.report_run_failed(run, "The process of the run is gone.")
    desk.tick()
    assert "\nThe process of the run is gone.\nhttp" in webhook.accepted[0]


def test_a_fresh_start_tells_what_is_wrong_now_and_no_run_of_the_past(
    webhook: Webhook, instance: dg.DagsterInstance
):
    desk = Desk(webhook.url, instance)
    desk.fail_run(nightly)
    desk.incidents = [make_incident(5)]
    assert desk.tick() == "1 alert delivered"
    assert webhook.accepted[0].startswith("*stg_orders*: check failed")
    desk.fail_run(division)
    assert desk.tick() == "1 alert delivered"
    assert webhook.accepted[1].startswith("*division*: run failed")


def test_runs_are_read_page_by_page(desk: Desk, webhook: Webhook, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(alerts, "PAGE", 2)
    for _ in range(5):
        run = desk.instance.create_run_for_job(nightly)
        desk.instance.report_run_failed(run)
    assert desk.tick() == "5 alerts delivered"
    assert desk.tick() == "nothing new to tell"


def test_a_failure_that_was_stored_late_is_not_missed(desk: Desk, webhook: Webhook):
    desk.fail_run(nightly)
    desk.tick()
    # As if the event had not been there yet, for all that it says that it is older than the look.
    desk.cursor = replace(desk.outbox, seen_runs=frozenset()).to_text()
    assert desk.tick() == "1 alert delivered"


def test_a_clock_that_was_set_back_hides_no_failure(desk: Desk, webhook: Webhook):
    desk.cursor = replace(desk.outbox, looked=4e9).to_text()
    desk.fail_run(nightly)
    assert desk.tick() == "1 alert delivered"


def test_a_failure_of_which_only_the_event_is_stored_waits_for_the_status(
    desk: Desk, webhook: Webhook
):
    run = desk.instance.create_run_for_job(nightly, status=dg.DagsterRunStatus.STARTED)
    store_failure(desk.instance, run)
    assert desk.tick() == "nothing new to tell"
    desk.instance.report_run_failed(run)
    assert desk.tick() == "1 alert delivered"
    assert desk.tick() == "nothing new to tell"


def test_a_run_that_was_taken_for_dead_and_succeeded_is_not_told(desk: Desk, webhook: Webhook):
    run = desk.instance.create_run_for_job(nightly, status=dg.DagsterRunStatus.SUCCESS)
    store_failure(desk.instance, run)
    assert desk.tick() == "nothing new to tell"
    assert not desk.outbox.waiting


def test_a_reconciliation_that_a_person_asked_for_is_no_alert(desk: Desk, webhook: Webhook):
    """It fails if something is missing, and the person sees it; that of a stage is told."""
    desk.fail_run(reconcile)
    assert desk.tick() == "nothing new to tell"
    result = reconcile.execute_in_process(
        instance=desk.instance, raise_on_error=False, tags={RECONCILES_TAG: "aecrkdop-rest"}
    )
    assert not result.success
    assert desk.tick() == "1 alert delivered"


def test_a_tag_put_on_an_old_failure_is_no_news(desk: Desk, webhook: Webhook):
    run_id = desk.fail_run(nightly)
    desk.tick()
    desk.instance.add_run_tags(run_id, {"cause": "found"})
    assert desk.tick() == "nothing new to tell"


def test_a_deleted_run_is_not_told(desk: Desk, webhook: Webhook):
    webhook.says = lambda text: 500
    run_id = desk.fail_run(nightly)
    desk.tick()
    assert list(desk.outbox.waiting) == [run_id]
    desk.instance.delete_run(run_id)
    assert desk.tick() == "nothing new to tell"
    assert not desk.outbox.waiting


# Runs that Dagster tries again


@pytest.fixture
def retrying(webhook: Webhook) -> Desk:
    instance = dg.DagsterInstance.ephemeral(settings={"run_retries": RETRIES})
    desk = Desk(webhook.url, instance)
    desk.tick()
    return desk


def test_of_a_run_and_its_retry_only_the_last_failure_is_told(retrying: Desk, webhook: Webhook):
    first = retrying.fail_run(nightly)
    assert retrying.tick() == "nothing new to tell"
    last = retrying.fail_run(nightly, max_retries="0", retry_number="1")
    retrying.instance.add_run_tags(first, {"dagster/auto_retry_run_id": last})
    assert retrying.tick() == "1 alert delivered"
    assert "run failed (retry 1)" in webhook.accepted[0]
    assert webhook.accepted[0].endswith(last)
    assert not retrying.outbox.waiting


def test_a_retry_that_was_given_up_is_told(retrying: Desk, webhook: Webhook):
    run_id = retrying.fail_run(nightly)
    assert retrying.tick() == "nothing new to tell"
    retrying.instance.add_run_tags(run_id, {"dagster/will_retry": "false"})
    assert retrying.tick() == "1 alert delivered"


def test_a_retry_that_does_not_come_is_told(
    retrying: Desk, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
):
    retrying.fail_run(nightly)
    assert retrying.tick() == "nothing new to tell"
    monkeypatch.setattr(alerts, "RETRY_SECONDS", 0.0)
    assert retrying.tick() == "1 alert delivered"


def test_a_failure_waits_until_dagster_has_said_whether_it_retries(
    desk: Desk, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
):
    run_id = desk.fail_run(nightly)  # with retries off no tag is set: as if it were still to come
    monkeypatch.setattr(dg.DagsterInstance, "run_retries_enabled", True)
    assert desk.tick() == "nothing new to tell"
    desk.instance.add_run_tags(run_id, {"dagster/will_retry": "false"})
    assert desk.tick() == "1 alert delivered"


# Delivery


def test_a_refused_alert_is_posted_again_until_it_is_taken(desk: Desk, webhook: Webhook):
    webhook.says = lambda text: 500
    desk.incidents = [make_incident(5)]
    desk.fail_run(nightly)
    assert desk.tick() == "could not deliver (HTTP 500, attempt 1): 2 alerts waiting"
    assert len(webhook.received) == 1, "one refusal a tick is enough"
    assert desk.tick() == "could not deliver (HTTP 500, attempt 1): 2 alerts waiting"
    assert desk.tick() == "could not deliver (HTTP 500, attempt 2): 2 alerts waiting"
    webhook.says = lambda text: 200
    assert desk.tick() == "2 alerts delivered"
    assert not desk.outbox.attempts
    assert desk.tick() == "nothing new to tell"
    assert len(webhook.accepted) == 2


def test_a_message_that_is_never_taken_does_not_hold_up_the_others(desk: Desk, webhook: Webhook):
    webhook.says = lambda text: 400 if "poison" in text else 200
    desk.incidents = [
        make_incident(1, asset="poison"),
        *(make_incident(1, asset=f"a{n}") for n in range(6)),
    ]
    for _ in range(4):
        desk.tick()
    assert len(set(webhook.accepted)) == len(webhook.accepted) == 6
    assert desk.outbox.attempts == {"check failed: poison": 3}


def test_a_server_that_is_down_gets_the_alert_when_it_is_up(instance: dg.DagsterInstance):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    desk = Desk(f"http://127.0.0.1:{port}/services/{SECRET}", instance)
    desk.incidents = [make_incident(5)]
    assert desk.tick() == "could not deliver (ConnectionError, attempt 1): 1 alert waiting"
    hook = Webhook(port)
    try:
        assert desk.tick() == "1 alert delivered"
        assert desk.tick() == "nothing new to tell"
        assert len(hook.accepted) == 1
    finally:
        hook.close()


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (500, "HTTP 500"),
        (429, "HTTP 429"),
        (302, "HTTP 302"),
        (307, "HTTP 307"),
        ("silence", f"ReadTimeout|no answer within {2 * SHORT:g} s"),
        ("drips", f"ReadTimeout|no answer within {2 * SHORT:g} s"),
        ("hangs up", "ConnectionError"),
    ],
)
def test_whatever_the_server_does_the_alert_waits_and_the_secret_stays(
    desk: Desk,
    webhook: Webhook,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    behaviour: int | str,
    error: str,
):
    caplog.set_level(logging.DEBUG)
    # The small timeout is for those servers that let it pass: the others have all the time.
    timeout = SHORT if behaviour in ("silence", "drips") else 20.0
    webhook.says = lambda text: behaviour
    desk.incidents = [make_incident(5)]
    message = desk.tick(timeout)
    assert re.fullmatch(rf"could not deliver \(({error}), attempt 1\): 1 alert waiting", message)
    assert webhook.visits == [f"/services/{SECRET}"], "no redirect is followed"
    webhook.says = lambda text: 200
    assert desk.tick() == "1 alert delivered"
    assert len(webhook.accepted) == 1
    streams = capfd.readouterr()
    for place in (message, desk.cursor, caplog.text, streams.out, streams.err, *webhook.received):
        assert SECRET not in str(place)


def test_an_answer_is_its_status_however_long_its_body_takes(desk: Desk, webhook: Webhook):
    webhook.says = lambda text: "drips the body"
    desk.incidents = [make_incident(5)]
    assert desk.tick() == "1 alert delivered"


def test_the_secret_does_not_get_into_a_message(desk: Desk, webhook: Webhook):
    desk.incidents = [replace(make_incident(5), detail=f"posted to {webhook.url} in vain")]
    desk.tick()
    assert "posted to (hidden) in vain" in webhook.accepted[0]


@pytest.mark.parametrize("url", ["http://.example/", "http://[::1/", "http://a b/", "http://x:y/"])
def test_a_url_that_leads_nowhere_is_an_error_and_no_exception(url: str):
    assert post_text(f"{url}{SECRET}", "text") in {
        "InvalidURL",
        "LocationParseError",
        "UnicodeError",
    }


def test_without_a_webhook_nothing_is_touched(webhook: Webhook, instance: dg.DagsterInstance):
    desk = Desk(webhook.url, instance)
    desk.incidents = [make_incident(5)]
    desk.tick()
    before, desk.url = desk.cursor, None
    desk.incidents = []
    assert desk.tick() == "no webhook is set: BACKFILL_ASSETS_WEBHOOK"
    assert desk.cursor == before


# The cursor


def test_a_restart_neither_loses_nor_repeats(desk: Desk, webhook: Webhook):
    webhook.says = lambda text: 200 if "hole" in text else 500
    desk.incidents = [make_incident(3, kind="hole"), make_incident(5)]
    run_id = desk.fail_run(nightly)
    desk.tick()
    restarted = Desk(webhook.url, desk.instance)
    restarted.cursor, restarted.incidents = desk.cursor, desk.incidents
    webhook.says = lambda text: 200
    assert restarted.tick() == "2 alerts delivered"
    assert restarted.tick() == "nothing new to tell"
    heads = sorted(text.splitlines()[0].split(" for ")[0] for text in webhook.accepted)
    assert heads == [
        "*nightly*: run failed (started by hand)",
        "*stg_orders*: check failed",
        "*stg_orders*: hole",
    ]
    assert sum(run_id in text for text in webhook.accepted) == 1


def test_a_tick_that_was_killed_before_its_cursor_was_saved_tells_again(
    desk: Desk, webhook: Webhook
):
    desk.incidents = [make_incident(5)]
    before = desk.cursor
    desk.tick()
    desk.cursor = before
    desk.tick()
    assert len(webhook.accepted) == 2


@pytest.mark.parametrize(
    "cursor",
    [
        *["", "null", "[]", "{}", "7", "not JSON", '{"runs_read_at": 1}'],
        Outbox().to_text().replace('"unreadable_ticks": 0', '"unreadable_ticks": 1e999'),
    ],
)
def test_a_garbled_cursor_is_a_fresh_start(
    webhook: Webhook, instance: dg.DagsterInstance, cursor: str
):
    desk = Desk(webhook.url, instance)
    desk.fail_run(nightly)
    desk.cursor, desk.incidents = cursor, [make_incident(5)]
    assert desk.tick() == "1 alert delivered"
    assert desk.tick() == "nothing new to tell"


names = st.text(max_size=5)
items = st.dates().map(str) | names
numbers = st.floats(allow_nan=False, allow_infinity=False)
outboxes = st.builds(
    Outbox,
    looked=st.none() | numbers,
    seen_runs=st.frozensets(names),
    waiting=st.dictionaries(names, numbers),
    reported=st.dictionaries(st.tuples(names, names, items), st.dictionaries(names, numbers)),
    attempts=st.dictionaries(names, st.integers()),
    unreadable_ticks=st.integers(),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates().map(str),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=30)
@given(outboxes)
@example(Outbox(reported={("hole", "raw_orders", "20240105"): {}}))
def test_an_outbox_is_the_same_after_a_restart(outbox: Outbox):
    assert Outbox.from_text(outbox.to_text()) == outbox


@settings(max_examples=30)
@given(st.sampled_from(list(json.loads(Outbox().to_text()))), values)
def test_no_cursor_breaks_the_sensor(name: str, value: object):
    saved = {**json.loads(Outbox().to_text()), name: value}
    Outbox.from_text(Outbox.from_text(json.dumps(saved)).to_text())


def test_years_of_told_days_do_not_make_the_cursor_long(desk: Desk, webhook: Webhook):
    desk.incidents = [
        Incident("hole", "raw_orders", f"{year}-{month:02}-{day:02}", "no input", {"x": year % 2})
        for year in range(2000, 2020)
        for month in range(1, 13)
        for day in range(1, 29)
    ]
    desk.tick()
    assert desk.tick() == "nothing new to tell"
    assert desk.cursor
    assert len(desk.cursor) < 10_000
