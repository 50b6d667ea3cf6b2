"""Snapshots as files that a person can read, a file for each test."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_TYPES = {dict: "object", list: "array", type(None): "null"}


class TextFile(SingleFileSnapshotExtension):
    """A snapshot of text."""

    file_extension = "txt"
    _write_mode = WriteMode.TEXT


class Shape:
    """The keys of some JSON values of the same kind, each with the types of what it holds.

    Args:
        names: keys that are data, such as names of tables, each with a placeholder. A day is such a
            key without being named.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._types: defaultdict[str, set[str]] = defaultdict(set)
        self._objects: Counter[str] = Counter()
        self._keys: Counter[str] = Counter()

    def add(self, value: Any, path: str = "") -> None:
        """Take the shape of one more value."""
        self._types[path].add(_TYPES.get(type(value), type(value).__name__))
        if isinstance(value, Mapping):
            self._objects[path] += 1
            fields = {self._placeholder(key): [] for key in value}
            for key, content in value.items():
                fields[self._placeholder(key)].append(content)
            for field, contents in fields.items():
                inner = f"{path}.{field}".removeprefix(".")
                self._keys[inner] += 1
                for content in contents:
                    self.add(content, inner)
        elif isinstance(value, list):
            for item in value:
                self.add(item, f"{path}[]")

    def _placeholder(self, key: str) -> str:
        return "<day>" if _DAY.fullmatch(key) else self._names.get(key, key)

    def lines(self) -> Iterable[str]:
        """A line for each path; what is not always there has a question mark."""
        for path, types in sorted(self._types.items()):
            parent = path.rpartition(".")[0]
            optional = self._keys[path] < self._objects[parent] and not path.endswith(("[]", ">"))
            yield f"  {path or '.'}{'?' if optional and path else ''}: {' | '.join(sorted(types))}"
