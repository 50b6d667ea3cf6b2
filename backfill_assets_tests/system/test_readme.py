"""Every command and block of the README and of the pages in docs/ is run, or the test fails.

What is quick or cheap runs as it stands, in an empty working directory; our commands and Dagster's
on one engine, that of the suite. The `make` targets would install, start servers or run this very
suite: of those, the target's recipe is checked.
What the pages list (settings, states, alerts, errors, modules, columns) is compared with the code.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from pydantic import ByteSize

from backfill_assets.audit.verdicts import Severity
from backfill_assets.monitoring.states import DayState
from backfill_assets.orders.tables import RAW, TABLES
from backfill_assets.settings import PREFIX, Settings, load_settings
from backfill_assets_tests.helpers.docs_pages import (
    BLOCK,
    PAGES,
    anchor_of,
    code_blocks,
    split_sections,
)
from backfill_assets_tests.helpers.docs_site import load_hooks, site_in
from backfill_assets_tests.helpers.paths import BIN, PROJECT, VALIDATE_COMMAND
from backfill_assets_tests.helpers.reader import Reader, reader_environment

ALL = "\n".join(PAGES.values())
(SAMPLE_END,) = re.findall(r"^export BACKFILL_ASSETS_END=(\S+)$", ALL, re.MULTILINE)
#: Blocks that another module runs, by page and language.
RUN_ELSEWHERE = {
    ("README.md", "python"): "test_examples.py",
    ("docs/customers.md", "python"): "test_examples.py",
    ("docs/enrichment.md", "python"): "system/test_enrichment.py",
    ("docs/getting-started.md", "bash"): "system/test_getting_started.py",
    ("docs/getting-started.md", "python"): "system/test_getting_started.py",
    ("docs/guide/exercises.md", "bash"): "system/test_exercises.py",
    ("docs/guide/sql.md", "postgresql"): "system/test_sql_page.py",
    ("docs/guide/sql.md", "sql"): "system/test_sql_page.py",
    ("docs/monitoring.md", "yaml"): "test_metrics.py",
    ("docs/own-sources.md", "python"): "system/test_web_events.py",
    ("docs/own-tables.md", "python"): "own_tables.py",
    ("docs/reconciliation.md", "python"): "test_diff.py",
    ("docs/runbook.md", "yaml"): "test_cli_backfills.py",
    ("docs/schema-changes.md", "python"): "test_migrations.py",
    ("docs/settings.md", "yaml"): "test_component.py",
    ("docs/shadow.md", "python"): "system/test_shadow_page.py",
    ("docs/regions.md", "python"): "test_parts.py",
    ("docs/training-sets.md", "python"): "test_examples.py",
    ("docs/your-project.md", "bash"): "system/test_dbt.py",
    ("docs/your-project.md", "python"): "test_host_project.py",
    ("docs/your-project.md", "yaml"): "test_host_project.py",
}


def runnable_blocks(language: str) -> list[str]:
    """Those that this test is about, of all pages."""
    return [
        body
        for page in PAGES
        if (page, language) not in RUN_ELSEWHERE
        for body in code_blocks(page, language)
    ]


def bash_commands() -> Iterator[str]:
    """The commands of the bash blocks, in order; a backslash at the end continues one."""
    for block in runnable_blocks("bash"):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"\s+# .*$", "", line).strip()
            if command and not command.startswith("#"):
                yield command


@dataclass
class Place:
    """A working directory like a fresh clone, without settings of anybody's own."""

    root: Path
    reader: Reader
    outputs: dict[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        home = str(self.root / "dagster_home")
        # As an earlier line of the same block says.
        return {"DAGSTER_HOME": home, "BACKFILL_ASSETS_END": SAMPLE_END}

    def run(self, command: str, **variables: str) -> str:
        """Run a command to its end, once, and return what it printed."""
        if command not in self.outputs:
            status, output = self.reader.type(command, self.root, **{**self.variables, **variables})
            assert status == 0, f"$ {command}\n{output[-4000:]}"
            self.outputs[command] = output
        return self.outputs[command]


@pytest.fixture(scope="module")
def place(engine, spark, tmp_path_factory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("readme")
    (root / "dagster_home").mkdir()
    for name in ("dagster.yaml", "workspace.yaml"):
        shutil.copy(PROJECT / name, root)
    shutil.copy(PROJECT / "dagster.yaml", root / "dagster_home")
    (root / ".venv").symlink_to(BIN.parent)
    with Reader(engine, root) as reader:
        yield Place(root, reader)


def run_command(place: Place, command: str) -> None:
    place.run(command)


def run_elsewhere(place: Place, command: str) -> None:
    """With a landing of its own, as the one of the other commands is there already."""
    place.run(command, BACKFILL_ASSETS_LANDING=str(place.root / "elsewhere"))


def run_beside(place: Place, command: str) -> None:
    """In folders beside those of the other commands, for three days."""
    place.run(f"{command.replace('data/', 'beside/')} --days 3")


def run_few_days(place: Place, command: str) -> None:
    """So many days are no other sample than a few, and take longer."""
    run_elsewhere(place, re.sub(r"--days \d+", "--days 3", command))


def publish_sample(place: Place) -> None:
    """The commands of the CI section, each of which is run once."""
    for word in ("jars", "sample", "materialize"):
        word = f"backfill-assets {word}"
        place.run(next(command for command in bash_commands() if command.startswith(word)))


def run_on_one_table(place: Place, command: str) -> None:
    """On a copy of one table: what is done with it is done with each."""
    publish_sample(place)
    warehouse = place.root / "one_table"
    shutil.copytree(place.root / "data/warehouse" / RAW.name, warehouse / RAW.name)
    place.run(command, BACKFILL_ASSETS_WAREHOUSE=str(warehouse))


def make_targets(place: Place) -> set[str]:
    help_text = place.run(f"make -C {PROJECT} --no-print-directory help")
    return set(re.findall(r"^  make ([\w-]+) ", help_text, re.MULTILINE))


def check_recipe(place: Place, command: str) -> None:
    """`make TARGET`: the target is there, and what it would do can be worked out."""
    _, target, *_ = command.split()
    assert target in make_targets(place)
    place.run(f"make -C {PROJECT} -n {command.removeprefix('make ')}")


def check_activation(place: Place, command: str) -> None:
    output = place.run(f"{command} && command -v dagster backfill-assets")
    assert [Path(line).resolve() for line in output.splitlines()] == [
        (BIN / name).resolve() for name in ("dagster", "backfill-assets")
    ]


def check_validation(_: Place, command: str) -> None:
    """Another test gives this very command, of the same workspace."""
    assert command == VALIDATE_COMMAND


def check_settings(place: Place, command: str) -> None:
    """`export NAME=VALUE ...`: settings that exist, with values that are allowed."""
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    exported = json.loads(place.run(f"{command}; python -c '{code}'"))
    for name in re.findall(r"(?<=\s)(\w+)=", command):
        assert name == "SPARK_REMOTE" or name.removeprefix(PREFIX).lower() in Settings.model_fields
        with patch.dict(os.environ, exported, clear=True):
            changed = load_settings()
        with patch.dict(os.environ, {**reader_environment(), **place.variables}, clear=True):
            os.environ.pop(name, None)
            assert load_settings() != changed


def check_password(place: Place, command: str) -> None:
    """`backfill-assets password NAME` asks for the password."""
    people = place.root / "people"
    place.run(f"echo secret | {command}", BACKFILL_ASSETS_UI_PASSWORDS=str(people))
    assert f"{command.split()[-1]}:" in people.read_text()


KNOWN = {
    r"make (demo|test|test-system|test-all|snapshots|ui|install|check|docs|lock)": check_recipe,
    r"make (links|mutants)": check_recipe,
    r"make lock ARGS=--upgrade": check_recipe,
    r"make test (ARGS|MARKERS)='[^']*'": check_recipe,
    r"make mutants ARGS=('[^']*'|\S+)": check_recipe,
    r"\. \.venv/bin/activate": check_activation,
    r"mkdir -p -m 700 \$DAGSTER_HOME && cp dagster.yaml \$DAGSTER_HOME/": run_command,
    r"backfill-assets (jars|sample|show|history .*|plan .*|accept-code .*)": run_command,
    r"backfill-assets materialize .*": run_command,
    r"backfill-assets (verify-)?export .*": run_command,
    r"backfill-assets init shop": run_elsewhere,
    r"backfill-assets sample --days \d+": run_few_days,
    r"python -m backfill_assets_guide\.examples\.customers\.sample .*": run_beside,
    r"dagster asset materialize .*": run_command,
    r"dagster definitions validate .*": check_validation,
    r"backfill-assets (doctor|jars --(s3|gs))": run_command,
    r"backfill-assets password \w+": check_password,
    r"dagster job execute .* -j housekeeping": run_on_one_table,
    # Not ours: for Amazon's clients and Google's, for a proxy, for Dagster's storage.
    r"export (AWS|GOOGLE|DAGSTER)_\w+=\S.*": run_command,
    r"export (SPARK_REMOTE|BACKFILL_ASSETS_\w+)=\S.*": check_settings,
}


@pytest.mark.parametrize("command", list(dict.fromkeys(bash_commands())))
def test_commands(place, command):
    how = [check for pattern, check in KNOWN.items() if re.fullmatch(pattern, command)]
    assert len(how) == 1, f"no test knows how to run this command: {command}"
    how[0](place, command)


def test_the_two_commands_come_first():
    assert list(bash_commands())[:2] == ["make demo", "make test"]


def test_the_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) <= 150


@pytest.mark.parametrize(
    "word",
    [
        "idempotent",
        "watermark",
        "late-arriving",
        "rollback",
        "skew",
        "schema evolution",
        "write-audit-publish",
    ],
)
def test_the_words_that_people_search_for_are_in_the_glossary(word):
    assert re.search(rf"^- \*[^:]*{word}", PAGES["docs/glossary.md"], re.MULTILINE)


def test_there_is_no_other_kind_of_block():
    page_kinds = {(page, kind) for page, text in PAGES.items() for kind, _ in BLOCK.findall(text)}
    assert {kind for page, kind in page_kinds if (page, kind) not in RUN_ELSEWHERE} == {
        "bash",
        "python",
        "text",
    }
    # An indented block, or one that is not closed, would be none to this test.
    for page, text in PAGES.items():
        assert text.count("```") == 2 * len(BLOCK.findall(text)), page


def test_the_other_blocks_are_run_by_the_module_that_is_named():
    for (page, language), module in RUN_ELSEWHERE.items():
        assert code_blocks(page, language)
        assert (
            f'code_blocks("{page}", "{language}")'
            in (PROJECT / "backfill_assets_tests" / module).read_text()
        )


def test_commands_in_the_text_exist(place):
    """Those between backticks in a sentence: the target or the command has to be there."""
    usage = place.run("backfill-assets --help")
    known = set(re.findall(r"^  ([a-z-]+) +[A-Z]", usage, re.MULTILINE))
    for page, text in PAGES.items():
        for span in re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)):
            words = re.sub(r"^(\w+=\S+ )+", "", span).split()
            if len(words) > 1 and words[0] == "make":
                assert words[1] in make_targets(place), (page, span)
            if len(words) > 1 and words[0] == "backfill-assets":
                assert words[1] in known | {"--help"}, (page, span)


@pytest.fixture(scope="module")
def published(place) -> Place:
    """After the commands of the CI section, which the tests above have run already."""
    publish_sample(place)
    return place


def read_expected(place: Place) -> dict:
    """What the generator of the sample says is right."""
    return json.loads((place.root / "data/landing/expected.json").read_text())


def test_the_demo_prints_what_the_readme_says(published):
    """The numbers under `make demo` are those of the same range, loaded by the CI section."""
    (block,) = (text for text in runnable_blocks("text") if text.startswith("Published\n"))
    shown = published.run("backfill-assets show")
    rows = [line.rstrip() for line in shown.splitlines()][1 : 2 + len(TABLES)]
    assert block.splitlines()[1:] == rows
    makefile = (PROJECT / "Makefile").read_text()
    days = re.search(r"^DEMO_DAYS := (\S+)$", makefile, re.MULTILINE)
    assert days is not None
    assert f" for {days[1]} ..." in published.run(f"backfill-assets materialize {days[1]}")
    assert f"demo: export BACKFILL_ASSETS_END ?= {SAMPLE_END}\n" in makefile


def test_progress_condenses_the_log_of_dagsters_command(published):
    (command,) = (text for text in bash_commands() if text.startswith("dagster asset materialize"))
    lines = published.run(command).splitlines()
    counts = "identical raw_orders 21 days, raw_orders_rejected 21 days; 147 checks evaluated"
    assert f"  read_orders ... {counts}" in lines


def run_python_blocks(place: Place, page: str) -> list[str]:
    """What the blocks of a page print, each in a namespace of its own."""
    outputs = []
    for block in code_blocks(page, "python"):
        printed = io.StringIO()
        with chdir(place.root), redirect_stdout(printed):
            exec(compile(block, page, "exec"), {"__name__": "__main__"})
        outputs.append(printed.getvalue())
    return outputs


@pytest.fixture(scope="module")
def python_blocks(published) -> list[str]:
    return run_python_blocks(published, "docs/tables.md")


def test_python_blocks_are_on_one_page(python_blocks):
    assert len(python_blocks) == 2
    assert runnable_blocks("python") == code_blocks("docs/tables.md", "python")


def test_reading_all_facts(published, python_blocks):
    lines = python_blocks[0].splitlines()
    days = {words[0]: words[1:] for words in map(str.split, lines) if re.match(r"\d{4}-", words[0])}
    assert len(days) == 21
    assert min(days) == "2024-01-01"
    assert max(days) == "2024-01-21"
    assert all(int(orders) > 100 and re.fullmatch(r"\d+\.\d\d", x) for orders, x in days.values())


def test_reading_one_day_and_the_verdicts(published, python_blocks):
    first, *verdicts = python_blocks[1].splitlines()
    orders = next(
        row.split()[1] for row in python_blocks[0].splitlines() if row.startswith("2024-01-05")
    )
    assert first == f"{orders} orders on 2024-01-05"
    rows = {line.split()[0]: line.split()[1:] for line in verdicts}
    assert len(rows) == 21
    assert rows["2024-01-05"][0] == orders
    assert all(row[2] in ("ok", "warn") for row in rows.values())


def test_closed_days_are_what_the_sample_says(published, python_blocks):
    """The days whose window is loaded are final: the generator knows their rows."""
    staged = {
        day: counts["staged"] for day, counts in read_expected(published)["event_days"].items()
    }
    rows = {line.split()[0]: line.split()[1] for line in python_blocks[1].splitlines()[1:]}
    closed = [day for day in rows if day <= "2024-01-14"]
    assert len(closed) == 14
    assert {day: int(rows[day]) for day in closed} == {day: staged[day] for day in closed}


def test_every_setting_has_a_row():
    """The list of settings has every variable, with its default."""
    rows = dict(re.findall(r"^- `([A-Z_]+)` \((.+?)\): ", PAGES["docs/settings.md"], re.MULTILINE))
    variables = {
        "SPARK_REMOTE" if name == "spark_remote" else f"{PREFIX}{name.upper()}": info.default
        for name, info in Settings.model_fields.items()
    }
    assert set(rows) == {*variables, "DAGSTER_HOME"}
    for name, default in variables.items():
        if default is not None and name != "BACKFILL_ASSETS_SPARK_CONF":
            sized = isinstance(default, ByteSize)
            shown = default.human_readable().replace(".0", "") if sized else default
            assert rows[name] == f"`{shown}`", name
        elif default is None:
            assert "`" not in rows[name], name


def test_every_error_is_explained():
    raised = {
        name
        for path in (PROJECT / "backfill_assets").rglob("*.py")
        # A command prints the message of its own error, and not its name.
        if path.parent.name != "cli"
        for name in re.findall(r"^class (\w+Error)\(", path.read_text(), re.MULTILINE)
    }
    assert raised
    assert {name for name in raised if f"`{name}" not in PAGES["docs/errors.md"]} == set()


def test_every_alert_and_every_state_is_explained():
    source = (PROJECT / "backfill_assets/monitoring/incidents.py").read_text()
    kinds = {"run failed", *re.findall(r"(?:add_incidents|Incident)\(\s*\"([a-z ]+)\"", source)}
    states, _, alerts = PAGES["docs/monitoring.md"].partition("\n## Alerts\n")
    assert set(re.findall(r"^- `([a-z ]+)`: ", alerts, re.MULTILINE)) >= kinds
    assert len(kinds) > 8
    for state in DayState:
        assert f"\n- `{state.value}`: " in states


def test_every_verdict_is_explained():
    for severity in Severity:
        assert f"\n- `{severity.value}`: " in PAGES["docs/audit.md"]


def test_every_table_and_column_is_explained():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="tables.md"))
    text = load_hooks().on_page_markdown(PAGES["docs/tables.md"], page)
    sections = re.split(r"^### ", text.partition("## The columns")[2], flags=re.M)
    columns_by_table = {
        name: re.findall(r"^- `(\w+)` (\S+?)(, may be null)?: (.+)$", section, re.MULTILINE)
        for section in sections[1:]
        for name in re.findall(r"`(\w+)`", section.partition("\n")[0])
    }
    assert columns_by_table == {
        table.name: [
            (
                name,
                column.dtype.type.simpleString(),
                ", may be null" if column.nullable else "",
                column.description,
            )
            for name, column in table.columns.items()
        ]
        for table in TABLES.values()
    }


def page_anchors(page: str) -> set[str]:
    return {anchor_of(section.title) for section in split_sections(PAGES[page])}


def page_links(page: str) -> Iterator[tuple[str, str]]:
    """The path and the anchor of each link within the project."""
    for target in re.findall(r"\]\(([^)]+)\)", BLOCK.sub("", PAGES[page])):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield path, anchor


def test_every_link_leads_somewhere():
    """Those between pages in docs/ are checked by the strict build."""
    outside = {page: [*page_links(page)] for page in PAGES if not page.startswith("docs/")}
    assert all(outside.values())
    for page, targets in outside.items():
        for path, anchor in targets:
            file = (PROJECT / page).parent / path if path else PROJECT / page
            assert file.is_file(), (page, path)
            if anchor:
                assert anchor in page_anchors(str(file.resolve().relative_to(PROJECT))), (
                    page,
                    path,
                )


def test_anchors_are_spelled_alike_by_github_and_mkdocs():
    """They are, unless two hyphens meet."""
    assert [
        (page, anchor) for page in PAGES for _, anchor in page_links(page) if "--" in anchor
    ] == []


def test_every_picture_has_words():
    pictures = [
        alt_text for text in PAGES.values() for alt_text in re.findall(r"!\[(.*?)\]\(", text)
    ]
    assert pictures
    assert all(pictures)


def test_every_page_is_in_the_navigation():
    navigation = (PROJECT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    linked_pages = re.findall(r": ([\w/-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(f"docs/{name}" for name in linked_pages) == sorted(
        page for page in PAGES if page.startswith("docs/")
    )


def test_the_changelog_links_to_pages():
    for target in re.findall(r"\]\(([^)#]+)", (PROJECT / "CHANGELOG.md").read_text()):
        assert "://" in target or (PROJECT / target).is_file(), target


def test_the_pages_build_without_a_warning(tmp_path):
    """Links and anchors within docs/ among them: the build is strict."""
    pytest.importorskip("mkdocs", reason="`make docs` has not installed it")
    assert (site_in(tmp_path) / "index.html").is_file()
    settings = (PROJECT / "mkdocs.yml").read_text()
    assert "\nstrict: true\n" in settings
    for name in ("omitted_files", "absolute_links", "unrecognized_links", "anchors"):
        assert f"\n  {name}: warn\n" in settings
