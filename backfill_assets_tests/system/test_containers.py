"""The files for containers: what can be tried of them without a container runtime.

Every service of the compose file is started as a process of its own, in an environment of nothing
but what the file gives it, on loopback; and its health check is asked as the file says it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from backfill_assets.serve.launcher import PromptRunCoordinator
from backfill_assets.settings import load_settings
from backfill_assets_tests import conftest
from backfill_assets_tests.helpers.graphql import ask
from backfill_assets_tests.helpers.paths import BIN, PROJECT, free_port
from backfill_assets_tests.helpers.postgres import Database
from backfill_assets_tests.helpers.process_kills import find_processes, kill_kinds

DEPLOY = PROJECT / "backfill_assets/deploy"
COMPOSE = (DEPLOY / "compose.yaml").read_text()
GIVEN = {"DAGSTER_PG_PASSWORD": "", "ENGINE_TOKEN": "a-token", "UI_URL": "http://ui.example.org"}
SERVICES = yaml.safe_load(COMPOSE)["services"]
OURS = ("engine", "code", "daemon", "webserver")


def merge_environment(service: dict[str, Any]) -> dict[str, str]:
    """A service's environment; YAML's merge key takes a list of maps."""
    return {name: str(value) for name, value in service["environment"].items()}


def test_the_compose_file_hangs_together():
    file = yaml.safe_load(COMPOSE)
    for name, service in SERVICES.items():
        image, _, tag = service["image"].partition(":")
        assert image and re.match(r"\d", tag), f"{name}: a version, not the latest"
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[needed], f"{name} waits for {needed}"
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in file["volumes"]
        for config in service.get("configs", []):
            source = DEPLOY / file["configs"][config["source"]]["file"]
            assert source.is_file()
    # Nobody is reached but through the proxy.
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["proxy"]
    assert SERVICES["code"]["network_mode"] == "service:engine"
    # No secret has a value in the file, and none a default.
    secrets = re.findall(r"(\w*(?:PASSWORD|TOKEN)): (.*)", COMPOSE)
    assert len(secrets) == 3
    assert all(re.fullmatch(r"\$\{\w+:\?[^}]+\}", value) for _, value in secrets)


def test_the_image_is_made_of_what_there_is():
    text = (DEPLOY / "Dockerfile").read_text()
    (base,) = re.findall(r"^FROM (\S+)$", text, re.MULTILINE)
    assert re.search(r":3\.1\d-", base)
    for sources in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert list(PROJECT.glob(source)), source
    # And of all that the package is: the scaffold has a link to dagster.yaml.
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    for name in [*(name for name in packages if "*" not in name), "dagster.yaml"]:
        assert re.search(rf"^COPY .*\b{re.escape(name)}\b", text, re.MULTILINE), name
    # The lines that it takes out of the lock file are those of the extra, with their digests.
    (program,) = re.findall(r"awk '([^']+)'", text)
    requirements = subprocess.run(
        ["awk", program, PROJECT / "requirements-dev.lock"], capture_output=True, check=True
    ).stdout.decode()
    extra = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", text)[0] for text in extra["optional-dependencies"]["postgres"]]
    assert re.findall(r"^([\w.-]+)==[\w.]+", requirements, re.MULTILINE) == names
    assert requirements.count("--hash=sha256:") >= len(names)
    users = re.findall(r"^USER (\w+)$", text, re.MULTILINE)
    assert users == ["dagster"]
    folders = {volume.split(":")[1] for name in OURS for volume in SERVICES[name]["volumes"]}
    (created,) = re.findall(r"mkdir -p (.+?) \\", text)
    assert set(created.split()) == folders


def test_the_values_for_kubernetes_make_the_same_instance(monkeypatch, tmp_path):
    """Put together as Dagster's chart does: see its templates/configmap-instance.yaml."""
    values = yaml.safe_load((DEPLOY / "values.yaml").read_text())
    local = yaml.safe_load((PROJECT / "dagster.yaml").read_text())
    ours = values["additionalInstanceConfig"]
    timeout = ours["run_monitoring"].pop("start_timeout_seconds")
    assert timeout >= local["run_monitoring"].pop("start_timeout_seconds")
    for name in ours:
        assert ours[name] == local[name], name
    by_the_chart = {"storage", "run_launcher", "run_coordinator", "scheduler", "telemetry"}
    assert set(local) - set(ours) == by_the_chart
    assert values["scheduler"]["type"] == "CustomScheduler"
    assert values["scheduler"]["config"]["customScheduler"] == local["scheduler"]
    assert values["runLauncher"]["type"] == "K8sRunLauncher"
    daemon = values["dagsterDaemon"]
    coordinator = daemon["runCoordinator"]["config"]["customRunCoordinator"]
    assert coordinator == local["run_coordinator"]
    # The chart writes these only where they are enabled, and two of a kind are an error.
    assert not daemon["runMonitoring"]["enabled"] and not daemon["runRetries"]["enabled"]
    assert values["postgresql"]["postgresqlScheme"] == "postgresql+psycopg2"
    (tmp_path / "dagster.yaml").write_text(
        yaml.safe_dump({"run_coordinator": coordinator, "telemetry": values["telemetry"], **ours})
    )
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.get() as instance:
        assert isinstance(instance.run_coordinator, PromptRunCoordinator)
        assert instance.run_retries_max_retries == 2


# --- the services as processes --------------------------------------------------------------------


@dataclass
class LocalServices:
    """Where on this machine is what the files have in containers."""

    root: Path
    database: Database
    started: dict[str, subprocess.Popen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home = self.root / "home"
        self.home.mkdir()
        self.ports = {port: str(free_port()) for port in ("3000", "4000", "8080", "15002")}
        shutil.copy(DEPLOY / "dagster.postgres.yaml", self.home / "dagster.yaml")
        shutil.copy(DEPLOY / "workspace.yaml", self.root)
        self.paths = {
            "/opt/dagster/workspace.yaml": str(self.root / "workspace.yaml"),
            "/opt/dagster/home": str(self.home),
            "/data": str(self.root / "data"),
        }

    def localize(self, text: str) -> str:
        """A value or a word of a command, as it is here."""
        for original, replacement in self.paths.items():
            text = text.replace(original, replacement)
        for original, replacement in self.ports.items():
            text = re.sub(rf"\b{original}\b", replacement, text)
        for name in GIVEN:
            text = re.sub(rf"\$\{{{name}:\?[^}}]*\}}", GIVEN[name], text)
        return text

    def environment_of(self, name: str) -> dict[str, str]:
        """What the service has of its file, and of the image."""
        values = {k: self.localize(v) for k, v in merge_environment(SERVICES[name]).items()}
        assert values["CODE_HOST"] in SERVICES
        return {
            **values,
            "CODE_HOST": "127.0.0.1",
            **self.database.environment,
            "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.root),
            "PYTHONPATH": str(PROJECT),
            "BACKFILL_ASSETS_JARS": str(load_settings().jars),
            # A small engine, beside the suite's.
            "BACKFILL_ASSETS_SPARK_MASTER": "local[2]",
            "BACKFILL_ASSETS_SPARK_CONF": json.dumps(conftest.SMALL),
        }

    def start(self, name: str) -> None:
        """Start a service, and wait until its health check passes."""
        command = [self.localize(word) for word in SERVICES[name]["command"]]
        log = (self.root / f"{name}.log").open("wb")
        self.started[name] = subprocess.Popen(
            command,
            executable=shutil.which(command[0], path=str(BIN)),
            env=self.environment_of(name),
            cwd=self.root,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        while not self.healthy(name):
            status = self.started[name].poll()
            tail = (self.root / f"{name}.log").read_text()[-3000:]
            assert status is None, f"{name} ended with {status}: {tail}"
            time.sleep(1)

    def healthy(self, name: str) -> bool:
        """What the health check of the file says."""
        kind, *command = (self.localize(word) for word in SERVICES[name]["healthcheck"]["test"])
        assert kind == "CMD"
        result = subprocess.run(
            command,
            executable=shutil.which(command[0], path=f"{BIN}:/usr/bin:/bin"),
            env=self.environment_of(name),
            cwd=self.root,
            capture_output=True,
            check=False,
        )
        return result.returncode == 0


@pytest.fixture
def here(tmp_path, database) -> Iterator[LocalServices]:
    services = LocalServices(tmp_path, database)
    (tmp_path / "data").mkdir()
    yield services
    for process in services.started.values():
        process.terminate()
    for process in services.started.values():
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    kill_kinds(services.home)
    assert not find_processes(services.home)


LAUNCH = """
mutation($days: [String!]!, $tables: [AssetKeyInput!]!) {
  launchPartitionBackfill(backfillParams: {partitionNames: $days, assetSelection: $tables}) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
  }
}
"""


def fetch_status(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@contextmanager
def start_proxy(services: LocalServices) -> Iterator[str]:
    """The proxy of the file, if there is one on this machine."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        yield f"http://127.0.0.1:{services.ports['3000']}"
        return
    text = (DEPLOY / "nginx.conf").read_text().replace("webserver:3000", "127.0.0.1:3000")
    text = text.replace("/tmp/", f"{services.root}/")
    config = services.root / "nginx.conf"
    config.write_text(services.localize(text))
    command = [program, "-c", str(config), "-p", str(services.root)]
    subprocess.run([*command, "-t"], check=True, capture_output=True)
    services.started["proxy"] = subprocess.Popen([*command, "-g", "daemon off;"])
    url = f"http://127.0.0.1:{services.ports['8080']}"
    while True:
        try:
            fetch_status(url)
            break
        except urllib.error.URLError:
            time.sleep(0.1)
    yield url


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("SPARK_REMOTE" in os.environ, reason="starts an engine of its own")
def test_the_services_come_up_and_load_a_day(here):
    landing = here.root / "data/landing/orders/arrival_date=2024-01-01"
    landing.mkdir(parents=True)
    line = {"order_id": "o", "customer_id": "c", "amount": "1.00"}
    line |= {"order_ts": "2024-01-01T10:00:00Z", "ingestion_ts": "2024-01-01T11:00:00Z"}
    (landing / "part.jsonl").write_text(json.dumps(line))
    for name in ("engine", "code", "webserver", "daemon"):
        here.start(name)
    with start_proxy(here) as url:
        assert fetch_status(f"{url}/server_info", Host="ui.example.org") == 200
        assert fetch_status(f"{url}/server_info", Host="foreign.example.org") == 403
        tables = [{"path": ["raw_orders"]}, {"path": ["raw_orders_rejected"]}]
        response = ask(url, LAUNCH, days=["2024-01-01"], tables=tables)
        assert response["__typename"] == "LaunchBackfillSuccess", response

        def final_status() -> str:
            rows = here.database.ask("SELECT status FROM runs")
            return rows[0][0] if rows and rows[0][0] in ("SUCCESS", "FAILURE") else ""

        while not (how := final_status()):
            time.sleep(1)
        assert how == "SUCCESS", (here.root / "code.log").read_text()[-3000:]
    assert (here.root / "data/warehouse/raw_orders/_delta_log").is_dir()
    assert (here.home / "runs.lock").is_file()
    assert not list(here.home.rglob("*.db"))
    # A service that is gone is not healthy.
    for name in ("webserver", "code", "engine"):
        here.started[name].terminate()
        here.started[name].wait()
        assert not here.healthy(name)


def test_the_engine_alone_asks_for_a_token(tmp_path):
    result = subprocess.run(
        [str(BIN / "backfill-assets"), "engine"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(PROJECT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 3
    assert "SPARK_CONNECT_AUTHENTICATE_TOKEN is not set" in result.stderr
    assert result.stderr.count("\n") == 1
