"""The command `lab`: small experiments, whose result is on their pages."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from backfill_assets.cli.output import CannotRunError, Finding, Output, Status, command
from backfill_assets.settings import load_settings


@command("lab list", "lab append", "lab all")
@click.argument("name")
def lab(out: Output, name: str) -> Status:
    """Show what goes wrong otherwise, on tables of its own.

    NAME is that of a lab, `all`, or `list` for their names. A lab works in a scratch folder, which
    is removed; it looks at no table of the warehouse. It ends with 1 if something comes out
    otherwise than the guide says.
    """
    from backfill_assets_guide.labs import running

    if name == "list":
        out.print_facts((lab_name, running.describe_lab(lab_name)) for lab_name in running.LABS)
        return Status.FINE
    if name not in (*running.LABS, "all"):
        raise CannotRunError(f"no lab is named {name}; there are {', '.join(running.LABS)}")
    from backfill_assets.spark.session import Engine

    with tempfile.TemporaryDirectory(prefix="labs-") as folder:
        locations = {setting: str(Path(folder) / setting) for setting in ("landing", "warehouse")}
        engine = Engine.from_settings(load_settings(**locations))
        failures = []
        for lab_name in running.LABS if name == "all" else [name]:
            if name == "all":
                out.print_text(f"# {lab_name}\n")
            output = running.run_lab(lab_name, engine)
            out.print_text(output)
            if differences := running.page_diff(lab_name, output):
                failures.append(f"{lab_name} does not come out as its page says:\n{differences}")
    if failures:
        raise Finding("\n".join(failures))
    return Status.FINE
