"""`doctor`: a table of set-ups that are broken, each with the line that it gives."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    ScheduleInstigatorData,
    TickData,
    TickStatus,
)
from deltalake import CommitProperties, DeltaTable, write_deltalake

from backfill_assets.cli import deployment, main
from backfill_assets.delta.commits import LOG_RETENTION
from backfill_assets.doctor import data, machine
from backfill_assets.doctor.checks import Level
from backfill_assets.spark import known_jars, session
from backfill_assets.spark.jars import delta_coordinate
from backfill_assets_tests.helpers.command_line import JAN
from backfill_assets_tests.helpers.paths import PROJECT, free_port

FACTS = "table fact_daily_orders"
SCHEMA = pa.schema(
    [
        pa.field("run_date", pa.date32(), nullable=False),
        pa.field("customer_id", pa.string(), nullable=False),
        pa.field("orders", pa.int64(), nullable=False),
        pa.field("revenue", pa.decimal128(28, 2), nullable=False),
    ]
)


class Place:
    """A deployment on folders of a test's own, in which nothing is wrong."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, monkeypatch
        self.home = root / "home"
        self.home.mkdir(mode=0o700)
        shutil.copy(PROJECT / "dagster.yaml", self.home)
        self.landing = root / "landing/orders"
        self.folder(JAN[4]).joinpath("part-0.jsonl").write_text("{}\n")
        self.facts = root / "warehouse/fact_daily_orders"
        self.publish(JAN[:3])
        self.env("DAGSTER_HOME", self.home)
        self.settings(LANDING=self.landing.parent, WAREHOUSE=self.facts.parent)
        # The calendar of the sample is over.
        self.settings(END="2024-01-06", JARS=self.jars())
        self.java_home = os.environ.get("JAVA_HOME", "")
        self.install_java(root / "jdk", "17.0.9")

    def env(self, name: str, value: object) -> None:
        self.patch.setenv(name, str(value))

    def settings(self, **values: object) -> None:
        for name, value in values.items():
            self.env(f"BACKFILL_ASSETS_{name}", value)

    def install_java(self, home: Path, version: str) -> None:
        """Set JAVA_HOME to what says that it is of a version: a JVM takes its time to say so."""
        java = home / "bin/java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
        self.env("JAVA_HOME", home)

    def use_own_java(self) -> None:
        """Set JAVA_HOME as this machine has it."""
        if self.java_home:
            self.env("JAVA_HOME", self.java_home)
        else:
            self.patch.delenv("JAVA_HOME")

    def folder(self, day: date) -> Path:
        path = self.landing / f"arrival_date={day}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def publish(self, days: Sequence[date], **written: Any) -> None:
        """One row a day, in a table as a run makes it."""
        audit = {str(day): {"rows": 1, "digest": "d", "verdict": "ok"} for day in days}
        record = {"run_id": "r", "code_version": "c", "config_digest": "d", "audit": audit}
        rows = [{"run_date": day, "customer_id": "c", "orders": 1, "revenue": 1} for day in days]
        properties = CommitProperties(custom_metadata={"userMetadata": json.dumps(record)})
        written = {"commit_properties": properties, "configuration": dict(LOG_RETENTION)} | written
        table = pa.Table.from_pylist(rows, SCHEMA)
        write_deltalake(self.facts, table, mode="append", partition_by=["run_date"], **written)

    def jars(self) -> Path:
        """A cache with one jar, which is whole."""
        folder = self.root / "jars" / delta_coordinate().replace(":", "_")
        folder.mkdir(parents=True, exist_ok=True)
        jar = folder / "delta-spark.jar"
        jar.write_bytes(b"a jar")
        digest = hashlib.sha256(jar.read_bytes()).hexdigest()
        self.patch.setattr(known_jars, "SHA256", {jar.name: digest})
        return folder.parent

    def log(self, version: int = 0) -> Path:
        return self.facts / "_delta_log" / f"{version:020d}.json"

    def rewrite_log(self, **changed: object) -> None:
        """Change what actions of the first commit say."""
        actions = [json.loads(line) for line in self.log().read_text().splitlines()]
        for action in actions:
            for name, value in changed.items():
                action.get(name, {}).update(value)
        self.log().write_text("\n".join(map(json.dumps, actions)))


@pytest.fixture
def place(tmp_path, monkeypatch) -> Place:
    monkeypatch.setattr(machine, "_LOW_FREE_BYTES", 0)  # whatever disk the tests run on
    monkeypatch.setattr(machine, "_UI_TIMEOUT", 0.2)
    monkeypatch.setattr(session, "_CONNECT_TIMEOUT", 0.5)
    return Place(tmp_path, monkeypatch)


def run_doctor(capsys, *options: str) -> tuple[int, list[dict]]:
    # A port that the system gives to no one by itself.
    status = main(["doctor", "--json", "--port", "1023", *options])
    return status, json.loads(capsys.readouterr().out)


def test_nothing_is_wrong(place, capsys):
    place.use_own_java()
    status, report = run_doctor(capsys)
    assert [line for line in report if line["level"] != "ok"] == []
    assert status == 0
    assert {"DAGSTER_HOME", "java", "jars", "disk", "clock", "engine", FACTS} <= {
        line["part"] for line in report
    }


def test_it_changes_nothing(place, capsys):
    def modification_times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in place.root.rglob("*")}

    before = modification_times()
    run_doctor(capsys)
    assert modification_times() == before


# --- broken set-ups -------------------------------------------------------------------------------


def _relative_home(place: Place) -> None:
    place.env("DAGSTER_HOME", "home")


def _no_folder_of_dagster(place: Place) -> None:
    place.env("DAGSTER_HOME", place.root / "nowhere")


def _home_of_everybody(place: Place) -> None:
    place.home.chmod(0o777)


def _home_that_others_read(place: Place) -> None:
    place.home.chmod(0o755)


def _no_home(place: Place) -> None:
    place.patch.delenv("DAGSTER_HOME")


def _no_dagster_yaml(place: Place) -> None:
    (place.home / "dagster.yaml").unlink()


def _broken_dagster_yaml(place: Place) -> None:
    (place.home / "dagster.yaml").write_text("storage: [\n")


def _no_settings_in_dagster_yaml(place: Place) -> None:
    (place.home / "dagster.yaml").write_text("- a\n- list\n")


def _old_dagster_yaml(place: Place) -> None:
    text = (place.home / "dagster.yaml").read_text()
    (place.home / "dagster.yaml").write_text(text.partition("# Dagster's own queue")[0])


def _own_dagster_yaml(place: Place) -> None:
    text = (place.home / "dagster.yaml").read_text()
    text = text.replace("max_concurrent_runs: 4", "max_concurrent_runs: 9")
    (place.home / "dagster.yaml").write_text(text)


def _unknown_class_in_dagster_yaml(place: Place) -> None:
    (place.home / "history").mkdir()
    text = (place.home / "dagster.yaml").read_text()
    (place.home / "dagster.yaml").write_text(text.replace("LocalStorage", "NoStorage"))


def _spoilt_instance(place: Place) -> None:
    (place.home / "history").mkdir()
    (place.home / "history/runs.db").write_text("this is no database")


def _misspelt_setting(place: Place) -> None:
    place.settings(LANDINGS="x")


def _no_java(place: Place) -> None:
    place.env("JAVA_HOME", place.root)


def _old_java(place: Place) -> None:
    place.install_java(place.root / "old", "11.0.2")


def _no_jars(place: Place) -> None:
    place.settings(JARS=place.root / "none")


def _other_jar(place: Place) -> None:
    (jar,) = (place.root / "jars").rglob("*.jar")
    jar.write_bytes(b"another jar")


def _too_few_jars(place: Place) -> None:
    place.patch.setattr(known_jars, "SHA256", {**known_jars.SHA256, "delta-other.jar": ""})


def _strange_localhost(place: Place) -> None:
    place.patch.setattr(
        machine.socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("198.51.100.1", 0))]
    )


def _full_disk(place: Place) -> None:
    place.patch.setattr(machine, "_MIN_FREE_BYTES", 1 << 60)


def _disk_that_fills(place: Place) -> None:
    place.patch.setattr(machine, "_LOW_FREE_BYTES", 1 << 60)


def _no_place_to_write(place: Place) -> None:
    place.settings(WAREHOUSE="/proc/warehouse")


def _no_landing(place: Place) -> None:
    shutil.rmtree(place.landing)


def _empty_landing(place: Place) -> None:
    shutil.rmtree(place.landing)
    place.landing.mkdir()


def _file_for_a_landing(place: Place) -> None:
    shutil.rmtree(place.landing)
    place.landing.write_text("")


def _files_of_no_format(place: Place) -> None:
    place.folder(JAN[4]).joinpath("orders.xlsx").write_text("")


def _strays(place: Place) -> None:
    (place.landing / "arrival_date=20240105").mkdir()
    (place.landing / "_SUCCESS").touch()


def _other_spark(place: Place) -> None:
    place.patch.setenv("SPARK_HOME", "/opt/spark")


def _file_that_cannot_be_opened(place: Place) -> None:
    place.folder(JAN[4]).joinpath("part-1.jsonl").symlink_to(place.root / "nowhere")


def _broken_log(place: Place) -> None:
    place.log().write_text("{")


def _cut_log(place: Place) -> None:
    place.publish(JAN[3:4])
    DeltaTable(place.facts).create_checkpoint()
    place.log().unlink()


def _log_that_may_be_cut(place: Place) -> None:
    place.rewrite_log(metaData={"configuration": {"delta.logRetentionDuration": "interval 1 day"}})


def _rows_of_another_writer(place: Place) -> None:
    place.publish(JAN[1:2], commit_properties=None)


def _table_of_another_model(place: Place) -> None:
    shutil.rmtree(place.facts)
    table = pa.Table.from_pylist([{"day": "2024-01-01", "orders": 1}])
    write_deltalake(place.facts, table, partition_by=["day"])


def _lost_file(place: Place) -> None:
    for file in place.facts.rglob("*.parquet"):
        file.unlink()


def _feature_of_another_writer(place: Place) -> None:
    place.rewrite_log(
        protocol={
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["columnMapping"],
            "writerFeatures": ["columnMapping"],
        }
    )


def _feature_of_the_future(place: Place) -> None:
    place.rewrite_log(
        protocol={
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["timeTravelByWish"],
            "writerFeatures": ["timeTravelByWish"],
        }
    )


def _clock_that_ran_ahead(place: Place) -> None:
    at = datetime.now(timezone.utc) + timedelta(days=700)
    place.rewrite_log(commitInfo={"timestamp": int(at.timestamp() * 1000)})


def _silent_source(place: Place) -> None:
    place.patch.delenv("BACKFILL_ASSETS_END")


def _no_server(place: Place) -> None:
    place.env("SPARK_REMOTE", "sc://localhost:1")


BROKEN: list[tuple[Callable[[Place], None], str, str, str, str]] = [
    (_relative_home, "DAGSTER_HOME", "WRONG", "is a relative path", "says"),
    (_no_folder_of_dagster, "DAGSTER_HOME", "WRONG", "is no folder", "says"),
    (_home_of_everybody, "DAGSTER_HOME", "WRONG", "can be written by everybody", "chmod 700"),
    (_home_that_others_read, "DAGSTER_HOME", "note", "can be read by others", "chmod 700"),
    (_no_home, "DAGSTER_HOME", "note", "is not set", "set it"),
    (_no_dagster_yaml, "dagster.yaml", "note", "there is none", "cp "),
    (_broken_dagster_yaml, "dagster.yaml", "WRONG", "cannot be read as YAML", "says"),
    (_no_settings_in_dagster_yaml, "dagster.yaml", "WRONG", "to parse to dictionary", "says"),
    (_old_dagster_yaml, "dagster.yaml", "note", "run_coordinator is not there", "compare"),
    (_own_dagster_yaml, "dagster.yaml", "note", "runs.max_concurrent_runs is 9.*ours 4", "compare"),
    (_unknown_class_in_dagster_yaml, "instance", "WRONG", "NoStorage", "says"),
    (_spoilt_instance, "instance", "WRONG", "not a database", "says"),
    (_misspelt_setting, "settings", "WRONG", "BACKFILL_ASSETS_LANDINGS: no such", "says"),
    (_no_java, "java", "WRONG", "there is none in JAVA_HOME", "says"),
    (_old_java, "java", "WRONG", "is Java 11", "says"),
    (_no_jars, "jars", "WRONG", "there is no io.delta", "backfill-assets jars"),
    (_other_jar, "jars", "WRONG", "delta-spark.jar: not the jars", "remove .*backfill-assets jars"),
    (_too_few_jars, "jars", "WRONG", "lacks some of Delta's jars", "backfill-assets jars"),
    (_strange_localhost, "localhost", "WRONG", "198.51.100.1", "/etc/hosts"),
    (_full_disk, "disk", "WRONG", "GiB for the .* are left", "make room"),
    (_disk_that_fills, "disk", "note", "GiB for the .* are left", "housekeeping"),
    (_no_place_to_write, "warehouse", "WRONG", "/proc cannot be written", "let this user write"),
    (_no_place_to_write, "disk", "WRONG", "the warehouse at /proc", "let this user write"),
    (_no_landing, "landing orders", "WRONG", "there is no folder", "says"),
    (_file_for_a_landing, "landing orders", "WRONG", "there is no folder", "says"),
    (_empty_landing, "landing orders", "note", "no arrival day has landed", "delivers"),
    (
        _file_that_cannot_be_opened,
        "landing orders",
        "WRONG",
        "1 file.*part-1.jsonl: ",
        "landing.md",
    ),
    (_strays, "landing orders", "WRONG", "not read: arrival_date=20240105$", "YYYY-MM-DD"),
    (_other_spark, "environment", "note", "^SPARK_HOME: set here", "deployments.md"),
    (_files_of_no_format, "landing orders", "note", "orders.xlsx", "docs/landing.md"),
    (_broken_log, FACTS, "WRONG", "its log cannot be read", "from a backup"),
    (_cut_log, FACTS, "WRONG", "log was cut: of version", "backup|materialize"),
    (_log_that_may_be_cut, FACTS, "WRONG", "log retention changed", "maintain"),
    (_rows_of_another_writer, FACTS, "WRONG", "2024-01-02 changed by another", "materialize"),
    (
        _table_of_another_model,
        FACTS,
        "WRONG",
        "table is not that of the code",
        "folder|materialize",
    ),
    (_lost_file, FACTS, "WRONG", "cannot be read", "verify 2024-01-03"),
    (_feature_of_another_writer, FACTS, "WRONG", "columnMapping", "DROP FEATURE"),
    (_feature_of_the_future, FACTS, "WRONG", "timeTravelByWish", "DROP FEATURE|backup"),
    (_clock_that_ran_ahead, "clock", "WRONG", "fact_daily_orders is of", "set the clock"),
    (_silent_source, "clock", "WRONG", "nothing has landed since 2024-01-05", "clock"),
    (_no_server, "engine", "WRONG", "sc://localhost:1 does not answer", "says"),
]


@pytest.mark.parametrize(
    ("broken", "part", "level", "said", "mend"),
    BROKEN,
    ids=[f"{case[0].__name__.strip('_')}-{case[1]}" for case in BROKEN],
)
def test_a_broken_set_up(broken, part, level, said, mend, place, capsys):
    broken(place)
    status, report = run_doctor(capsys)
    lines = [line for line in report if line["part"] == part]
    assert any(
        line["level"] == level and re.search(said, line["message"]) and re.search(mend, line["fix"])
        for line in lines
    ), lines
    assert status == any(line["level"] == "WRONG" for line in report)
    # A line is a line.
    assert all("\n" not in line["message"] + line["fix"] for line in report)


def test_a_port_that_somebody_uses(place, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        _, report = run_doctor(capsys, "--port", str(other.getsockname()[1]))
    (line,) = (line for line in report if line["part"] == "port")
    assert line["level"] == "note"
    assert "--port" in line["fix"]


def test_what_is_wrong_is_not_called_fine_as_well(place, capsys):
    _rows_of_another_writer(place)
    _, report = run_doctor(capsys)
    assert [line["level"] for line in report if line["part"] == FACTS] == ["WRONG"]


# --- looks that fail ------------------------------------------------------------------------------


def test_a_look_that_raises_is_the_failure_of_its_own_line(place, capsys):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by nothing\nat all")

    place.patch.setattr(data, "check_read", fail)
    status, report = run_doctor(capsys)
    bad = [line for line in report if line["level"] == "WRONG"]
    assert [(line["part"], line["message"]) for line in bad] == [
        (FACTS, "ZeroDivisionError: by nothing at all")
    ]
    assert status == 1


def test_a_look_that_hangs_is_given_up(place, capsys):
    """And the process ends, although the thread does not."""
    release = threading.Event()
    ended = []
    place.patch.setattr(data, "open_store", lambda _: release.wait())
    place.patch.setattr(data, "write_error", lambda _: release.wait())
    place.patch.setattr(os, "_exit", ended.append)
    _, report = run_doctor(capsys, "--seconds", "0.4")
    release.set()
    failures = {line["part"]: line["message"] for line in report if line["level"] == "WRONG"}
    assert failures["warehouse"] == "no answer within 0.4 s"
    # What lies behind it is not waited for again.
    assert failures[FACTS] == "not looked at, because of the line on: warehouse"
    assert failures["clock"].startswith("not looked at")
    assert ended == [1]


def test_what_a_person_reads(place, capsys):
    _home_that_others_read(place)
    assert main(["doctor", "--port", "1023"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^note   DAGSTER_HOME +.*\. Mend: chmod 700 ", output, re.M)
    assert output.endswith("Nothing is wrong.\n")
    assert main(["-q", "doctor", "--port", "1023"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == {"note"}


def test_secrets_of_a_dagster_yaml_are_not_shown(place, capsys):
    (place.home / "dagster.yaml").write_text(
        "storage:\n  postgres:\n    postgres_url: postgresql://me:geheim@host/db\n"
        "run_launcher: {module: x, class: y, config: {password: geheim}}\n"
    )
    main(["doctor", "--json", "--port", "1023"])
    assert "geheim" not in capsys.readouterr().out


def test_the_ui_says_that_a_dagster_yaml_is_old(place, capsys):
    def stop(*_: object) -> None:
        raise ValueError("far enough")

    _old_dagster_yaml(place)
    place.patch.setattr(deployment, "_fetch_jars", stop)
    before = (place.home / "dagster.yaml").read_text()
    assert main(["ui", "--port", str(free_port())]) == 3
    assert re.search(r"differs from that of this version in \d setting", capsys.readouterr().out)
    assert (place.home / "dagster.yaml").read_text() == before


def test_schedules_that_wait_for_a_time_that_was_wrong(place):
    """Dagster ticks no sooner than after the last tick, whatever the clock shows by now."""
    ahead = datetime.now(timezone.utc) + timedelta(days=1000)
    code = RegisteredCodeLocationOrigin("code")
    origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(code, "repository"), "nightly")
    schedule_data = ScheduleInstigatorData("0 2 * * *", start_timestamp=1.0)
    kind = InstigatorType.SCHEDULE
    with dg.DagsterInstance.get() as instance:
        state = InstigatorState(origin, kind, InstigatorStatus.RUNNING, schedule_data)
        instance.add_instigator_state(state)
        (fine,) = machine.check_ticks()
        tick = TickData(
            state.instigator_origin_id,
            "nightly",
            kind,
            TickStatus.SUCCESS,
            ahead.timestamp(),
            run_ids=[],
            selector_id=state.selector_id,
        )
        instance.create_tick(tick)
    (result,) = machine.check_ticks()
    assert (fine.level, result.level) == (Level.OK, Level.WRONG)
    assert result.message.startswith(f"nightly ticked at {ahead:%Y-%m-%d}")
    # What the line says helps.
    assert f"move {place.home}/schedules away" in result.fix
    shutil.rmtree(place.home / "schedules")
    (fine,) = machine.check_ticks()
    assert fine.level is Level.OK
