"""Values of Spark's settings reach the JVM, and nobody else on the machine sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backfill_assets_tests.connect_server import connect_server

OPTIONS = "spark.driver.extraJavaOptions"
CONF = {
    OPTIONS: '-Duser.timezone=UTC -XX:TieredStopAtLevel=1 -Dtrust.Password="hush hush"',
    "spark.hadoop.fs.azure.sas.box.account": "hush",
    "spark.url": "jdbc:x://me:hush@host/ two\nlines",
}
#: Asks the JVM, and then says that it has: its arguments are looked at meanwhile.
ASK = """
from backfill_assets.engine.spark import Engine
from backfill_assets.settings import load_settings
spark = Engine.of(load_settings(spark_master="local[1]")).spark_session
asked = "java_method('java.lang.System', 'getProperty', 'trust.Password')"
print([spark.conf.get("spark.hadoop.fs.azure.sas.box.account"), spark.conf.get("spark.url"),
       spark.sql(f"SELECT {asked}").first()[0]], flush=True)
input()
"""


def arguments() -> str:
    """Those of all processes on the machine."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes().decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return "\n".join(found)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc here")
@pytest.mark.parametrize("where", ["embedded", "on a server"])
def test_the_value_of_a_setting_is_no_argument_of_a_process(where, tmp_path):
    environment = {**os.environ, "BACKFILL_ASSETS_SPARK_CONF": json.dumps(CONF)}
    if where == "embedded":
        told = asked(environment)
    else:
        with connect_server(tmp_path, CONF) as url:
            told = asked({**environment, "SPARK_REMOTE": url})
    assert told == str(
        [CONF["spark.hadoop.fs.azure.sas.box.account"], CONF["spark.url"], "hush hush"]
    )


def asked(environment: dict[str, str]) -> str:
    with subprocess.Popen(
        [sys.executable, "-c", ASK],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        told = process.stdout.readline().strip()
        seen = arguments()
        process.communicate("\n")
    assert "SparkSubmit" in seen  # or this looks in the wrong place
    assert "hush" not in seen
    return told
