"""What a Spark Connect server that others started must have: looked up before anything is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from backfill_assets.engine.configuration import DELTA_CONF
from backfill_assets.engine.jars import EngineError, delta_coordinate
from backfill_assets.engine.log_store import LOG_STORE, LOG_STORE_CLASS
from backfill_assets.spark_rules import is_secret, may_decide_rows

#: Asks for Delta's version; of values, so that it needs no job.
_DELTA_VERSION_QUERY = "SELECT reflect('io.delta.package', 'VERSION') FROM VALUES (1)"
#: What Spark says of a class, of Delta's or of the catalog, that it does not have.
_NO_DELTA = re.compile(r"io\.delta\.package not found|Cannot find catalog plugin class")


def hide_token(url: str) -> str:
    """A server's URL without its token."""
    return re.sub(r"token=[^;]+", "token=***", url)


def raise_if_incompatible(session: SparkSession, config: Mapping[str, Any]) -> None:
    """Refuse a server that cannot compute what the configuration says, or would compute otherwise.

    Raises:
        EngineError: another minor version of Spark or Delta; no Delta, or not its settings; a
            setting that decides rows and that the server does not let a session change.
    """
    server = f"the Spark Connect server at SPARK_REMOTE={hide_token(config['spark.remote'])}"
    _raise_if_other_version(server, "Spark", session.version, "pyspark")
    server_conf = session.conf.getAll
    delta = _delta_version(session)
    missing = [] if delta else [f"Delta's jars (spark.jars.packages={delta_coordinate()})"]
    # The catalog may be another one that knows Delta's tables; Spark's own does not.
    missing += [
        f"{name}={expected}" for name, expected in DELTA_CONF.items() if not server_conf.get(name)
    ]
    if missing:
        raise EngineError(
            f"{server} has no Delta Lake: it lacks {' and '.join(missing)}. Start it with them; "
            "nothing was written."
        )
    _raise_if_other_version(server, "Delta Lake", delta, "delta-spark")
    differences = []
    for name, expected in config.items():
        actual = server_conf.get(name)
        if may_decide_rows(name) and str(actual).lower() != str(expected).lower():
            detail = "" if is_secret(name) else f" ({actual} and not {expected})"
            differences.append(f"{name}{detail}")
    if differences:
        raise EngineError(
            f"{server} runs with other settings than it must, and a session cannot change them: "
            f"{'; '.join(differences)}. Set them where the server is started; nothing was written."
        )


def raise_if_unsafe_commits(session: SparkSession, config: Mapping[str, Any]) -> None:
    """Refuse a server that would overwrite the commits of others on S3.

    Raises:
        EngineError: it was started without the setting.
    """
    if session.conf.get(LOG_STORE, "") != LOG_STORE_CLASS:
        raise EngineError(
            f"the Spark Connect server at SPARK_REMOTE={hide_token(config['spark.remote'])} would "
            f"overwrite commits of others on s3a://: {LOG_STORE} must be {LOG_STORE_CLASS}, of the "
            "jar that backfill-assets jars --s3 builds. Set both where the server is started; "
            "nothing was written."
        )


def _raise_if_other_version(server: str, product: str, server_version: str, package: str) -> None:
    client_version = version(package)
    if client_version.split(".")[:2] != server_version.split(".")[:2]:
        raise EngineError(
            f"{server} runs {product} {server_version}, and {package} here is {client_version}: they may compute other "
            "rows. Give the two the same minor version; nothing was written."
        )


def _delta_version(session: SparkSession) -> str:
    """The version of the server's Delta; empty if it has none."""
    try:
        (row,) = session.sql(_DELTA_VERSION_QUERY).collect()
    except PySparkException as error:
        if _NO_DELTA.search(str(error)):
            return ""
        raise
    return str(row[0])
