"""The rows of the glossary, and whether there is what they name."""

from __future__ import annotations

import re
from dataclasses import dataclass

import click

import backfill_assets
from backfill_assets.cli import cli
from backfill_assets.settings import PREFIX, Settings, load_settings
from backfill_assets.tables.graph import tables_of
from backfill_assets_guide.labs.running import LABS
from backfill_assets_tests.helpers.docs_pages import PAGES

PAGE = "docs/glossary.md"
_EXAMPLES = load_settings(tables="backfill_assets_guide.examples.customers.tables:TABLES")
_NAMES = {
    *tables_of(load_settings()),
    *tables_of(_EXAMPLES),
    *(f"{PREFIX}{name.upper()}" for name in Settings.model_fields),
    *backfill_assets.__all__,
    *(f"backfill-assets {name}" for name in cli.list_commands(click.Context(cli))),
    *(f"lab {name}" for name in LABS),
}


@dataclass(frozen=True)
class Row:
    """A word and those that mean the same.

    Attributes:
        terms: the words, of this project and of others.
        meaning: what they mean.
        where: the tables, commands, settings and pages where the thing lives.
    """

    terms: tuple[str, ...]
    meaning: str
    where: str


def missing_places(where: str) -> list[str]:
    """What a row's brackets name that is not there: no table, command, setting or name of the API.

    Links are left to the test of all links. Brackets that name nothing at all are told as well.
    """
    spans = re.findall(r"`([^`]+)`", where)
    if not spans and "](" not in where:
        return [where]
    return [span for span in spans if span not in _NAMES]


def _read_rows() -> tuple[Row, ...]:
    cells = re.findall(r"^- (\*.+?): (.+) \((.+)\)$", PAGES[PAGE], re.MULTILINE)
    return tuple(
        Row(tuple(re.sub(r"[*`]", "", words).split(", ")), meaning, where)
        for words, meaning, where in cells
    )


ROWS = _read_rows()
