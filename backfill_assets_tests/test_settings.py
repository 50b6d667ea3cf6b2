"""Settings: what each variable takes, what it refuses and what it says then."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from backfill_assets import runtime_versions
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import TABLES
from backfill_assets.runtime_versions import is_secret
from backfill_assets.settings import Settings, SettingsError, load_settings
from backfill_assets.spark.configuration import spark_config
from backfill_assets_tests.conftest import SMALL


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch):
    monkeypatch.delenv("BACKFILL_ASSETS_JARS", raising=False)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)


def test_defaults(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    settings = load_settings()
    assert settings.landing == str(tmp_path / "data/landing")
    assert settings.warehouse == str(tmp_path / "data/warehouse")
    assert settings.start == date(2024, 1, 1)
    assert settings.end is None
    assert settings.timezone == "UTC"
    assert settings.zone == ZoneInfo("UTC")
    assert settings.partitions_per_run == 31
    assert settings.window_days == 7
    assert settings.lag_days == 1
    assert settings.late_lines == "correct"
    assert settings.reprocess == "touched"
    assert (settings.nightly_at, settings.deadline) == ("02:00", "06:00")
    assert settings.undo_days == settings.absent_days == 30
    shares = settings.rejected_warn, settings.rejected_alert, settings.rejected_hold
    assert shares == (0.05, 0.2, 0.5)
    assert settings.webhook is None
    assert settings.git_commit is None
    assert settings.ui_url == "http://127.0.0.1:3000"
    assert settings.ui_passwords is None
    assert settings.metrics_file is None
    assert settings.lineage is None
    assert settings.catalog is None
    assert settings.spark_master == "local[*]"
    assert settings.spark_remote is None
    assert settings.spark_conf == {}
    assert settings.jars == Path("~/.cache/backfill_assets/jars").expanduser()


GOOD = [
    ("BACKFILL_ASSETS_ABSENT_DAYS", "3", "absent_days", 3),
    ("BACKFILL_ASSETS_CHECK_INDEPENDENCE", "false", "check_independence", False),
    ("BACKFILL_ASSETS_REJECTED_WARN", "0.01", "rejected_warn", 0.01),
    ("BACKFILL_ASSETS_REJECTED_ALERT", "0.1", "rejected_alert", 0.1),
    ("BACKFILL_ASSETS_REJECTED_HOLD", "1", "rejected_hold", 1.0),
    ("BACKFILL_ASSETS_LANDING", "/a/b/", "landing", "/a/b"),
    ("BACKFILL_ASSETS_LANDING", "/a/../b", "landing", "/b"),
    ("BACKFILL_ASSETS_LANDING", "~/x", "landing", str(Path("~/x").expanduser())),
    ("BACKFILL_ASSETS_LANDING", "file:///a/b", "landing", "/a/b"),
    ("BACKFILL_ASSETS_LANDING", "file:/a/b", "landing", "/a/b"),
    ("BACKFILL_ASSETS_LANDING", "FILE://localhost/a/b/", "landing", "/a/b"),
    ("BACKFILL_ASSETS_LANDING", "file:///a%20b", "landing", "/a b"),
    ("BACKFILL_ASSETS_LANDING", "s3a://bucket/in/", "landing", "s3a://bucket/in"),
    ("BACKFILL_ASSETS_WAREHOUSE", "/w", "warehouse", "/w"),
    ("BACKFILL_ASSETS_WAREHOUSE", "file:///w/x", "warehouse", "/w/x"),
    ("BACKFILL_ASSETS_WAREHOUSE", "s3://bucket", "warehouse", "s3a://bucket"),
    ("BACKFILL_ASSETS_WAREHOUSE", "s3n://a.b-c/d e/", "warehouse", "s3a://a.b-c/d e"),
    ("BACKFILL_ASSETS_WAREHOUSE", "gs://a_b/w/", "warehouse", "gs://a_b/w"),
    *(
        ("BACKFILL_ASSETS_WAREHOUSE", f"{url}/", "warehouse", url)
        for url in (
            "abfss://c-1@account.dfs.core.windows.net/w",
            "abfs://c-1@account.blob.core.windows.net/w/x",
        )
    ),
    ("BACKFILL_ASSETS_START", "1997-01-01", "start", date(1997, 1, 1)),
    ("BACKFILL_ASSETS_END", "2024-02-29", "end", date(2024, 2, 29)),
    ("BACKFILL_ASSETS_TIMEZONE", "Asia/Tokyo", "timezone", "Asia/Tokyo"),
    ("BACKFILL_ASSETS_PARTITIONS_PER_RUN", "1", "partitions_per_run", 1),
    ("BACKFILL_ASSETS_WINDOW_DAYS", "0", "window_days", 0),
    ("BACKFILL_ASSETS_WINDOW_DAYS", "366", "window_days", 366),
    ("BACKFILL_ASSETS_LAG_DAYS", "3", "lag_days", 3),
    ("BACKFILL_ASSETS_LATE_LINES", "drop", "late_lines", "drop"),
    ("BACKFILL_ASSETS_REPROCESS", "window", "reprocess", "window"),
    ("BACKFILL_ASSETS_NIGHTLY_AT", "00:05", "nightly_at", "00:05"),
    ("BACKFILL_ASSETS_DEADLINE", "23:59", "deadline", "23:59"),
    ("BACKFILL_ASSETS_MAX_LINE", "64KiB", "max_line", 64 << 10),
    ("BACKFILL_ASSETS_MAX_EXPANDED", "1.5 TiB", "max_expanded", 3 << 39),
    ("BACKFILL_ASSETS_MAX_CONTROL", "2000", "max_control", 2000),
    ("BACKFILL_ASSETS_STALLED_AFTER", "60", "stalled_after", 60),
    ("BACKFILL_ASSETS_UNDO_DAYS", "1", "undo_days", 1),
    ("BACKFILL_ASSETS_KEEP_RUNS_DAYS", "1", "keep_runs_days", 1),
    ("BACKFILL_ASSETS_KEEP_PLANS_DAYS", "1", "keep_plans_days", 1),
    ("BACKFILL_ASSETS_WEBHOOK", "https://chat/hook/", "webhook", "https://chat/hook"),
    ("BACKFILL_ASSETS_METRICS_FILE", "/a/../b.prom", "metrics_file", Path("/b.prom")),
    ("BACKFILL_ASSETS_LINEAGE", "shop", "lineage", "shop"),
    ("BACKFILL_ASSETS_CATALOG", "main.shop", "catalog", "main.shop"),
    ("BACKFILL_ASSETS_GIT_COMMIT", "f6f017c", "git_commit", "f6f017c"),
    ("BACKFILL_ASSETS_LOCATION", "shop", "location", "shop"),
    ("BACKFILL_ASSETS_KEY_PREFIX", "lake/gold", "key_prefix", "lake/gold"),
    ("BACKFILL_ASSETS_OWNERS", "team:data,a@b.org", "owners", "team:data,a@b.org"),
    ("BACKFILL_ASSETS_UI_PASSWORDS", "/a/../b", "ui_passwords", Path("/b")),
    ("BACKFILL_ASSETS_UI_URL", "http://dagster:3000/", "ui_url", "http://dagster:3000"),
    ("BACKFILL_ASSETS_SPARK_MASTER", "spark://host:7077", "spark_master", "spark://host:7077"),
    ("BACKFILL_ASSETS_SPARK_CONF", '{"spark.x": "1"}', "spark_conf", {"spark.x": "1"}),
    ("BACKFILL_ASSETS_JARS", "/j", "jars", Path("/j")),
    ("BACKFILL_ASSETS_TABLES", "mine.tables:ALL", "tables", "mine.tables:ALL"),
    ("SPARK_REMOTE", "sc://host:15002", "spark_remote", "sc://host:15002"),
]


@pytest.mark.parametrize(("variable", "text", "field", "value"), GOOD)
def test_good_values(monkeypatch, variable, text, field, value):
    monkeypatch.setenv(variable, text)
    assert getattr(load_settings(), field) == value


def test_every_variable_has_a_good_value_here():
    assert {field for _, _, field, _ in GOOD} == set(Settings.model_fields)


@pytest.mark.parametrize(
    ("variable", "text", "rule"),
    [
        ("BACKFILL_ASSETS_LANDING", " ", "must be a path or a URL, not empty"),
        ("BACKFILL_ASSETS_LANDING", "file://data/landing", "three slashes"),
        ("BACKFILL_ASSETS_LANDING", "s3a://passwd:x@bucket/in", "a URL without a password"),
        ("BACKFILL_ASSETS_WAREHOUSE", "\t", "must be a path or a URL, not empty"),
        ("BACKFILL_ASSETS_WAREHOUSE", "file://w", "three slashes"),
        *(
            ("BACKFILL_ASSETS_WAREHOUSE", url, "must be a path, s3a://bucket/folder")
            for url in (
                "gs://Bucket/w",
                "gs://container@account.blob.core.windows.net/w",
                "abfss://container@account.dfs.core.windows.net/",
                "abfss://container@account.dfs.example.org/w",
                "abfss://container/w",
                "hdfs://nn:8020/w",
                "https://bucket.s3.amazonaws.com/w",
                "s3a://",
                "s3a:///w",
                "s3a://Bucket/w",
                "s3a://bucket/w?endpoint_override=elsewhere",
            )
        ),
        ("BACKFILL_ASSETS_START", "20240101", "must be a day as YYYY-MM-DD"),
        ("BACKFILL_ASSETS_START", "1704067200", "must be a day as YYYY-MM-DD"),
        ("BACKFILL_ASSETS_START", "2024-1-1", "must be a day as YYYY-MM-DD"),
        ("BACKFILL_ASSETS_START", "2024-01-01T00:00:00", "must be a day as YYYY-MM-DD"),
        ("BACKFILL_ASSETS_START", "2024-02-30", "valid date"),
        ("BACKFILL_ASSETS_END", "tomorrow", "must be a day as YYYY-MM-DD"),
        ("BACKFILL_ASSETS_TIMEZONE", "Mars/Olympus", "must be an IANA time zone"),
        ("BACKFILL_ASSETS_TIMEZONE", "+02:00", "must be an IANA time zone"),
        ("BACKFILL_ASSETS_TIMEZONE", "../etc/passwd", "must be an IANA time zone"),
        ("BACKFILL_ASSETS_OWNERS", "data", "must be teams as team:data, or e-mail addresses"),
        ("BACKFILL_ASSETS_LOCATION", "a shop", "pattern"),
        ("BACKFILL_ASSETS_PARTITIONS_PER_RUN", "0", "greater than or equal to 1"),
        ("BACKFILL_ASSETS_PARTITIONS_PER_RUN", "-3", "greater than or equal to 1"),
        ("BACKFILL_ASSETS_PARTITIONS_PER_RUN", "1.5", "valid integer"),
        ("BACKFILL_ASSETS_WINDOW_DAYS", "-1", "greater than or equal to 0"),
        ("BACKFILL_ASSETS_WINDOW_DAYS", "367", "less than or equal to 366"),
        ("BACKFILL_ASSETS_WINDOW_DAYS", "seven", "as an integer (at least 0, at most 366)"),
        ("BACKFILL_ASSETS_LAG_DAYS", "0", "greater than or equal to 1"),
        ("BACKFILL_ASSETS_LATE_LINES", "keep", "'correct' or 'drop'"),
        ("BACKFILL_ASSETS_REPROCESS", "all", "'touched' or 'window'"),
        ("BACKFILL_ASSETS_NIGHTLY_AT", "2:00", "must be a time of day as HH:MM"),
        ("BACKFILL_ASSETS_DEADLINE", "24:00", "must be a time of day as HH:MM"),
        ("BACKFILL_ASSETS_MAX_LINE", "2GiB", "less than or equal to 1073741824"),
        ("BACKFILL_ASSETS_MAX_LINE", "1023", "greater than or equal to 1024"),
        ("BACKFILL_ASSETS_MAX_EXPANDED", "much", "could not parse value and unit from byte string"),
        ("BACKFILL_ASSETS_MAX_CONTROL", "1.5 parsecs", "could not interpret byte unit"),
        ("BACKFILL_ASSETS_UNDO_DAYS", "0", "greater than or equal to 1"),
        ("BACKFILL_ASSETS_KEEP_RUNS_DAYS", "0", "greater than or equal to 1"),
        ("BACKFILL_ASSETS_KEEP_PLANS_DAYS", "0", "greater than or equal to 1"),
        ("BACKFILL_ASSETS_UNDO_DAYS", "36501", "less than or equal to 36500"),
        ("BACKFILL_ASSETS_UI_URL", "dagster:3000", "must be an http:// or https:// URL"),
        ("BACKFILL_ASSETS_SPARK_CONF", "spark.x=1", "must be a JSON object"),
        ("SPARK_REMOTE", "http://host:15002", "must be a Spark Connect URL: sc://host:port"),
        ("SPARK_REMOTE", "sc://host:port", "must be a Spark Connect URL: sc://host:port"),
        ("SPARK_REMOTE", "sc://:15002", "must be a Spark Connect URL: sc://host:port"),
        ("SPARK_REMOTE", "local", "must be a Spark Connect URL: sc://host:port"),
    ],
)
def test_bad_values_are_named_with_variable_value_and_rule(monkeypatch, variable, text, rule):
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"bad settings: {variable}=")
    # A "passwd" in a value is no reason to show it, nor are Spark's settings ever shown;
    # everything else is shown as it is.
    hidden = is_secret(text) or variable == "BACKFILL_ASSETS_SPARK_CONF"
    assert (repr(text) in message) is not hidden
    assert rule in message


@pytest.mark.parametrize("text", ['["a"]', '"a"', "1"])
def test_spark_conf_must_be_an_object(monkeypatch, text):
    monkeypatch.setenv("BACKFILL_ASSETS_SPARK_CONF", text)
    with pytest.raises(SettingsError, match=r"BACKFILL_ASSETS_SPARK_CONF=.*dictionary"):
        load_settings()


def test_spark_conf_names_the_entry(monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_SPARK_CONF", '{"spark.x": 1, "spark.y": "2"}')
    with pytest.raises(SettingsError) as caught:
        load_settings()
    message = str(caught.value)
    assert "BACKFILL_ASSETS_SPARK_CONF[spark.x]=(hidden): Input should be a valid string" in message
    assert "spark.y" not in message


def test_every_problem_is_named_at_once(monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_START", "soon")
    monkeypatch.setenv("BACKFILL_ASSETS_WINDOW_DAYS", "-1")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "BACKFILL_ASSETS_START='soon'" in str(caught.value)
    assert "BACKFILL_ASSETS_WINDOW_DAYS='-1'" in str(caught.value)


@pytest.mark.parametrize("end", ["2024-01-01", "2023-12-31"])
def test_end_is_after_start(monkeypatch, end):
    monkeypatch.setenv("BACKFILL_ASSETS_START", "2024-01-01")
    monkeypatch.setenv("BACKFILL_ASSETS_END", end)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert f"BACKFILL_ASSETS_END ({end}) must be after BACKFILL_ASSETS_START (2024-01-01)" in str(
        caught.value
    )
    monkeypatch.setenv("BACKFILL_ASSETS_END", "2024-01-02")
    assert load_settings().end == date(2024, 1, 2)


def test_empty_is_unset(monkeypatch):
    expected = load_settings()
    for name in Settings.model_fields:
        if name != "spark_remote":
            monkeypatch.setenv(f"BACKFILL_ASSETS_{name.upper()}", "")
    monkeypatch.setenv("SPARK_REMOTE", "")
    assert load_settings() == expected


def test_an_unknown_variable_is_refused(monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_WINDOWDAYS", "3")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    message = str(caught.value)
    assert "BACKFILL_ASSETS_WINDOWDAYS: no such setting" in message
    assert "(did you mean BACKFILL_ASSETS_WINDOW_DAYS?)" in message
    assert "BACKFILL_ASSETS_WINDOW_DAYS" in str(caught.value)
    monkeypatch.setenv("BACKFILL_ASSETS_WINDOWDAYS", "")
    assert load_settings().window_days == 7


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SPARK_REMOTE", "http://host/;token=hush"),
        ("BACKFILL_ASSETS_WAREHOUSE", "s3a://AKIA:hush@bucket/w"),
        ("BACKFILL_ASSETS_SPARK_CONF", '{"spark.hadoop.fs.s3a.secret.key": hush}'),
        ("BACKFILL_ASSETS_SPARK_CONF", '{"spark.hadoop.fs.s3a.secret.key": ["hush"]}'),
        ("BACKFILL_ASSETS_SPARK_CONF", '{"spark.hadoop.fs.azure.sas.box": hush}'),
        ("BACKFILL_ASSETS_SPARK_CONF", '{"spark.driver.extraJavaOptions": "-Dx=\'hush"}'),
        ("BACKFILL_ASSETS_SPARK_CONF", '{"spark.some": ["hush"]}'),
        ("BACKFILL_ASSETS_WAREHOUSE", "s3a://me:hush@bucket/warehouse"),
    ],
)
def test_a_refused_secret_is_not_shown(monkeypatch, variable, text):
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert variable in str(caught.value)
    assert "hush" not in str(caught.value)


def test_tables_lie_below_the_warehouse():
    assert load_settings(warehouse="/w").table("raw_orders") == "/w/raw_orders"
    assert (
        load_settings(warehouse="s3a://bucket/w/").table("raw_orders")
        == "s3a://bucket/w/raw_orders"
    )


def test_digest_knows_only_what_decides_the_rows():
    digest = load_settings().digest
    where_and_how = {
        "landing": "/elsewhere",
        "warehouse": "s3a://bucket/w",
        "start": date(2020, 1, 1),
        "end": date(2025, 1, 1),
        "partitions_per_run": 3,
        "spark_master": "local[1]",
        "spark_remote": "sc://host:1",
        "spark_conf": {"spark.x": "1", "spark.sql.shuffle.partitions": "64"},
        "jars": Path("/j"),
        "tables": "mine:TABLES",
        "lag_days": 2,
        "reprocess": "window",
        "nightly_at": "01:00",
        "deadline": "07:00",
        "undo_days": 5,
        "stalled_after": 60,
        "keep_runs_days": 5,
        "keep_plans_days": 5,
        "absent_days": 3,
        "check_independence": False,
        "max_line": 1 << 20,
        "max_expanded": 1 << 30,
        "max_control": 1 << 12,
        "rejected_warn": 0.1,
        "rejected_alert": 0.3,
        "rejected_hold": 1.0,
        "webhook": "https://chat/hook",
        "metrics_file": "/metrics.prom",
        "lineage": "shop",
        "catalog": "main.shop",
        "git_commit": "f6f017c",
        "ui_url": "http://dagster",
        "ui_passwords": "/people",
        "location": "shop",
        "key_prefix": "lake/gold",
        "owners": "team:data",
    }
    deciding = {"timezone": "Asia/Tokyo", "window_days": 6, "late_lines": "drop"}
    assert {*where_and_how, *deciding} == set(Settings.model_fields)
    for name, value in where_and_how.items():
        assert load_settings(**{name: value}).digest == digest, name
    for name, value in [*deciding.items(), ("spark_conf", {"spark.sql.ansi.enabled": "false"})]:
        assert load_settings(**{name: value}).digest != digest, name


@pytest.mark.parametrize(
    "name",
    [
        "spark.sql.ansi.enabled",
        "spark.sql.files.ignoreInvalidPartitionPaths",
        "spark.sql.shuffle.partitionsOrSo",
        "spark.databricks.delta.stalenessLimit",
    ],
)
def test_what_is_not_known_to_tune_may_decide_rows(name):
    assert load_settings(spark_conf={name: "x"}).digest != load_settings().digest


def test_the_suite_itself_only_tunes():
    assert load_settings(spark_conf=SMALL).digest == load_settings().digest


@pytest.mark.parametrize(
    ("name", "value", "fine"),
    [
        ("spark.sql.files.ignoreCorruptFiles", "true", "FALSE"),
        ("spark.sql.files.ignoreMissingFiles", "true", "false"),
        ("spark.sql.session.timeZone", "Asia/Tokyo", "UTC"),
    ],
)
def test_what_would_lose_rows_in_silence_is_refused(monkeypatch, name, value, fine):
    monkeypatch.setenv("BACKFILL_ASSETS_SPARK_CONF", json.dumps({name: value}))
    with pytest.raises(SettingsError, match=rf"SPARK_CONF=.*: {name} must be .* or left out"):
        load_settings()
    monkeypatch.setenv("BACKFILL_ASSETS_SPARK_CONF", json.dumps({name: fine}))
    assert spark_config(load_settings())[name].lower() == fine.lower()


def test_the_engine_is_part_of_the_configuration(monkeypatch):
    digests = {load_settings().digest}
    for name in ("pyspark", "delta-spark"):
        versions = {**runtime_versions.engine_versions(), name: "9.9.9"}
        monkeypatch.setattr(runtime_versions, "engine_versions", lambda versions=versions: versions)
        digests.add(load_settings().digest)
    assert len(digests) == 3


def test_time_zone_data_matters_where_days_are_not_those_of_utc(monkeypatch):
    def zone_digests():
        return [load_settings(timezone=zone).digest for zone in ("UTC", "Europe/Berlin")]

    monkeypatch.setattr(runtime_versions, "time_zone_data", lambda: "2025a")
    before = zone_digests()
    monkeypatch.setattr(runtime_versions, "time_zone_data", lambda: "2025b")
    assert [a == b for a, b in zip(before, zone_digests(), strict=True)] == [True, False]


@pytest.mark.parametrize(
    ("changed", "decides"),
    [
        ({"landing": "/elsewhere"}, set()),
        ({"timezone": "Asia/Tokyo"}, set(TABLES)),
        ({"window_days": 6}, set(TABLES) - {"raw_orders", "raw_orders_rejected"}),
        (
            {"late_lines": "drop"},
            {"late_orders", "fact_order_corrections", "fact_daily_orders_current"},
        ),
    ],
)
def test_which_setting_decides_which_table(changed, decides):
    before, after = (
        Deployment(load_settings()).config_digests,
        Deployment(load_settings(**changed)).config_digests,
    )
    assert {name for name in TABLES if before[name] != after[name]} == decides


def test_the_deadline_is_after_the_nightly_run(monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_DEADLINE", "02:00")
    rule = r"DEADLINE \(02:00\) must be after BACKFILL_ASSETS_NIGHTLY_AT \(02:00\)"
    with pytest.raises(SettingsError, match=rule):
        load_settings()


def test_a_webhook_is_a_secret(monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_WEBHOOK", "chat.example/T123")
    with pytest.raises(SettingsError, match=r"WEBHOOK=\(hidden\): must be an http") as caught:
        load_settings()
    assert "T123" not in str(caught.value)
