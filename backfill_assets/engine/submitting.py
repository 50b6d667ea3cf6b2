"""How a JVM of Spark's is given its settings: by files that only their owner can read.

What stands in the arguments of a command, everybody on the machine can read.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from backfill_assets.engine.environment import SUBMIT_ARGS_VARIABLE

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def submit_options(config: Mapping[str, Any], folder: Path) -> list[str]:
    """The options of `spark-submit` that name the settings' files, which are written.

    Args:
        config: the settings.
        folder: where the files are to lie; they are read whenever the command is started.
    """
    settings = {name: str(value) for name, value in config.items()}
    if options := shlex.split(settings.get(_JAVA_OPTIONS, "")):
        # Java reads its arguments from a file as well, and needs quotes around those with spaces.
        quoted = (json.dumps(option, ensure_ascii=False) for option in options)
        file = _write_private(folder / "java.options", "\n".join(quoted))
        settings[_JAVA_OPTIONS] = f'"@{file}"'
    lines = (
        f"{_escape_property(name)}={_escape_property(value)}" for name, value in settings.items()
    )
    file = _write_private(folder / "spark.properties", "\n".join(lines))
    # With a file of its own, Spark leaves out any spark-defaults.conf.
    return ["--properties-file", str(file)]


def start_driver(config: Mapping[str, Any]) -> None:
    """Start the JVM of this process' embedded sessions, unless it has one.

    The environment is that of the JVM meanwhile, see `environment`.
    """
    if SparkContext._gateway is not None:  # noqa: SLF001 - only this tells
        return
    with tempfile.TemporaryDirectory() as folder:
        options = shlex.join(submit_options(config, Path(folder)))
        os.environ[SUBMIT_ARGS_VARIABLE] = f"{options} pyspark-shell"
        # When it returns, the JVM has read the files.
        SparkContext._ensure_initialized()  # noqa: SLF001 - all else gives it by arguments


def _write_private(file: Path, text: str) -> Path:
    """Write a file that is its owner's alone from its first byte on."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(f"{text}\n".encode())
    return file


def _escape_property(text: str) -> str:
    """As `java.util.Properties` reads it."""
    return "".join(f"\\u{ord(c):04x}" if c in "\\=:#! \t\n\r\f" else c for c in text)
