"""What a project imports from `backfill_assets`, with signatures."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import backfill_assets
from backfill_assets.calendar.reach import Reach
from backfill_assets_tests.contracts.snapshot_files import TextFile
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.typed_project import EVERY_NAME


def test_public_api(snapshot):
    lines = [line for name in backfill_assets.__all__ for line in describe_name(name)]
    assert snapshot(extension_class=TextFile) == "\n".join([*lines, ""])


def test_an_exported_name_is_known_to_type_checkers_and_on_the_page():
    modules = {
        name: f"backfill_assets.{module}" for name, module in backfill_assets._MODULES.items()
    }
    assert [*modules] == backfill_assets.__all__
    assert dict(names_for_type_checkers()) == modules
    sections = (PROJECT / "docs" / "api.md").read_text().split("\n## ")
    for name, module in modules.items():
        section = next((text for text in sections if f"\n::: {module}\n" in text), "")
        assert re.search(rf"^Import .*`{name}`.* from `backfill_assets`", section, re.M), name
        members = re.search(r"members: \[(.*)\]", section)
        assert members is None or name in members[1].split(", "), name


def test_the_project_that_is_type_checked_has_every_name_and_argument():
    tree = ast.parse(EVERY_NAME.read_text())
    imported = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "backfill_assets"
        for alias in node.names
    }
    assert imported == {*backfill_assets.__all__}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for function in (backfill_assets.table, backfill_assets.version_of, backfill_assets.publishes):
        given = {
            keyword.arg
            for call in calls
            if ast.unparse(call.func) == function.__name__
            for keyword in call.keywords
        }
        parameters = inspect.signature(function).parameters.values()
        assert given >= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


def names_for_type_checkers() -> Iterator[tuple[str, str]]:
    """By name that is imported under `TYPE_CHECKING`, its module."""
    tree = ast.parse(inspect.getsource(backfill_assets))
    # By a `__getattr__` that they see, they would take every name for an exported one.
    assert not any(isinstance(node, ast.FunctionDef) for node in tree.body)
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for imported in node.body:
                assert isinstance(imported, ast.ImportFrom)
                yield from ((alias.name, str(imported.module)) for alias in imported.names)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nullable", "backfill_assets has no nullable: it is nullable_column now"),
        ("week", "it is week_starting now, as week_starting('sunday')"),
        ("STAGED", "import it from backfill_assets.orders.tables"),
    ],
)
def test_a_name_of_before_says_what_to_import(name, text):
    with pytest.raises(ImportError, match=re.escape(text)):
        exec(f"from backfill_assets import {name}")


def test_what_names_of_before_say_can_be_imported():
    for name, text in backfill_assets._RENAMED.items():
        assert name not in backfill_assets.__all__
        words = [word.strip(",") for word in text.split()]
        instead = words[2] if words[0] == "it" else name
        module = words[-1] if words[0] == "import" else "backfill_assets"
        assert hasattr(import_module(module), instead), text


def describe_name(name: str) -> Iterator[str]:
    value = getattr(backfill_assets, name)
    if inspect.isclass(value):
        yield from signature_lines(f"class {name}", value)
        yield from (f"    {line}" for line in sorted(member_lines(value)))
    elif inspect.isfunction(value):
        yield from signature_lines(f"def {name}", value)
    else:
        values = value if isinstance(value, tuple) else [value]
        yield f"{name} = {', '.join(map(constant_text, values))}"


def constant_text(value: Any) -> str:
    """The name of a table, what a reach is, or a text."""
    if isinstance(value, Reach):
        return ", ".join(f"{f.name}={getattr(value, f.name)}" for f in dataclasses.fields(value))
    return value if isinstance(value, str) else f"{value.name}"


def member_lines(cls: type) -> Iterator[str]:
    """The public names of a class, also those of its bases of this package."""
    yielded_names = set()
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if not field.name.startswith("_"):
                yielded_names.add(field.name)
                yield f"{field.name}: {plain_annotation(field.type)}"
    for base in cls.__mro__:
        if not base.__module__.startswith("backfill_assets"):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in yielded_names:
                continue
            yielded_names.add(name)
            yield member_line(cls, name, member)


def member_line(cls: type, name: str, member: Any) -> str:
    if isinstance(member, property) or hasattr(member, "attrname"):
        getter = member.fget if isinstance(member, property) else member.func
        return f"{name} -> {plain_annotation(inspect.signature(getter).return_annotation)}"
    if inspect.isroutine(member):
        return f"def {name}{signature_of(getattr(cls, name))}"
    return name


def signature_lines(head: str, function: Any) -> Iterator[str]:
    """The signature, with a line for each parameter."""
    signature = signature_of(function)
    yield f"{head}("
    yield from (f"        {text}," for text in parameter_texts(signature))
    returns = signature.return_annotation
    yield f"    ){'' if returns is signature.empty else f' -> {returns}'}"


def parameter_texts(signature: inspect.Signature) -> Iterator[str]:
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        yield str(parameter)


def signature_of(function: Any) -> inspect.Signature:
    """The signature, with annotations as they are written."""
    declared = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=plain_annotation(parameter.annotation))
        for parameter in declared.parameters.values()
    ]
    returns = plain_annotation(declared.return_annotation)
    return declared.replace(parameters=parameters, return_annotation=returns)


class _Annotation(str):
    """Text that signatures show without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def plain_annotation(annotation: Any) -> Any:
    """An annotation as it is written in a module that imports its names."""
    if annotation is inspect.Signature.empty:
        return annotation
    if isinstance(annotation, str):
        return _Annotation(annotation)
    # Also where Python has evaluated it: then names have their modules.
    return _Annotation(re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", inspect.formatannotation(annotation)))
