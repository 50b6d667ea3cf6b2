"""What a project imports from `backfill_assets`, with signatures."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import backfill_assets
from backfill_assets.calendar.reach import Reach
from backfill_assets_tests.contracts.snapshot_files import TextFile


def test_public_api(snapshot):
    lines = [line for name in backfill_assets.__all__ for line in described(name)]
    assert snapshot(extension_class=TextFile) == "\n".join([*lines, ""])


def described(name: str) -> Iterator[str]:
    value = getattr(backfill_assets, name)
    if inspect.isclass(value):
        yield f"class {name}{signature(value)}"
        yield from (f"    {line}" for line in sorted(members(value)))
    elif inspect.isfunction(value):
        yield f"def {name}{signature(value)}"
    else:
        values = value if isinstance(value, tuple) else [value]
        yield f"{name} = {', '.join(map(constant_text, values))}"


def constant_text(value: Any) -> str:
    """The name of a table, or what a reach is."""
    if isinstance(value, Reach):
        return ", ".join(f"{f.name}={getattr(value, f.name)}" for f in dataclasses.fields(value))
    return f"{value.name}"


def members(cls: type) -> Iterator[str]:
    """The public names of a class, also those of its bases of this package."""
    seen = set()
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if not field.name.startswith("_"):
                seen.add(field.name)
                yield f"{field.name}: {field.type}"
    for base in cls.__mro__:
        if not base.__module__.startswith("backfill_assets"):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            yield member_line(cls, name, member)


def member_line(cls: type, name: str, member: Any) -> str:
    if isinstance(member, property) or hasattr(member, "attrname"):
        getter = member.fget if isinstance(member, property) else member.func
        return f"{name} -> {inspect.signature(getter).return_annotation}"
    if inspect.isroutine(member):
        return f"def {name}{signature(getattr(cls, name))}"
    return name


def signature(function: Any) -> str:
    """The signature, with annotations as they are written."""
    found = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=plain(parameter.annotation))
        for parameter in found.parameters.values()
    ]
    returns = plain(found.return_annotation)
    return str(found.replace(parameters=parameters, return_annotation=returns))


class _Annotation(str):
    """Text that signatures show without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def plain(annotation: Any) -> Any:
    return _Annotation(annotation) if isinstance(annotation, str) else annotation
