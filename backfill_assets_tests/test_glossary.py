"""Each word of the glossary says where the thing lives: a table, command, setting, name or page."""

from __future__ import annotations

from backfill_assets_tests.helpers.glossary import ROWS, missing_places


def test_each_word_says_where_the_thing_lives():
    assert {row.terms[0]: missing for row in ROWS if (missing := missing_places(row.where))} == {}


def test_what_is_nowhere_is_told():
    names = ["raw_order", "backfill-assets repair", "lab x", "BACKFILL_ASSETS_X", "Read"]
    assert missing_places(", ".join(f"`{name}`" for name in names)) == names
    assert missing_places("everywhere") == ["everywhere"]
    assert missing_places("[the audit](audit.md)") == []


def test_words_are_sorted_and_there_once():
    terms = [row.terms[0].lower() for row in ROWS]
    assert terms == sorted(terms)
    every = [term.lower() for row in ROWS for term in row.terms]
    assert len(every) == len(set(every)) > 100
