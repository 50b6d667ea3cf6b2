"""Launch two backfills through the pages of a running Dagster webserver, and check what came of it.

Buttons are clicked and pages are looked at in Debian's chromium; what happened is then asked of
GraphQL, not of the pages:

    python -m backfill_assets_tests.ui.drive --url http://127.0.0.1:3000 --shots docs/ui

The server should be on an instance of its own. The exit status is 1, after one sentence, if
anything does not come about.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from selenium import webdriver
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from backfill_assets_tests.helpers.graphql import RefusedQueryError, ask
from backfill_assets_tests.ui.browser import open_chromium

ALL = ("raw_orders", "raw_orders_rejected", "stg_orders", "late_orders", "fact_daily_orders")
LOCATION = "backfill_assets.definitions"
STAGED_ON = ("stg_orders", "fact_daily_orders")
#: In `backfill_assets_guide.examples.host_project`: the tables, and what reads them.
HOST_TABLES = tuple(
    f"lake/gold/{name}"
    for name in ("raw_visits", "raw_visits_rejected", "stg_visits", "active_users_7d")
)
HOST_READERS = ("users_report", "clicks_per_user")
#: The checks that look at a table as a whole, and not at a day.
ABOUT_TABLES = ("days", "final_days", "one_code")
#: Whatever a page shows comes within so many seconds, also beside somebody else's Spark.
PATIENCE = 120

_JOB_RUNS = """query ($job: String!) { runsOrError(filter: {pipelineName: $job}, limit: 20) {
  ... on Runs { results { runId status } } } }"""
_BACKFILL = """query ($id: String!) { partitionBackfillOrError(backfillId: $id) {
  ... on PartitionBackfill { status error { message } runs(limit: 100) { runId status } } } }"""
_MATERIALIZED = """query ($asset: AssetKeyInput!) { assetOrError(assetKey: $asset) {
  ... on Asset { assetMaterializations(limit: 1000) { runId partition } } } }"""
_CHECKS = """query ($asset: AssetKeyInput!) { assetNodeOrError(assetKey: $asset) {
  ... on AssetNode { assetChecksOrError { ... on AssetChecks { checks { name
    partitionStatuses { ... on AssetCheckTimePartitionStatuses {
      ranges { startKey endKey status } } } } } } } } }"""
_EVALUATED = """query ($asset: AssetKeyInput!, $check: String!) {
  assetCheckExecutions(assetKey: $asset, checkName: $check, limit: 1000) {
    runId partition evaluation { success severity description } } }"""


class WrongError(Exception):
    """Something did not come about; the message is one sentence."""


@dataclass(frozen=True)
class Days:
    """A range of days as Dagster's dialogs take it, both ends included."""

    first: date
    last: date

    @classmethod
    def parse(cls, text: str) -> Days:
        """Read `2024-01-01...2024-01-10`."""
        first, last = map(date.fromisoformat, text.split("..."))
        return cls(first, last)

    def __iter__(self) -> Iterator[str]:
        """The partition keys, in order."""
        return (str(self.first + timedelta(days=n)) for n in range(len(self)))

    def __len__(self) -> int:
        return (self.last - self.first).days + 1

    def __str__(self) -> str:
        return f"{self.first}...{self.last}"


@dataclass(frozen=True)
class Server:
    """A Dagster webserver, asked by GraphQL."""

    url: str

    def run_query(self, query: str, **variables: Any) -> Any:
        """The one field that a query asks for."""
        return ask(self.url, query, **variables)

    def list_run_ids(self, backfill: str) -> set[str]:
        """The ids of a backfill's runs."""
        return {run["runId"] for run in self.run_query(_BACKFILL, id=backfill)["runs"]}

    def count_materialized(self, asset: str, backfill: str) -> int:
        """How many days of an asset a backfill has built so far."""
        runs = self.list_run_ids(backfill)
        key = {"path": asset.split("/")}
        events = self.run_query(_MATERIALIZED, asset=key)["assetMaterializations"]
        return len({event["partition"] for event in events if event["runId"] in runs})

    def run_statuses(self, job: str) -> dict[str, str]:
        """The status of a job's runs, by id."""
        return {r["runId"]: r["status"] for r in self.run_query(_JOB_RUNS, job=job)["results"]}

    def wait_for_job_run(self, job: str, before: Container[str], minutes: float) -> str:
        """Wait for a run of a job that was not there before to succeed; its id.

        Raises:
            WrongError: it did not succeed, or not in time.
        """
        deadline = time.monotonic() + minutes * 60
        while time.monotonic() < deadline:
            for run, status in self.run_statuses(job).items():
                if run not in before and status == "SUCCESS":
                    return run
                if run not in before and status in ("FAILURE", "CANCELED"):
                    raise WrongError(f"Run {run} of {job} ended as {status}.")
            time.sleep(2)
        raise WrongError(f"No run of {job} has succeeded after {minutes:g} minutes.")

    def wait_for_backfill(self, backfill: str, minutes: float) -> None:
        """Wait for a backfill to end.

        Raises:
            WrongError: it did not succeed, or not in time.
        """
        deadline = time.monotonic() + minutes * 60
        while time.monotonic() < deadline:
            result = self.run_query(_BACKFILL, id=backfill)
            if result["status"] == "COMPLETED_SUCCESS":
                return
            if result["status"] not in ("REQUESTED", "COMPLETING"):
                reason = (result["error"] or {}).get("message", "see its runs")
                raise WrongError(f"Backfill {backfill} ended as {result['status']}: {reason}.")
            time.sleep(2)
        raise WrongError(f"Backfill {backfill} has not ended after {minutes:g} minutes.")


@dataclass(frozen=True)
class Pages:
    """The server's pages in a browser."""

    browser: webdriver.Chrome
    server: Server
    shots: Path

    def open_page(self, path: str) -> None:
        """Go to a page."""
        self.browser.get(f"{self.server.url}{path}")

    def wait_for_element(self, xpath: str, count: int = 1) -> WebElement:
        """Wait until an element is visible (if `count` is given, that many); the first of them.

        Raises:
            WrongError: it does not appear.
        """

        def visible_elements(browser: webdriver.Chrome) -> list[WebElement]:
            elements = [e for e in browser.find_elements(By.XPATH, xpath) if e.is_displayed()]
            return elements if len(elements) >= count else []

        # Pages are redrawn while they are looked at, so that an element can be gone again.
        wait = WebDriverWait(self.browser, PATIENCE, ignored_exceptions=[WebDriverException])
        try:
            return wait.until(visible_elements)[0]
        except TimeoutException:
            raise WrongError(f"{self.browser.current_url} does not show {xpath}.") from None

    def wait_for_text(self, words: str, count: int = 1) -> WebElement:
        """Wait for an element with exactly this text."""
        return self.wait_for_element(f"//*[normalize-space(text())='{words}']", count)

    def scroll_to_text(self, words: str) -> None:
        """Bring the last element with this text to the top."""
        self.wait_for_text(words)
        elements = self.browser.find_elements(By.XPATH, f"//*[normalize-space(text())='{words}']")
        self.browser.execute_script("arguments[0].scrollIntoView(true)", elements[-1])

    def click_element(self, xpath: str) -> None:
        """Click what `wait_for_element` finds, once it can be clicked."""
        wait = WebDriverWait(self.browser, PATIENCE, ignored_exceptions=[WebDriverException])
        wait.until(
            lambda _: (
                self.wait_for_element(xpath).is_enabled()
                and self.wait_for_element(xpath).click() is None
            )
        )

    def take_picture(self, name: str) -> None:
        """Keep a picture, after a moment in which transitions end and numbers arrive."""
        time.sleep(3)
        self.browser.save_screenshot(str(self.shots / f"{name}.png"))

    def launch_backfill(self, assets: Sequence[str], days: Days, picture: str | None = None) -> str:
        """Launch a backfill from the asset graph; its id."""
        self.open_page(f"/asset-groups~/{quote(','.join(assets), safe=',')}")
        self.click_element(f"//button[contains(., 'Materialize selected ({len(assets)})')]")
        self.wait_for_text(f"Launch runs to materialize {len(assets)} assets")
        field = self.wait_for_element(
            "//input[starts-with(@placeholder, 'ex: ') or @placeholder='No matching partitions']"
        )
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(f"[{days}]", Keys.TAB)
        self.wait_for_text(f"{len(days)} partitions")
        if picture:
            self.take_picture(picture)
        self.click_element("//button[normalize-space()='Launch backfill']")
        message = self.wait_for_element(
            "//*[starts-with(normalize-space(text()), 'Created backfill')]"
        ).text
        return re.findall(r"Created backfill\W+(\w+)", message)[0]

    def watch_backfill(
        self, backfill: str, assets: Sequence[str], minutes: float, picture: str | None = None
    ) -> None:
        """Wait, on its page, for a backfill to be green."""
        self.open_page(f"/runs/b/{backfill}")
        self.server.wait_for_backfill(backfill, minutes)
        self.wait_for_text("Succeeded", 2)  # the tag, and the head of the column
        self.wait_for_text("100% completed", len(assets))
        if picture:
            self.take_picture(picture)

    def picture_backfill(self, backfill: str, days: Days) -> None:
        """A picture of a day's materialization; its checks and a run are looked at as well."""
        # The later days are still open in staging (log days to come), which shows as "Unsynced".
        day = str(days.first)
        self.open_page(f"/assets/stg_orders?view=partitions&partition={day}")
        self.wait_for_element("//*[contains(text(), 'Materialized (')]")
        self.wait_for_text("dagster/partition_row_count")
        self.take_picture("partitions")

        self.open_page("/assets/stg_orders?view=checks&checkDetail=conservation")
        self.click_element(
            "//*[@role='tab'][normalize-space()='Execution history']"
            "/following-sibling::*[@role='tab'][normalize-space()='Partitions']"
        )
        field = "//input[starts-with(@placeholder, 'Filter by partition')]"
        self.wait_for_element(field).send_keys(day)
        self.click_element(f"{field}/following::*[text()='{day}']")
        self.wait_for_text("Latest execution")

        self.open_page(f"/runs/{min(self.server.list_run_ids(backfill))}")
        self.wait_for_text("RUN_SUCCESS")

    def run_job(self, name: str, config: Mapping[str, Any], minutes: float) -> str:
        """Launch a run of a job from its launchpad, and wait for it; its id."""
        before = self.server.run_statuses(name).keys()
        # YAML takes JSON.
        run_config = quote(json.dumps({"ops": config}, indent=1))
        self.open_page(f"/locations/{LOCATION}/jobs/{name}/playground/setup?config={run_config}")
        launch = "//button[normalize-space()='Launch Run']"
        self.click_element(launch)
        return self.server.wait_for_job_run(name, before, minutes)

    def run_planned_backfill(self, days: Days, minutes: float) -> None:
        """A planned backfill by the jobs alone: launched, reconciled, and undone."""
        reconciled = self.server.run_statuses("reconcile").keys()
        config = {"days": str(days), "pilot_days": 1, "rewrite": True, "reason": "a walk"}
        run = self.run_job("backfill", {"launch_stages": {"config": config}}, minutes)
        self.picture_account(run, "days", "job-backfill-run")
        pilot = self.server.wait_for_job_run("reconcile", reconciled, minutes)
        rest = self.server.wait_for_job_run("reconcile", {*reconciled, pilot}, minutes)
        self.picture_account(rest, "account", "job-reconcile-run")
        undone = {"backfill": run[:8], "reason": "only a walk"}
        self.run_job("undo", {"put_back": {"config": undone}}, minutes)

    def run_host_project(self, days: Days, minutes: float) -> str:
        """A backfill of a project's tables and of what reads them; its id.

        Raises:
            WrongError: a reader was not materialized for each day.
        """
        assets = (*HOST_TABLES, *HOST_READERS)
        backfill = self.launch_backfill(assets, days)
        self.watch_backfill(backfill, assets, minutes, "host-project-backfill")
        for asset in HOST_READERS:
            if (count := self.server.count_materialized(asset, backfill)) != len(days):
                raise WrongError(f"{backfill} built {count} days of {asset}, not {len(days)}.")
        return backfill

    def picture_account(self, run: str, heading: str, picture: str) -> None:
        """A picture of a table in which a run of a job tells of its work."""
        self.open_page(f"/runs/{run}")
        self.wait_for_text("RUN_SUCCESS")
        shown = f"//*[normalize-space(text())='{heading}']"
        self.click_element(f"{shown}/following::*[normalize-space(text())='[Show Markdown]'][1]")
        self.wait_for_element("//table//td")
        self.take_picture(picture)

    def picture_late_data(self) -> None:
        """Pictures of what shows late data: schedule and sensors, states, figures."""
        self.open_page("/automation")
        for name in ("nightly", "touched_days", "watch_days", "alerts", "lost_retries"):
            self.wait_for_text(name)
        self.take_picture("automation")

        self.open_page("/assets/fact_daily_orders?view=checks&checkDetail=days")
        self.wait_for_text("newest_day")
        self.take_picture("days-check")

        self.browser.set_window_size(1600, 1900)
        self.open_page("/asset-groups~/arrival_lateness")  # the sidebar has the plots
        self.scroll_to_text("Metadata plots")
        self.scroll_to_text("caught_by_W_7")
        self.take_picture("lateness-plots")

    def picture_lateness_page(self, page: Path) -> None:
        """Pictures of the lateness page: wide and light, and as a phone has it in the dark.

        Raises:
            WrongError: the narrow page has to be moved sideways to be read.
        """
        width = 420
        for name, scheme, size in (
            ("lateness-dashboard", "light", (1200, 3500)),
            ("lateness-dashboard-narrow", "dark", (width, 1800)),
        ):
            shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            self.browser.get(page.resolve().as_uri())
            self.wait_for_element("//figure", 5)
            self.take_picture(name)
        needed = self.browser.execute_script("return document.documentElement.scrollWidth")
        if needed > width:
            raise WrongError(f"The lateness page needs {needed} pixels where there are {width}.")


@contextmanager
def open_pages(server: Server, shots: Path) -> Iterator[Pages]:
    """The server's pages in a browser, closed in the end."""
    with open_chromium() as browser:
        yield Pages(browser, server, shots)


def verify_backfill(server: Server, backfill: str, assets: Sequence[str], days: Days) -> str:
    """Check that a backfill built exactly these days, each with all its checks; a summary.

    Raises:
        WrongError: a day is missing, there twice or not asked for, or one of its checks is not
            evaluated, failed, or not shown as evaluated.
    """
    runs, expected, checked = server.list_run_ids(backfill), Counter(days), 0
    for asset in assets:
        key = {"path": asset.split("/")}
        events = server.run_query(_MATERIALIZED, asset=key)["assetMaterializations"]
        built = Counter(event["partition"] for event in events if event["runId"] in runs)
        if built != expected:
            raise WrongError(f"{backfill} built {asset} for {_spans(built)} and not for {days}.")
        for check in server.run_query(_CHECKS, asset=key)["assetChecksOrError"]["checks"]:
            if check["name"] in ABOUT_TABLES:
                continue
            where = f"The check {check['name']} of {asset}"
            evaluations = server.run_query(_EVALUATED, asset=key, check=check["name"])
            evaluations = [evaluation for evaluation in evaluations if evaluation["runId"] in runs]
            if Counter(evaluation["partition"] for evaluation in evaluations) != expected:
                evaluated_days = _spans(
                    Counter(evaluation["partition"] for evaluation in evaluations)
                )
                raise WrongError(f"{where} has entries for {evaluated_days} and not for {days}.")
            for evaluation in evaluations:
                outcome = evaluation["evaluation"]
                if outcome is None or not (outcome["success"] or outcome["severity"] == "WARN"):
                    description = outcome["description"] if outcome else "still planned"
                    raise WrongError(
                        f"{where} has not passed on {evaluation['partition']}: {description}."
                    )
            shown = {
                day
                for span in check["partitionStatuses"]["ranges"]
                if span["status"] in ("SUCCEEDED", "FAILED")  # FAILED is also a warning
                for day in Days.parse(f"{span['startKey']}...{span['endKey']}")
            }
            if not shown.issuperset(expected):
                missing = len(expected.keys() - shown)
                raise WrongError(f"{where} is evaluated, but shown as missing on {missing} day(s).")
            checked += len(evaluations)
    return (
        f"backfill {backfill}: {len(runs)} run(s), {len(assets)} asset(s), each for exactly the "
        f"{len(days)} day(s) {days}; {checked} check evaluations"
    )


def _spans(days: Counter[str]) -> str:
    return ", ".join(d if n == 1 else f"{d} ({n} times)" for d, n in sorted(days.items())) or "none"


def main(arguments: Sequence[str] | None = None) -> int:
    """Drive the pages; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True, help="of the webserver")
    parser.add_argument("--shots", type=Path, required=True, help="folder for the pictures")
    parser.add_argument(
        "--days",
        type=Days.parse,
        default="2024-01-01...2024-01-10",
        help="for all assets; not from the first partition on, more days of staging are built: "
        "all that these days of the log can change",
    )
    parser.add_argument(
        "--again",
        type=Days.parse,
        default="2024-01-02...2024-01-06",
        help="for staging and fact alone, among the days that are there",
    )
    parser.add_argument(
        "--page", type=Path, help="only the pictures of late data: the lateness page"
    )
    parser.add_argument(
        "--long", type=Days.parse, help="only one launch, of this range, in runs of a few days"
    )
    parser.add_argument(
        "--planned",
        type=Days.parse,
        help="only the jobs: launch a backfill of these days, see it reconciled, and undo it",
    )
    parser.add_argument(
        "--host", type=Days.parse, help="only a backfill of the example `host_project` with dbt"
    )
    parser.add_argument("--minutes", type=float, default=30, help="patience with one backfill")
    options = parser.parse_args(arguments)
    options.shots.mkdir(parents=True, exist_ok=True)
    server = Server(options.url.rstrip("/"))
    try:
        server.run_query("mutation { setNuxSeen }")  # no invitation to a newsletter over the pages
        if options.page:
            with open_pages(server, options.shots) as pages:
                pages.picture_late_data()
                pages.picture_lateness_page(options.page)
            return 0
        if options.planned:
            with open_pages(server, options.shots) as pages:
                pages.run_planned_backfill(options.planned, options.minutes)
            return 0
        if options.long:
            with open_pages(server, options.shots) as pages:
                backfill = pages.launch_backfill(ALL, options.long)
                pages.watch_backfill(backfill, ALL, options.minutes)
            print(verify_backfill(server, backfill, ALL, options.long))
            return 0
        if options.host:
            with open_pages(server, options.shots) as pages:
                backfill = pages.run_host_project(options.host, options.minutes)
            print(verify_backfill(server, backfill, HOST_TABLES, options.host))
            return 0
        with open_pages(server, options.shots) as pages:
            whole = pages.launch_backfill(ALL, options.days, "launch-dialog")
            pages.watch_backfill(whole, ALL, options.minutes)
            pages.picture_backfill(whole, options.days)
            part = pages.launch_backfill(STAGED_ON, options.again)
            pages.watch_backfill(part, STAGED_ON, options.minutes)
        print(verify_backfill(server, whole, ALL, options.days))
        print(verify_backfill(server, part, STAGED_ON, options.again))
    except (WrongError, RefusedQueryError, OSError, WebDriverException) as error:
        print(str(error).strip().splitlines()[0], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
