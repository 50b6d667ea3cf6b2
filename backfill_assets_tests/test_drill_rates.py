"""The service of drill `quota`: what it answers, who pays, and when it ends; without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
import requests

from backfill_assets_guide.drills import journal, playing, rates
from backfill_assets_guide.drills.deployment import DrillDeployment
from backfill_assets_guide.drills.outages import OUTAGES
from backfill_assets_guide.drills.places import OWN, RATES_PORT, RATES_URL, DrillError
from backfill_assets_guide.labs.loopback import set_environment
from backfill_assets_tests.helpers.process_kills import wait_for


@pytest.fixture
def deployment(tmp_path) -> Iterator[DrillDeployment]:
    incident = DrillDeployment.create(tmp_path / "incident", 5, 2, OUTAGES["quota"].tables_path)
    yield incident
    shutil.rmtree(incident.folder, ignore_errors=True)  # the service ends


def call_status(deployment: DrillDeployment, day: str = "2024-01-02") -> int:
    """The status of a call."""
    url = deployment.variables[RATES_URL]
    return requests.get(f"{url}/rates/{day}/USD", timeout=30).status_code


def is_up(deployment: DrillDeployment) -> bool:
    try:
        return call_status(deployment) > 0
    except requests.ConnectionError:
        return False


def test_it_takes_the_calls_that_are_paid_for(deployment):
    rates.start_service(deployment.folder)
    assert call_status(deployment) == 403
    days = deployment.days
    message = OUTAGES["quota"].on_ask(deployment, days, [*days][:4])
    assert message == f"The service takes more calls, for {days}: 4."
    assert [call_status(deployment, str(day)) for day in days] == [200] * 4 + [403]
    url = deployment.variables[RATES_URL]
    assert requests.get(f"{url}/elsewhere", timeout=30).status_code == 404


def test_it_ends_with_the_drill(deployment):
    rates.pay_calls(deployment.folder, 2)
    rates.start_service(deployment.folder)
    assert call_status(deployment) == 200
    journal.record_event(deployment.folder, journal.END)
    wait_for(lambda: not is_up(deployment))


def test_it_ends_with_its_folder_and_starts_again_where_it_was(deployment):
    """As after the machine was started again: `env.sh` has its URL, and the calls are counted."""
    rates.pay_calls(deployment.folder, 2)
    rates.start_service(deployment.folder)
    assert call_status(deployment) == 200
    elsewhere = deployment.folder.with_name("elsewhere")
    deployment.folder.rename(elsewhere)
    wait_for(lambda: not is_up(DrillDeployment(elsewhere)))
    elsewhere.rename(deployment.folder)
    before = deployment.variables
    rates.start_service(deployment.folder)
    assert deployment.variables == before
    assert [call_status(deployment, f"2024-01-0{n}") for n in (3, 4)] == [200, 403]


def test_a_copy_asks_no_service_of_the_other_folder(deployment, tmp_path):
    rates.pay_calls(deployment.folder, 1)
    with rates.serve_rates(deployment.folder):
        copy = deployment.copy_to(tmp_path / "copy", loaded=False)
        assert RATES_URL not in copy.variables
        whole = shutil.copytree(deployment.folder, tmp_path / "whole")
        assert call_status(DrillDeployment(whole)) == 404
        assert call_status(deployment) == 200


def test_a_call_that_is_repeated_counts_once(deployment):
    rates.pay_calls(deployment.folder, 1)
    with rates.serve_rates(deployment.folder):
        assert [call_status(deployment), call_status(deployment)] == [200, 200]
        assert call_status(deployment, "2024-01-03") == 403


def test_no_proxy_is_asked(deployment, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    rates.start_service(deployment.folder)
    with set_environment(deployment.variables):
        assert call_status(deployment) == 403


def test_a_start_that_is_broken_off_ends_the_service(deployment, monkeypatch, tmp_path):
    def strike(target: DrillDeployment, *_) -> None:
        rates.start_service(target.folder)
        assert call_status(target) == 403
        raise KeyboardInterrupt

    outage = replace(OUTAGES["quota"], strike=strike)
    monkeypatch.setitem(playing.OUTAGES, "quota", outage)
    with pytest.raises(KeyboardInterrupt):
        playing.begin_drill(None, deployment, tmp_path / "begun", "quota", Random(1))
    wait_for(lambda: not is_up(DrillDeployment(tmp_path / "begun")))


def test_a_port_that_somebody_else_has(deployment, tmp_path):
    other = DrillDeployment.create(tmp_path / "other", 5, 2)
    with rates.serve_rates(other.folder):
        port = (other.folder / OWN / RATES_PORT).read_text()
        (deployment.folder / OWN / RATES_PORT).write_text(port)
        with pytest.raises(DrillError, match=r"does not start; .*rates\.log says why"):
            rates.start_service(deployment.folder)
        assert "Address already in use" in (deployment.folder / OWN / "rates.log").read_text()
