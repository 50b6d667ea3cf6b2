"""The tutorial is followed to its end, block by block; each block of output is what is printed."""

from __future__ import annotations

import os
import re
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

from backfill_assets.calendar.partitions import Window
from backfill_assets.cli.output import Output
from backfill_assets.cli.runs import RunProcess
from backfill_assets.settings import load_env_file
from backfill_assets_tests.helpers.docs_pages import BLOCK, PAGES, code_blocks
from backfill_assets_tests.helpers.reader import Reader, reader_environment

PAGE = PAGES["docs/getting-started.md"]
COMMANDS = code_blocks("docs/getting-started.md", "bash")
MODULES = code_blocks("docs/getting-started.md", "python")
#: The file that a block of Python is all of.
FILE = re.compile(r"This is all of `([\w/.]+)`:\s*$")


def squeeze(text: str) -> list[str]:
    """Lines without the spaces that align them."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_tutorial_does_what_it_says(engine, spark, tmp_path, capsys):
    """All in one shell, as a reader has it; the clone is a folder with the environment.

    Our commands and Dagster's are run in this process. But `night --run` starts processes: what it
    starts is run as such where nothing has changed, so that it needs no engine.
    """
    (tmp_path / "clone/.venv").mkdir(parents=True)
    script, expected, commands = [], {}, 0
    for block in BLOCK.finditer(PAGE):
        body = block[2]
        if body in COMMANDS:
            commands += 1
            script += [f"echo; echo '@@ {commands}'", body]
        elif body in MODULES:
            (file,) = FILE.findall(PAGE[: block.start()].rstrip())
            script.append(f"cat > {file} <<'END_OF_FILE'\n{body}END_OF_FILE")
        else:
            expected[commands] = squeeze(body)
    with Reader(engine, tmp_path) as reader:
        (tmp_path / "clone/.venv/bin").symlink_to(reader.programs)
        status, printed = reader.type("\n".join(script), tmp_path / "clone")
    assert status == 0, printed[-6000:]
    outputs = dict(re.findall(r"^@@ (\d+)$(.*?)(?=^@@ |\Z)", printed, re.DOTALL | re.MULTILINE))
    assert len(outputs) == commands
    for number, lines in expected.items():
        printed = squeeze(outputs[str(number)])
        assert [line for line in lines if line not in printed] == [], outputs[str(number)]
    load, late, states, undo = (outputs[str(n)] for n in range(commands - 3, commands + 1))
    assert any("1 passed" in text for text in outputs.values())
    assert "Published" in load
    assert "Building stg_readings, daily_energy for 2024-03-05...2024-03-06" in late
    assert "new input: stg_readings" in states
    assert "2024-03-06" in undo
    assert "dagster asset materialize" not in undo, "nothing is asked for again"
    assert_a_run_in_a_process_finds_nothing_to_do(tmp_path / "energy", capsys)


def assert_a_run_in_a_process_finds_nothing_to_do(project: Path, capsys) -> None:
    """What `night --run` starts, on days that are as they were loaded."""
    tables, days = (
        ["raw_readings", "raw_readings_rejected"],
        Window.parse("2024-03-01...2024-03-05"),
    )
    with chdir(project), patch.dict(os.environ, reader_environment(), clear=True):
        load_env_file(project)
        capsys.readouterr()
        with RunProcess(Output(), str(project / ".dagster")) as process:
            assert process.run_days(tables, days, {})
    identical = "identical raw_readings 5 days, raw_readings_rejected 5 days"
    assert identical in capsys.readouterr().out
