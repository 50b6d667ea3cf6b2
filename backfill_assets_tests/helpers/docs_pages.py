"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from backfill_assets.cli import main
from backfill_assets_tests.helpers.paths import PROJECT

#: The text of README and of all other pages by their path, README first.
PAGES = {
    str(path.relative_to(PROJECT)): path.read_text()
    for path in (
        PROJECT / "README.md",
        PROJECT / "CONTRIBUTING.md",
        *sorted((PROJECT / "docs").rglob("*.md")),
    )
}
#: A block of code: its language, and what is in it.
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_blocks(page: str, language: str) -> list[str]:
    """The blocks of a page in a language."""
    return [
        body for block_language, body in BLOCK.findall(PAGES[page]) if block_language == language
    ]


@dataclass(frozen=True)
class Section:
    """A heading and what is below it, its subsections included.

    Attributes:
        level: 1 for the title of a page.
        title: without the marks of the level.
        body: up to the next heading of this level or a higher one.
    """

    level: int
    title: str
    body: str


def split_sections(text: str) -> Iterator[Section]:
    """Those of a page, in order. What looks like a heading in a block of code is none."""
    hidden = BLOCK.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    heads = list(re.finditer(r"^(#+) (.+)$", hidden, re.MULTILINE))
    for number, head in enumerate(heads):
        after = (
            later_head.start()
            for later_head in heads[number + 1 :]
            if len(later_head[1]) <= len(head[1])
        )
        yield Section(len(head[1]), head[2], text[head.end() : next(after, len(text))])


def anchor_of(title: str) -> str:
    """How a link names the section with a title."""
    return re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")


def run_step(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command as a page has it; what it prints has the lines that the page shows."""
    command, *shown = step.splitlines()
    name, *words = shlex.split(command.removeprefix("$ "))
    assert name == "backfill-assets"
    assert main(words) == 0, capsys.readouterr()
    output_lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    for line in shown:
        # As many spaces as there are: of each one by itself, a wide table is never done.
        pattern = re.sub(r"(\\ )+", " +", re.escape(line).replace(re.escape("..."), ".*"))
        assert any(re.fullmatch(pattern, output_line) for output_line in output_lines), (
            line,
            output_lines,
        )
