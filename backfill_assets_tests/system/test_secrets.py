"""Values of Spark's settings reach the JVM, and nobody else on the machine sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backfill_assets_tests.helpers.connect_server import connect_server

OPTIONS = "spark.driver.extraJavaOptions"
CONF = {
    OPTIONS: '-Duser.timezone=UTC -XX:TieredStopAtLevel=1 -Dtrust.Password="hush hush"',
    "spark.hadoop.fs.azure.sas.box.account": "hush",
    "spark.url": "jdbc:x://me:hush@host/ two\nlines",
}
#: Asks the JVM, and then says that it has: its arguments are looked at meanwhile.
ASK = """
from backfill_assets.spark.session import Engine
from backfill_assets.settings import load_settings
spark = Engine.from_settings(load_settings(spark_master="local[1]")).spark_session
asked = "java_method('java.lang.System', 'getProperty', 'trust.Password')"
print([spark.conf.get("spark.hadoop.fs.azure.sas.box.account"), spark.conf.get("spark.url"),
       spark.sql(f"SELECT {asked}").first()[0]], flush=True)
input()
"""


def process_arguments() -> str:
    """Those of all processes on the machine."""
    command_lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command_lines.append(file.read_bytes().decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return "\n".join(command_lines)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc here")
# That the command of a server names no value is shown in `test_spark.py` as well.
@pytest.mark.parametrize("where", ["embedded", pytest.param("on a server", marks=pytest.mark.slow)])
def test_the_value_of_a_setting_is_no_argument_of_a_process(where, tmp_path):
    environment = {**os.environ, "BACKFILL_ASSETS_SPARK_CONF": json.dumps(CONF)}
    if where == "embedded":
        output = ask_settings(environment)
    else:
        with connect_server(tmp_path, CONF) as url:
            output = ask_settings({**environment, "SPARK_REMOTE": url})
    assert output == str(
        [CONF["spark.hadoop.fs.azure.sas.box.account"], CONF["spark.url"], "hush hush"]
    )


def ask_settings(environment: dict[str, str]) -> str:
    with subprocess.Popen(
        [sys.executable, "-c", ASK],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        output = process.stdout.readline().strip()
        command_lines = process_arguments()
        process.communicate("\n")
    assert "SparkSubmit" in command_lines  # or this looks in the wrong place
    assert "hush" not in command_lines
    return output
