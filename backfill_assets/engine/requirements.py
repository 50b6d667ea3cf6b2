"""What a Spark Connect server that others started must have: looked up before anything is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from backfill_assets.engine.configuration import DELTA
from backfill_assets.engine.jars import EngineError, delta_coordinate
from backfill_assets.engine.log_store import LOG_STORE, LOG_STORE_CLASS
from backfill_assets.spark_rules import is_secret, may_decide_rows

#: Asks for Delta's version; of values, so that it needs no job.
_DELTA_VERSION = "SELECT reflect('io.delta.package', 'VERSION') FROM VALUES (1)"
#: What Spark says of a class, of Delta's or of the catalog, that it does not have.
_NO_CLASS = re.compile(r"io\.delta\.package not found|Cannot find catalog plugin class")


def shown(url: str) -> str:
    """A server's URL without its token."""
    return re.sub(r"token=[^;]+", "token=***", url)


def refuse_other_server(session: SparkSession, config: Mapping[str, Any]) -> None:
    """Refuse a server that cannot compute what the configuration says, or would compute otherwise.

    Raises:
        EngineError: another minor version of Spark or Delta; no Delta, or not its settings; a
            setting that decides rows and that the server does not let a session change.
    """
    where = f"the Spark Connect server at SPARK_REMOTE={shown(config['spark.remote'])}"
    _refuse_other_version(where, "Spark", session.version, "pyspark")
    found = session.conf.getAll
    delta = _delta_version(session)
    missing = [] if delta else [f"Delta's jars (spark.jars.packages={delta_coordinate()})"]
    # The catalog may be another one that knows Delta's tables; Spark's own does not.
    missing += [f"{name}={wanted}" for name, wanted in DELTA.items() if not found.get(name)]
    if missing:
        raise EngineError(
            f"{where} has no Delta Lake: it lacks {' and '.join(missing)}. Start it with them; "
            "nothing was written."
        )
    _refuse_other_version(where, "Delta Lake", delta, "delta-spark")
    unlike = []
    for name, wanted in config.items():
        there = found.get(name)
        if may_decide_rows(name) and str(there).lower() != str(wanted).lower():
            values = "" if is_secret(name) else f" ({there} and not {wanted})"
            unlike.append(f"{name}{values}")
    if unlike:
        raise EngineError(
            f"{where} runs with other settings than it must, and a session cannot change them: "
            f"{'; '.join(unlike)}. Set them where the server is started; nothing was written."
        )


def refuse_unsafe_server(session: SparkSession, config: Mapping[str, Any]) -> None:
    """Refuse a server that would overwrite the commits of others on S3.

    Raises:
        EngineError: it was started without the setting.
    """
    if session.conf.get(LOG_STORE, "") != LOG_STORE_CLASS:
        raise EngineError(
            f"the Spark Connect server at SPARK_REMOTE={shown(config['spark.remote'])} would "
            f"overwrite commits of others on s3a://: {LOG_STORE} must be {LOG_STORE_CLASS}, of the "
            "jar that backfill-assets jars --s3 builds. Set both where the server is started; "
            "nothing was written."
        )


def _refuse_other_version(where: str, what: str, there: str, package: str) -> None:
    here = version(package)
    if here.split(".")[:2] != there.split(".")[:2]:
        raise EngineError(
            f"{where} runs {what} {there}, and {package} here is {here}: they may compute other "
            "rows. Give the two the same minor version; nothing was written."
        )


def _delta_version(session: SparkSession) -> str:
    """The version of the server's Delta; empty if it has none."""
    try:
        (row,) = session.sql(_DELTA_VERSION).collect()
    except PySparkException as error:
        if _NO_CLASS.search(str(error)):
            return ""
        raise
    return str(row[0])
