"""A person who follows the pages: the environment of the commands, and a shell to give them in."""

from __future__ import annotations

import io
import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self
from unittest.mock import patch

import dagster as dg
from click.testing import CliRunner
from dagster._cli import cli as dagster_cli
from pyspark.sql import SparkSession

from backfill_assets import definitions
from backfill_assets.cli import main, runs
from backfill_assets.cli.output import Status
from backfill_assets.settings import PREFIX
from backfill_assets.spark.session import Engine
from backfill_assets.tables.graph import load_tables
from backfill_assets_tests import conftest
from backfill_assets_tests.helpers.paths import BIN

#: A program that asks the process of the test to run what it is called as.
_ASKING = r"""#!/bin/bash
set -eu
asked={folder}
if [ "${0##*/}" = python ]; then
  if [ "${1-} ${2-}" != "-m pytest" ]; then exec {python} "$@"; fi
fi
cat > "$asked/stdin"
printf '%s\0' "$PWD" "${0##*/}" "$@" > "$asked/words"
env -0 > "$asked/variables"
echo > "$asked/question"
read -r status < "$asked/answer"
cat "$asked/stdout"
cat "$asked/stderr" >&2
exit "$status"
"""


def reader_environment() -> dict[str, str]:
    """The environment of a fresh shell, without settings of anybody's own."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX) and name not in ("SPARK_REMOTE", "DAGSTER_HOME")
    }
    return {
        **inherited,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        # Jars are not downloaded for a test, and the machine is shared with the suite's Spark.
        "BACKFILL_ASSETS_JARS": os.environ.get("BACKFILL_ASSETS_JARS", ""),
        "BACKFILL_ASSETS_SPARK_CONF": json.dumps({**conftest.SMALL, "spark.master": "local[2]"}),
        # The days of a range are computed alone as well where a test asks for it.
        f"{PREFIX}CHECK_INDEPENDENCE": "false",
        # The last lines of a step arrive on a loaded machine as well (see the Makefile).
        "DAGSTER_COMPUTE_LOG_TAIL_WAIT_AFTER_FINISH": "2",
    }


class Reader:
    """Somebody with a shell, whose commands of ours and of Dagster's are run in this process.

    Attributes:
        programs: the folder of what stands for our commands, for Dagster's and for Python's: an
            engine serves all of them. Python itself runs all but tests.
    """

    def __init__(self, engine: Engine, root: Path) -> None:
        """Nothing is started.

        Args:
            engine: of all commands.
            root: the folder of what the reader writes.
        """
        self._engine, self._root = engine, root
        self._folder = TemporaryDirectory()
        self._asked = Path(self._folder.name)
        self.programs = self._asked / "bin"
        self.programs.mkdir()
        for name in _PROGRAMS:
            file = self.programs / name
            words = {"{folder}": str(self._asked), "{python}": str(BIN / "python")}
            text = _ASKING
            for place, word in words.items():
                text = text.replace(place, shlex.quote(word))
            file.write_text(text)
            file.chmod(0o755)
        for fifo in ("question", "answer"):
            os.mkfifo(self._asked / fifo)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Forget the modules that the reader has written, and the tables in them."""
        self._folder.cleanup()
        load_tables.cache_clear()
        for name, module in [*sys.modules.items()]:
            if str(getattr(module, "__file__", None) or "").startswith(str(self._root)):
                del sys.modules[name]

    def type(self, script: str, folder: Path, **variables: str) -> tuple[int, str]:
        """Give a script to a shell; its status, and what it prints.

        Args:
            script: of bash; it ends at what fails.
            folder: the working folder.
            variables: besides those of a fresh shell.
        """
        environment = {**reader_environment(), **variables}
        environment["PATH"] = f"{self.programs}{os.pathsep}{environment['PATH']}"
        questions = os.open(self._asked / "question", os.O_RDWR | os.O_NONBLOCK)
        with (self._asked / "printed").open("wb") as printed:
            shell = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,
            )
        try:
            while shell.poll() is None:
                if select([questions], [], [], 0.05)[0]:
                    os.read(questions, 1)
                    status = self._answer()
                    (self._asked / "answer").write_text(f"{status}\n")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)  # with what still waits for an answer
            shell.wait()
            os.close(questions)
        return shell.returncode, (self._asked / "printed").read_text()

    def _answer(self) -> int:
        """Run what the shell asks for; the status."""
        asked = self._asked
        folder, program, *words = (asked / "words").read_text().split("\0")[:-1]
        pairs = (line.partition("=") for line in (asked / "variables").read_text().split("\0"))
        variables = {name: value for name, _, value in pairs if name}
        stdout, stderr = io.StringIO(), io.StringIO()
        with (
            chdir(folder),
            patch.dict(os.environ, variables, clear=True),
            patch.object(Engine, "from_settings", lambda _: self._engine),
            patch.object(SparkSession.Builder, "getOrCreate", lambda _: self._engine.spark_session),
            patch.object(runs.RunProcess, "run_days", _run_days),
            # Each command is a process, and a range makes other definitions.
            patch.dict(definitions._defs_by_settings, clear=True),
            patch.object(sys, "path", [folder, *sys.path]),
            (asked / "stdin").open() as stdin,
            patch.object(sys, "stdin", stdin),
            redirect_stdout(stdout),
            redirect_stderr(stderr),
        ):
            status = _PROGRAMS[program](words)
        (asked / "stdout").write_text(stdout.getvalue())
        (asked / "stderr").write_text(stderr.getvalue())
        return status


def _run_dagster(words: Sequence[str]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dagster's, of its own command
        result = CliRunner().invoke(dagster_cli, words)
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    if result.exception and not isinstance(result.exception, SystemExit):
        traceback.print_exception(result.exception)
    return result.exit_code


def _run_tests(_: Sequence[str]) -> int:
    """Call the tests of the folder, in place of a session of pytest."""
    tests = [
        function
        for file in sorted(Path("tests").glob("test_*.py"))
        for name, function in runpy.run_path(str(file)).items()
        if name.startswith("test_")
    ]
    for function in tests:
        function()
    sys.stdout.write(f"{len(tests)} passed\n")
    return 0


def _run_days(
    process: runs.RunProcess, assets: Sequence[str], days: object, tags: Mapping[str, str]
) -> bool:
    """As `RunProcess.run_days`, in this process."""
    home, log = process.home, io.StringIO()
    with (
        patch.dict(os.environ, DAGSTER_HOME=home),
        redirect_stdout(log),
        redirect_stderr(log),
        dg.DagsterInstance.get() as instance,
    ):
        succeeded = runs._materialize(instance, str(days), tags, assets)
    return runs.condense_log(log.getvalue().splitlines(), process.out) is Status.FINE and succeeded


_PROGRAMS = {"backfill-assets": main, "dagster": _run_dagster, "python": _run_tests}
