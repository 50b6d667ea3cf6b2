"""The tutorial is followed to its end, block by block; each block of output is what is printed."""

from __future__ import annotations

import re
import subprocess

from backfill_assets_tests.helpers.docs_pages import BLOCK, PAGES, code_blocks
from backfill_assets_tests.helpers.paths import BIN
from backfill_assets_tests.helpers.reader import reader_environment

PAGE = PAGES["docs/getting-started.md"]
COMMANDS = code_blocks("docs/getting-started.md", "bash")
MODULES = code_blocks("docs/getting-started.md", "python")
#: The file that a block of Python is all of.
FILE = re.compile(r"This is all of `([\w/.]+)`:\s*$")


def squeeze(text: str) -> list[str]:
    """Lines without the spaces that align them."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_tutorial_does_what_it_says(tmp_path):
    """All in one shell, as a reader has it; the clone is a folder with the environment."""
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone/.venv").symlink_to(BIN.parent)
    script, expected, commands = ["set -euo pipefail"], {}, 0
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
    result = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path / "clone",
        env=reader_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:]
    outputs = dict(
        re.findall(r"^@@ (\d+)$(.*?)(?=^@@ |\Z)", result.stdout, re.DOTALL | re.MULTILINE)
    )
    assert len(outputs) == commands
    for number, lines in expected.items():
        printed = squeeze(outputs[str(number)])
        assert [line for line in lines if line not in printed] == [], outputs[str(number)]
    load, read, late, states, undo = (outputs[str(n)] for n in range(commands - 4, commands + 1))
    assert any("1 passed" in text for text in outputs.values())
    assert "Published" in load
    assert "'meter': 'a'" in read or "'meter': 'b'" in read
    assert "Building stg_readings, daily_energy for 2024-03-05...2024-03-06" in late
    assert "new input: stg_readings" in states
    assert "2024-03-06" in undo
    assert "dagster asset materialize" not in undo, "nothing is asked for again"
