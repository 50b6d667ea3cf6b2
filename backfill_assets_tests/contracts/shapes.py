"""The shape of a JSON value: its keys and types, without what differs from run to run."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

_DAY = r"\d{4}-\d{2}-\d{2}"
_DIGEST = r"\b[0-9a-f]{12,}\b"
#: Keys whose values are words of ours: a reader may rely on them.
_WORDS = frozenset({"kind", "verdict", "launched_by", "form"})
#: What depends on whether the code lies in a git repository.
_ENVIRONMENT = {"git_dirty": "boolean or null"}


def shape(value: Any, key: str = "") -> Any:
    """Objects with the shape of each key, lists with the shapes of their items, types as text.

    Days in keys become `<day>`, and what they stand for counts as the shape of any of them.
    """
    if key in _ENVIRONMENT:
        return _ENVIRONMENT[key]
    if key == "code_parts":
        return {"<part>": _merge_shapes(map(shape, value.values()))}
    if isinstance(value, Mapping):
        return _object_shape(value)
    if isinstance(value, list):
        item = _merge_shapes(shape(item, key) for item in value)
        return [] if item is None else [item]
    if key in _WORDS and value is not None:
        return value
    return _scalar_type(value)


def _object_shape(value: Mapping[str, Any]) -> dict[str, Any]:
    by_key: dict[str, list[Any]] = defaultdict(list)
    for key, item in value.items():
        name = _key_pattern(key)
        by_key[name].append(shape(item, name))
    return {key: _merge_shapes(shapes) for key, shapes in sorted(by_key.items())}


def _key_pattern(key: str) -> str:
    if re.fullmatch(r"\d+", key):
        return "<number>"
    key = re.sub(r"^other code: .*", "other code: <what differs>", key)
    return re.sub(_DIGEST, "<digest>", re.sub(_DAY, "<day>", key))


def _scalar_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) else "number"
    if re.fullmatch(_DAY, value):
        return "<day>"
    return "<days>" if re.fullmatch(rf"{_DAY}\.\.\.{_DAY}", value) else "string"


def _merge_shapes(shapes: Iterable[Any]) -> Any:
    """One shape for all: of objects, the keys of each; of other shapes, each one once.

    None without a shape.
    """
    different: list[Any] = []
    for candidate in shapes:
        objects = [known for known in different if isinstance(known, dict)]
        if isinstance(candidate, dict) and objects:
            (known,) = objects
            different[different.index(known)] = {
                key: _merge_shapes([each[key] for each in (known, candidate) if key in each])
                for key in sorted({*known, *candidate})
            }
        elif candidate not in different:
            different.append(candidate)
    if not different:
        return None
    if len(different) == 1:
        return different[0]
    texts = sorted(known for known in different if isinstance(known, str))
    others = [known for known in different if not isinstance(known, str)]
    # A range of one day is that day.
    if texts == ["<day>", "<days>"]:
        texts = ["<days>"]
    alternatives = [*others, *([" or ".join(texts)] if texts else [])]
    return alternatives[0] if len(alternatives) == 1 else {"<either>": alternatives}
