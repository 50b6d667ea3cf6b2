"""The settings of a deployment, typed and validated, with their defaults and `.env` files.

Every setting is an environment variable `BACKFILL_ASSETS_<FIELD>`; only `SPARK_REMOTE` has Spark's
own name.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from datetime import date
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo, available_timezones

from dotenv import dotenv_values
from pydantic import (
    AliasChoices,
    ByteSize,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as PydanticSettingsError

from backfill_assets import runtime_versions

#: By variable, the file that it was read from and its value in the file.
_file_values: dict[str, tuple[Path, str]] = {}


def load_env_file(folder: Path) -> None:
    """Put the variables of a folder's `.env` into the environment of this process.

    As in Dagster's own processes, the file wins over the environment, and a name without a value is
    left out (`dagster._core.secrets.env_file`).

    Args:
        folder: the folder where commands are called.

    Raises:
        ValueError: the file cannot be read.
    """
    file = folder / ".env"
    if not file.is_file():
        return
    try:
        variables = dotenv_values(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    for name, value in variables.items():
        if value is not None:
            os.environ[name] = value
            _file_values[name] = (file, value)


def variable_origin(name: str) -> str:
    """The origin of a variable: `default` if it is not set, `environment`, or a file."""
    if not os.environ.get(name):
        return "default"
    file, value = _file_values.get(name, (None, ""))
    return str(file) if file and os.environ[name] == value else "environment"


def origin_note(name: str) -> str:
    """The file that a variable comes from, for messages; empty if it comes from none."""
    source = variable_origin(name)
    return "" if source in ("default", "environment") else f" (from {source})"


PREFIX = "BACKFILL_ASSETS_"
#: The default number of days in which a backfill can be undone.
UNDO_DAYS = 30


class SettingsError(ValueError):
    """A setting has a value that is not allowed; the message names variable, value and rule."""


class Settings(BaseSettings):
    """The deployment's settings.

    Attributes:
        landing: folder or URL that holds `orders/arrival_date=YYYY-MM-DD/` folders.
        warehouse: folder or URL under which each table lives at `<warehouse>/<asset name>`.
        start: first day of all partitions.
        end: first day after the last partition (exclusive); none means up to yesterday.
        timezone: IANA name of the zone whose calendar days are the business days.
        partitions_per_run: at most so many days a run; a range that `dagster asset materialize` or
            `dg launch` is given is one run, however long it is.
        window_days: the reprocessing window W: a line logged up to W days after the day it
            happened still changes that day; later ones come too late.
        lag_days: a day is first published so many days after it by the schedule and the sensor.
        late_lines: what becomes of a line that came too late: `correct` keeps it as late
            and corrects the closed day by it, `drop` only counts it.
        reprocess: which days new lines make the schedule and the sensor rebuild: `touched` those
            that the lines change, `window` all that are open.
        nightly_at: when the nightly schedule ticks, HH:MM in the business time zone.
        deadline: when on that day all that is due must be there, HH:MM in the business time zone.
        rejected_warn: a share of rejected lines (0 to 1) of an arrival day that gets a warning; so
            much more than on the days before is an alert.
        rejected_alert: a share of which a person is told.
        rejected_hold: a share from which on the day is not published unless a person agrees.
        absent_days: an arrival day without a folder keeps the windows open that it belongs to until
            a folder of so many days later was loaded; then nothing came on it.
        max_line: bytes that a line of a landing file may have, or a row of a Parquet file: the
            engine holds it in memory as a whole, several times over.
        max_expanded: bytes that a compressed landing file may expand to.
        max_control: bytes that a control file may have.
        check_independence: whether ranges that new code of a table computes are held against days
            of them that are computed alone, until two days with rows have shown no difference.
        stalled_after: seconds without progress of Spark after which a step says in its log which
            query it waits for; 0 for never.
        undo_days: for so many days the files that a backfill replaced are kept, so that it can be
            undone.
        keep_runs_days: for so many days housekeeping keeps the logs and all events of a run.
        keep_plans_days: for so many days it keeps plans that have ended, or were never launched.
        webhook: where alerts are posted; none means that there are no alerts.
        metrics_file: where the sensor `watch_days` writes the metrics for Prometheus; none writes
            none.
        lineage: the namespace of jobs in OpenLineage events; none sends no events.
        catalog: where tables are registered, as `catalog.schema`; none registers none.
        git_commit: the commit that the code was built from, where it is installed without its git
            repository; the repository itself is asked first.
        ui_url: where the Dagster UI is: for the links in alerts and on the lateness page, and the
            one name besides those of the machine that it answers to.
        location: the name of Dagster's code location, by which Dagster keeps its history.
        key_prefix: what Dagster's asset keys begin with, with slashes between the parts, as
            `lake/gold`; the names of jobs, ops, schedules, sensors and resources have it, too. The
            tables themselves keep their names.
        owners: of all assets in Dagster's UI, with commas between them: teams as `team:data`,
            people by e-mail address.
        ui_passwords: the file of those who may use the UI; none asks nobody.
        spark_master: master URL of the embedded session.
        spark_remote: URL of a Spark Connect server, which then replaces the embedded session.
        spark_conf: Spark settings that override the defaults of `engine.configuration`.
        jars: where the Delta jars are kept once they have been downloaded.
        tables: where the tables are declared, as `module:attribute`.
    """

    # An empty variable counts as unset: shell users write `VAR= command` to unset a setting.
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, populate_by_name=True
    )

    landing: str = "data/landing"
    warehouse: str = "data/warehouse"
    start: date = date(2024, 1, 1)
    end: date | None = None
    timezone: str = "UTC"
    partitions_per_run: int = Field(default=31, ge=1)
    window_days: int = Field(default=7, ge=0, le=366)
    lag_days: int = Field(default=1, ge=1, le=366)
    late_lines: Literal["correct", "drop"] = "correct"
    reprocess: Literal["touched", "window"] = "touched"
    nightly_at: str = "02:00"
    deadline: str = "06:00"
    rejected_warn: float = Field(default=0.05, gt=0, le=1)
    rejected_alert: float = Field(default=0.2, gt=0, le=1)
    rejected_hold: float = Field(default=0.5, gt=0, le=1)
    absent_days: int = Field(default=30, ge=1, le=36500)
    max_line: ByteSize = Field(default=ByteSize(1 << 20), ge=1 << 10, le=1 << 30)
    max_expanded: ByteSize = Field(default=ByteSize(16 << 30), ge=1 << 20)
    max_control: ByteSize = Field(default=ByteSize(1 << 20), ge=1 << 10, le=1 << 30)
    check_independence: bool = True
    stalled_after: int = Field(default=600, ge=0, le=604800)
    # Not longer than Delta keeps commits, as Delta requires.
    undo_days: int = Field(default=UNDO_DAYS, ge=1, le=36500)
    keep_runs_days: int = Field(default=90, ge=1, le=36500)
    keep_plans_days: int = Field(default=365, ge=1, le=36500)
    webhook: str | None = None
    metrics_file: Path | None = None
    lineage: str | None = None
    catalog: str | None = Field(default=None, pattern=r"^\w+\.\w+$")
    git_commit: str | None = None
    ui_url: str = "http://127.0.0.1:3000"
    location: str = Field(default="backfill_assets.definitions", pattern=r"^[\w.-]+$")
    key_prefix: str | None = Field(default=None, pattern=r"^([A-Za-z0-9_]+(/[A-Za-z0-9_]+)*)?$")
    owners: str | None = None
    ui_passwords: Path | None = None
    spark_master: str = "local[*]"
    spark_remote: str | None = Field(
        default=None, validation_alias=AliasChoices("spark_remote", "SPARK_REMOTE")
    )
    spark_conf: dict[str, str] = Field(default_factory=dict)
    jars: Path = Path("~/.cache/backfill_assets/jars")
    tables: str = Field(default="backfill_assets.orders.tables:TABLES", pattern=r"^[\w.]+:\w+$")

    @field_validator("landing", "warehouse")
    @classmethod
    def _make_absolute(cls, value: str) -> str:
        """Make local paths absolute: a step may run in another working directory."""
        if not value.strip():
            raise ValueError("must be a path or a URL, not empty")
        value = normalize_location(value)
        if "://" in value:
            return value
        return str(Path(value).expanduser().resolve())

    @field_validator("key_prefix", mode="before")
    @classmethod
    def _join_parts(cls, value: object) -> object:
        """Take a list, as Dagster's own arguments do."""
        return "/".join(map(str, value)) if isinstance(value, list | tuple) else value

    @field_validator("key_prefix")
    @classmethod
    def _check_last_word(cls, value: str | None) -> str | None:
        """Refuse what gives the job `backfill` the name of another one in another deployment."""
        if re.search(r"(^|[/_])(plan|shadow)$", value or ""):
            raise ValueError(
                "must not end in plan or shadow: the job backfill would have the name that another "
                "deployment's plan_backfill or shadow_backfill may have"
            )
        return value

    @field_validator("start", "end", mode="before")
    @classmethod
    def _check_iso_day(cls, value: object) -> object:
        """Accept only YYYY-MM-DD: pydantic would read 20240101 as seconds since 1970."""
        if value is None or isinstance(value, date):
            return value
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", str(value)):
            raise ValueError("must be a day as YYYY-MM-DD")
        return value

    @field_validator("timezone")
    @classmethod
    def _check_timezone(cls, value: str) -> str:
        if not is_time_zone(value):
            raise ValueError("must be an IANA time zone such as UTC or Europe/Berlin")
        return value

    @field_validator("nightly_at", "deadline")
    @classmethod
    def _time_of_day(cls, value: str) -> str:
        if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", value):
            raise ValueError("must be a time of day as HH:MM")
        return value

    @field_validator("webhook", "ui_url")
    @classmethod
    def _http_url(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"https?://[^/\s]", value):
            raise ValueError("must be an http:// or https:// URL")
        return value and value.rstrip("/")

    @field_validator("lineage")
    @classmethod
    def _check_client(cls, value: str | None) -> str | None:
        if value:
            require_extra("openlineage", "openlineage", "lineage")
        return value

    @field_validator("metrics_file")
    @classmethod
    def _check_metrics(cls, value: Path | None) -> Path | None:
        if value:
            require_extra("serve", "prometheus_client", "a file of metrics")
        return value

    @field_validator("owners")
    @classmethod
    def _check_owners(cls, value: str | None) -> str | None:
        for owner in filter(None, (value or "").split(",")):
            if not re.fullmatch(r"team:[\w.-]+|[\w.+%-]+@[\w.-]+\.[A-Za-z]{2,7}", owner.strip()):
                raise ValueError(
                    "must be teams as team:data, or e-mail addresses, with commas between them"
                )
        return value

    @field_validator("spark_remote")
    @classmethod
    def _check_connect_url(cls, value: str | None) -> str | None:
        """Accept only sc:// URLs; empty means None, so that the embedded engine is used."""
        if not value:
            return None
        try:
            url = urlsplit(value)
            is_valid = url.scheme == "sc" and url.hostname and url.port != 0
        except ValueError:  # a port that is not a number
            is_valid = False
        if not is_valid:
            raise ValueError("must be a Spark Connect URL: sc://host:port")
        return value

    @field_validator("spark_conf")
    @classmethod
    def _check_spark_conf(cls, value: dict[str, str]) -> dict[str, str]:
        runtime_versions.check_spark_conf(value)
        return value

    @field_validator("jars", "ui_passwords", "metrics_file")
    @classmethod
    def _expand_path(cls, value: Path | None) -> Path | None:
        return value and value.expanduser().resolve()

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        """Refuse an END that is not after START, and a DEADLINE that is not after NIGHTLY_AT."""
        if self.end is not None and self.end <= self.start:
            raise ValueError(
                f"{PREFIX}END ({self.end}) must be after {PREFIX}START ({self.start}); it is "
                "exclusive"
            )
        if self.deadline <= self.nightly_at:
            raise ValueError(
                f"{PREFIX}DEADLINE ({self.deadline}) must be after {PREFIX}NIGHTLY_AT "
                f"({self.nightly_at})"
            )
        return self

    @property
    def zone(self) -> ZoneInfo:
        """The business time zone."""
        return ZoneInfo(self.timezone)

    @property
    def asset_owners(self) -> list[str]:
        """The owners of the assets, in Dagster's form."""
        return [owner.strip() for owner in (self.owners or "").split(",") if owner.strip()]

    def table(self, asset: str) -> str:
        """The path or URL of an asset's table."""
        return f"{self.warehouse}/{asset}"

    @property
    def digest(self) -> str:
        """A digest of all settings that decide rows, for the deployment as a whole."""
        return self.digest_of(["window_days", "late_lines"])

    def digest_of(
        self,
        fields: Iterable[str],
        overrides: Mapping[str, Any] | None = None,
        *,
        local_zone: str = "UTC",
    ) -> str:
        """A digest of some settings and of what decides the rows of every table.

        The latter is the business time zone, the versions of the engine, and the settings of
        Spark's SQL except tuning. The location of tables, the days per run and Spark's machine are
        not included: they must not change a row.

        Args:
            fields: the settings that decide only some tables.
            overrides: the values of settings that differ for these tables.
            local_zone: the zone of the source's times without an offset.
        """
        replacements = overrides or {}
        deciding = {n: replacements[n] if n in replacements else getattr(self, n) for n in fields}
        deciding |= {"timezone": self.timezone, "engine": runtime_versions.engine_versions()}
        # Times in UTC do not depend on time-zone data.
        if {self.timezone, local_zone} != {"UTC"}:
            deciding["time_zone_data"] = runtime_versions.time_zone_data()
        if sql := {k: v for k, v in self.spark_conf.items() if runtime_versions.may_decide_rows(k)}:
            deciding["spark_sql"] = sql
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16]


def require_extra(extra: str, module: str, feature: str) -> None:
    """Raise if the package of an optional feature is not installed.

    Raises:
        SettingsError: naming the feature, and what to install.
    """
    if find_spec(module) is None:
        raise SettingsError(f"{feature} needs a package: pip install 'backfill-assets[{extra}]'")


def is_time_zone(value: object) -> bool:
    """Whether a value is the IANA name of a time zone."""
    return value == "UTC" or (isinstance(value, str) and value in _time_zones())


@cache
def _time_zones() -> Set[str]:
    """The names of all time zones; they are looked for on disk, which takes 0.1 s."""
    return available_timezones()


#: URLs of object stores: the scheme, and the bucket or container with the folder.
_STORE_URLS = (
    r"(s3[an]?)://([a-z0-9][a-z0-9.-]+(?:/[^?#]*)?)",
    r"(gs)://([a-z0-9][a-z0-9._-]+(?:/[^?#]*)?)",
    r"(abfss?)://([a-z0-9-]+@[a-z0-9]+\.(?:blob|dfs)\.core\.windows\.net/[^/?#][^?#]*)",
)


def normalize_location(value: str) -> str:
    """A local path, or a URL of an object store in Spark's form.

    Raises:
        ValueError: it is a URL of another store, which is not supported, or has a password.
    """
    url = urlsplit(value)
    if url.scheme == "file":
        if url.netloc not in ("", "localhost"):
            raise ValueError("a file URL has three slashes: file:///path")
        return unquote(url.path)
    if "://" not in value:
        return value
    if url.password is not None:
        raise ValueError(
            "must be a URL without a password: Dagster shows it with each day. Give the password "
            "where the store's client looks for credentials"
        )
    matches = (re.fullmatch(pattern, value) for pattern in _STORE_URLS)
    if not (store_match := next(filter(None, matches), None)):
        raise ValueError(
            "must be a path, s3a://bucket/folder, gs://bucket/folder or "
            "abfss://container@account.dfs.core.windows.net/folder, with keys where the store's "
            "own tools look for them; other stores (hdfs://) are not supported"
        )
    scheme, place = store_match.groups()
    return f"{'s3a' if scheme.startswith('s3') else scheme}://{place.rstrip('/')}"


def load_settings(**overrides: Any) -> Settings:
    """The settings of the environment, with overrides by field name.

    Raises:
        SettingsError: naming every variable or override with a bad value, the value, and what is
            allowed; or a variable with the prefix that is no setting and would be ignored.
    """
    known_names = {
        f"{PREFIX}{name.upper()}" for name in Settings.model_fields if name != "spark_remote"
    }
    set_names = {name for name, value in os.environ.items() if name.startswith(PREFIX) and value}
    if unknown := sorted(set_names - known_names):
        raise SettingsError(
            f"bad settings: {', '.join(name + origin_note(name) for name in unknown)}: no such "
            f"setting{_suggest_name(unknown[0], known_names)}; there are "
            f"{', '.join(sorted(known_names))} and SPARK_REMOTE"
        )
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError(_explain_errors(error.errors(), overrides)) from None
    except PydanticSettingsError:
        # The one setting that is not plain text: pydantic-settings itself reads it as JSON.
        name = f"{PREFIX}SPARK_CONF"
        raise SettingsError(
            f"bad settings: {name}=(hidden): must be a JSON object of strings, such as "
            '{"spark.driver.memory": "8g"}'
        ) from None


def list_variables(settings: Settings) -> Iterator[tuple[str, str]]:
    """The environment variable of each setting, with its value; secrets are hidden."""
    for field, value in settings:
        mapping = isinstance(value, Mapping)
        shown = json.dumps(value) if mapping else "" if value is None else str(value)
        yield _variable_name(field), "(hidden)" if value and _is_hidden(shown, field) else shown


def _variable_name(field: str) -> str:
    return "SPARK_REMOTE" if field.lower() == "spark_remote" else f"{PREFIX}{field.upper()}"


def _explain_errors(problems: list[Any], overrides: Mapping[str, Any]) -> str:
    """The message of a `SettingsError`: variable or override, value and rule of each problem."""
    lines = []
    for problem in problems:
        field, *within = map(str, problem["loc"]) if problem["loc"] else [""]
        name = field if field in overrides else _variable_name(field)
        rule = problem["msg"].removeprefix("Value error, ")
        if not field:
            lines.append(rule)
        else:
            place = "".join(f"[{key}]" for key in within)
            value = _show_value(problem["input"], field + place)
            lines.append(
                f"{name}{place}={value}{origin_note(name)}: {rule}{_describe_bounds(field)}"
            )
    return "bad settings: " + "; ".join(lines)


def _suggest_name(name: str, known: Collection[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _describe_bounds(field: str) -> str:
    """The bounds of a numeric setting as text, such as ` (at least 1)`; empty without any."""
    field_info = Settings.model_fields.get(field)
    phrases = {"ge": "at least", "gt": "more than", "le": "at most"}
    bounds = [
        f"{word} {getattr(constraint, name)}"
        for constraint in (field_info.metadata if field_info else ())
        for name, word in phrases.items()
        if getattr(constraint, name, None) is not None
    ]
    return f" ({', '.join(bounds)})" if bounds else ""


def _show_value(value: object, place: str = "") -> str:
    """A value as shown in messages: errors end up in logs and in the UI.

    Values of Spark settings are always hidden, as any may be a secret.
    """
    return "(hidden)" if _is_hidden(str(value), place) else repr(value)


def _is_hidden(value: str, place: str) -> bool:
    named_secret = runtime_versions.is_secret(place) and place.lower() != "key_prefix"
    return place.startswith("spark_conf") or named_secret or runtime_versions.is_secret(value)


def find_dagster_home() -> Path | None:
    """DAGSTER_HOME, the folder of plans and runs; None if it is not set.

    Raises:
        SettingsError: Dagster would refuse it.
    """
    value = os.environ.get("DAGSTER_HOME")
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_absolute():
        raise SettingsError(
            f"DAGSTER_HOME={value} is a relative path: give the absolute path of the deployment's "
            "folder"
        )
    if not folder.is_dir():
        raise SettingsError(
            f"DAGSTER_HOME={value} is no folder: make it, or give that of the deployment"
        )
    return folder


#: The file in DAGSTER_HOME that a running deployment locks; it has the UI's port.
DEPLOYMENT_LOCK = "deployment.lock"


def find_ui_url(settings: Settings, home: str) -> str:
    """The UI's URL: as set, else that of the home's latest deployment on this machine."""
    if "ui_url" not in settings.model_fields_set:
        with suppress(OSError, ValueError, LookupError, TypeError):
            return parse_ui_url((Path(home) / DEPLOYMENT_LOCK).read_text())
    return settings.ui_url


def parse_ui_url(lock_text: str) -> str:
    """The UI's URL from the text of a deployment's lock file."""
    return f"http://127.0.0.1:{int(json.loads(lock_text)['port'])}"
