"""`init`: a project of one's own, with a source, a table, a test and sample data."""

from __future__ import annotations

import json
import keyword
from datetime import datetime, timedelta, timezone
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import click

from backfill_assets.cli.output import Output, Status, command

_SCAFFOLD = Path(__file__).parent.parent / "scaffold"
#: The files of a project, each with what it is made of. `{name}` is the name of its package.
_PROJECT_FILES = {
    "pyproject.toml": "pyproject.toml.j2",
    "Makefile": "Makefile.j2",
    ".env": "env.j2",
    ".gitignore": "gitignore",
    "README.md": "README.md.j2",
    "workspace.yaml": "workspace.yaml.j2",
    # Not in the folder itself: Dagster without DAGSTER_HOME takes one there for that of a home.
    "deployment/dagster.yaml": "dagster.yaml",
    "{name}/sources.py": "sources.py.j2",
    "{name}/tables.py": "tables.py.j2",
    "{name}/sample.py": "sample.py.j2",
    "tests/test_tables.py": "test_tables.py.j2",
}


_PROJECT_SAMPLE_DAYS = 14


@command("init shop")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def init(out: Output, directory: Path) -> Status:
    """Write a project of your own: a source, a table, a test, sample data.

    DIRECTORY is a new or an empty folder; its name is that of the project.
    """
    name = directory.resolve().name.replace("-", "_")
    if not name.isidentifier():
        raise click.BadParameter(f"{directory.name} cannot name a Python package: use letters")
    # A folder without a file is no module of anybody's.
    if keyword.iskeyword(name) or ((spec := find_spec(name)) and spec.origin):
        raise click.BadParameter(
            f"Python has {name} already, and would import that: take another name, as {name}_tables"
        )
    if directory.exists() and any(directory.iterdir()):
        raise click.BadParameter(f"{directory} is not empty; nothing was written")
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(_SCAFFOLD),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    # The sample's days end yesterday: Dagster's plots begin with the newest.
    end = datetime.now(timezone.utc).date()
    values = {
        "name": name,
        "requirement": _pip_requirement(),
        "days": _PROJECT_SAMPLE_DAYS,
        "start": end - timedelta(days=_PROJECT_SAMPLE_DAYS),
        "last": end - timedelta(days=1),
        "end": end,
    }
    for path, template in _PROJECT_FILES.items():
        file = directory / path.format(name=name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(templates.get_template(template).render(values))
    (directory / name / "__init__.py").write_text(f'"""The tables of {name}."""\n')
    out.print_text(f"{directory} is a project now. See it work: make -C {directory} demo")
    return Status.FINE


def _pip_requirement() -> str:
    """How pip finds the package again: where it was installed from, or its version."""
    package = distribution("backfill-assets")
    install_source = json.loads(package.read_text("direct_url.json") or "{}")
    if url := install_source.get("url"):
        return f"backfill-assets @ {url}"
    return f"backfill-assets=={package.version}"
