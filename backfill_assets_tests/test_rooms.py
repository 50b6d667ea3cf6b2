"""The machinery knows no table of the orders or of the examples: they are declared like yours."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import backfill_assets
import backfill_assets_guide
from backfill_assets.deployment import Deployment
from backfill_assets.settings import load_settings
from backfill_assets.tables.graph import load_graph
from backfill_assets.tables.table_function import table
from backfill_assets_tests.code_shape import LIMITS
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.paths import PROJECT

PACKAGE = Path(backfill_assets.__file__).parent
GUIDE = Path(backfill_assets_guide.__file__).parent
#: Where the pipelines are declared that come with the package.
PLACES = (
    "backfill_assets.orders.tables:TABLES",
    "backfill_assets_guide.examples.customers.tables:TABLES",
    "backfill_assets_guide.examples.web_events:TABLES",
    "backfill_assets_guide.examples.growth:TABLES",
)
#: The room of the orders; what users import; and the default of the setting that
#: names the tables.
OWN = ("orders/", "__init__.py", "settings.py")
MODULES = {
    str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))
}
MACHINERY = {name: text for name, text in MODULES.items() if not name.startswith(OWN)}
LONGEST, LONGEST_FUNCTION = LIMITS["lines of the longest module"], 80


def _declared_names(place: str) -> Iterator[str]:
    """The names of tables, pages, sources and lookups."""
    settings = load_settings(tables=place)
    graph = load_graph(settings)
    yield from (*graph.tables, *Deployment(settings).lookups)
    for source in graph.sources.values():
        yield from (source.name, source.page)


DECLARED = {name for place in PLACES for name in _declared_names(place)}
#: Some are words of English, as `orders`: these are looked for as strings of the code.
WORDS = {name for name in DECLARED if "_" not in name}
NAMES = re.compile(
    rf"\b({'|'.join(sorted(DECLARED - WORDS))})\b|backfill_assets(\.orders|_guide\.examples)\b"
)


def test_no_module_of_the_machinery_names_a_table():
    """But for the examples in the help of the command line."""
    named = {
        (name, line.strip())
        for name, text in MACHINERY.items()
        for line in text.splitlines()
        if NAMES.search(line)
    }
    examples = {(name, line) for name, line in named if name.startswith("cli/")}
    assert examples
    assert named - examples == set()
    assert all(re.match(r'@command\(|"plan ', line) for _, line in examples)
    assert len(MACHINERY) > 100
    assert {"orders", "features", "visits"} <= WORDS
    assert {"dim_customers", "raw_visits", "lateness_dashboard", "exchange_rates"} < DECLARED
    strings = {
        (name, node.value)
        for name, text in MACHINERY.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and node.value in WORDS
    }
    assert strings == set()
    # Pages, and what a deployment is made from.
    others = [*PACKAGE.glob("templates/*"), *PACKAGE.glob("deploy/*")]
    assert len(others) > 5
    assert not [path.name for path in others if NAMES.search(path.read_text())]


def test_the_page_of_the_architecture_lists_all_rooms():
    """With the first line of each; the list of a room's modules is its folder."""
    (listing,) = (
        text
        for text in code_blocks("docs/architecture.md", "text")
        if text.startswith("backfill_assets/")
    )
    listed, package = {}, PACKAGE
    for line in listing.partition("backfill_assets_tests/")[0].splitlines():
        if line.startswith(" "):
            name, description = line.split(maxsplit=1)
            listed[package / name] = description
        else:
            package = PACKAGE.parent / line
    rooms = {path.parent for place in (PACKAGE, GUIDE) for path in place.glob("*/__init__.py")}
    assert {path for path in listed if path.is_dir()} == rooms
    for path, description in listed.items():
        module = path / "__init__.py" if path.is_dir() else path
        documentation = ast.get_docstring(ast.parse(module.read_text())) or ""
        assert documentation.splitlines()[0] == description


def test_no_room_imports_what_is_for_users():
    """The order of the rooms does not see it."""
    for_users = re.compile(r"^\s*(from backfill_assets import|import backfill_assets$)", re.M)
    assert for_users.search((GUIDE / "examples/web_events.py").read_text())
    assert not [name for name, text in MACHINERY.items() if for_users.search(text)]


def _private_names(path: Path) -> Iterator[str]:
    """The names that a module imports from modules that Dagster does not publish."""
    private = re.compile("_(?!_)")  # not `__version__`
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = names = [alias.name for alias in node.names]
        else:
            continue
        for module in modules:
            library, *parts = module.split(".")
            if library.startswith("dagster") and any(map(private.match, [*parts, *names])):
                yield from names


def _private_names_section() -> str:
    page = (PROJECT / "CONTRIBUTING.md").read_text()
    (section,) = re.findall(r"^## Private names of Dagster\n(.*)", page, re.M | re.S)
    return section


def test_private_names_of_dagster_are_in_one_room_and_on_its_page():
    names = {
        path: {*_private_names(path)} for place in (PACKAGE, GUIDE) for path in place.rglob("*.py")
    }
    assert [path for path in names if names[path] and path.parent.name != "dagster_ext"] == []
    section = _private_names_section()
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    listed = [
        name for row in rows for name in re.findall(r"`(\w+)`", row.partition("; the attribute")[0])
    ]
    assert sorted(listed) == sorted(set().union(*names.values()))


#: What a deployment takes in place of Dagster's own; definitions do not load it.
OPTIONS = (
    *("dagster_ext/code_server.py", "dagster_ext/eventlog.py", "dagster_ext/executor.py"),
    *("serve/", "coordinator.py", "eventlog.py", "launcher.py", "postgres.py", "preloaded.py"),
)
INTERNALS = PACKAGE / "dagster_ext/internals.py"


def _names_used_of_internals(path: Path) -> Iterator[str]:
    """What a module takes from `internals`; of that module, what its functions use."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "backfill_assets.dagster_ext.internals"
        ):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "internals":
            yield node.attr
        elif isinstance(node, ast.Name) and path == INTERNALS:
            yield node.id


def test_the_page_says_which_private_names_an_option_alone_needs():
    users: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        imported = {*_private_names(path)} if path != INTERNALS else set()
        for name in imported | {*_names_used_of_internals(path)}:
            users.setdefault(name, set()).add(str(path.relative_to(PACKAGE)))
    rows = [line.split(" | ") for line in _private_names_section().splitlines()]
    for names, purpose in ((row[0], row[1]) for row in rows if row[0].startswith("| `")):
        for name in re.findall(r"`(\w+)`", names.partition("; the attribute")[0]):
            is_option = all(module.startswith(OPTIONS) for module in users[name])
            assert purpose.startswith("option for one machine: ") is is_option, name


def test_what_users_import_is_there():
    exported = {name: getattr(backfill_assets, name) for name in backfill_assets.__all__}
    assert exported["table"] is table


def test_the_names_in_dagster_yaml_are_those_of_the_room():
    """Homes of Dagster keep them: a release must not take them away."""
    places = {
        "launcher": "serve.launcher",
        "eventlog": "dagster_ext.eventlog",
        "coordinator": "serve.launcher",
    }
    for name, place in places.items():
        module = import_module(f"backfill_assets.{name}")
        inner = import_module(f"backfill_assets.{place}")
        assert module.__all__
        assert all(getattr(module, n) is getattr(inner, n) for n in module.__all__)
    assert import_module("backfill_assets.postgres").PostgresStorage


def imported_names(path: Path) -> list[str]:
    return [
        f"{getattr(node, 'module', '')}.{alias.name}".lstrip(".")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    ]


def test_no_module_imports_from_a_test():
    """What several tests need is in a module that is none."""
    modules = list(Path(__file__).parent.rglob("*.py"))
    imports = [(path.name, name) for path in modules for name in imported_names(path)]
    assert ("test_rooms.py", "backfill_assets_tests.helpers.docs_pages.code_blocks") in imports
    assert not [
        entry for entry in imports if re.match(r"backfill_assets_tests\.(\w+\.)*test_", entry[1])
    ]


def test_modules_and_functions_are_short():
    assert not [name for name, text in MODULES.items() if len(text.splitlines()) > LONGEST]
    functions = [
        (name, node)
        for name, text in MODULES.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    ]
    assert not [
        f"{name}: {node.name}"
        for name, node in functions
        if (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    ]
