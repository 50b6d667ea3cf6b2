"""Each word of the glossary says where the thing lives: a table, command, setting, name or page."""

from __future__ import annotations

import re

import click
import pytest

import backfill_assets
from backfill_assets.cli import cli
from backfill_assets.labs.running import LABS
from backfill_assets.settings import PREFIX, Settings, load_settings
from backfill_assets.tables.catalog import tables_of
from backfill_assets_tests.glossary import ROWS, Row

_EXAMPLES = load_settings(tables="backfill_assets.examples.customers.tables:TABLES")
TABLES = {*tables_of(load_settings()), *tables_of(_EXAMPLES)}
COMMANDS = cli.list_commands(click.Context(cli))
SETTINGS = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}


def lives(span: str) -> bool:
    """Whether there is what a code span of the last column names."""
    kind, _, name = span.partition(" ")
    if kind == "backfill-assets":
        return name in COMMANDS
    if kind == "lab":
        return name in LABS
    return span in TABLES or span in SETTINGS or span in backfill_assets.__all__


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.terms[0])
def test_each_word_says_where_the_thing_lives(row: Row):
    spans = re.findall(r"`([^`]+)`", row.where)
    assert [span for span in spans if not lives(span)] == []
    # Links are resolved with those of all pages.
    assert spans or "](" in row.where


def test_what_is_nowhere_does_not_live():
    names = ("raw_order", "backfill-assets repair", "lab x", f"{PREFIX}X", "Read")
    assert [name for name in names if lives(name)] == []


def test_words_are_sorted_and_there_once():
    terms = [row.terms[0].lower() for row in ROWS]
    assert terms == sorted(terms)
    every = [term.lower() for row in ROWS for term in row.terms]
    assert len(every) == len(set(every)) > 100
