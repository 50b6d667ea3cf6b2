"""The shape of a value tells keys and types apart, and no run from another."""

from __future__ import annotations

from typing import Any

import pytest

from backfill_assets_tests.contracts.shapes import shape


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": 1, "b": 1.5, "c": "x", "d": None, "e": True}, "integer number string null boolean"),
        (
            {"a": "2024-01-01", "b": "2024-01-01...2024-01-02", "c": "late 2024-01-01"},
            "<day> <days> string",
        ),
    ],
)
def test_types(value: dict[str, Any], expected: str) -> None:
    assert [*shape(value).values()] == expected.split()


def test_days_and_versions_in_keys_are_any_day_and_number() -> None:
    first = {"2024-01-01": {"rows": 1}, "arrival_date=2024-01-01/a-0123456789ab-0.csv": 1, "17": []}
    other = {"2024-02-03": {"rows": 9}, "arrival_date=2024-02-03/a-ba9876543210-0.csv": 2, "4": []}
    assert shape(first) == shape(other) == shape({**first, **other})
    assert set(shape(first)) == {"<day>", "arrival_date=<day>/a-<digest>-0.csv", "<number>"}


def test_days_have_the_keys_of_each_of_them() -> None:
    days = {"2024-01-01": {"rows": 1}, "2024-01-02": {"rows": None, "nulls": {"note": 3}}}
    expected = {"<day>": {"rows": "integer or null", "nulls": {"note": "integer"}}}
    assert shape(days) == expected
    assert shape([1, "a", {"b": 1}]) == [{"<either>": [{"b": "integer"}, "integer or string"]}]


def test_a_type_or_key_that_changes_is_seen() -> None:
    base = shape({"said": {"rows": 1}})
    for other in ({"said": {"rows": "1"}}, {"said": {}}, {"said": {"row": 1}}, {"said": [1]}):
        assert shape(other) != base


def test_words_that_readers_rely_on_are_held() -> None:
    assert shape({"kind": "canary"}) != shape({"kind": "switch-over"})
    assert shape({"git_dirty": None}) == shape({"git_dirty": True})
