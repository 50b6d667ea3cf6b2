"""Labs, small experiments on tables of their own: `lab`."""

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
    from backfill_assets.labs import running

    if name == "list":
        out.facts((of, running.about(of)) for of in running.LABS)
        return Status.FINE
    if name not in (*running.LABS, "all"):
        raise CannotRunError(f"no lab is named {name}; there are {', '.join(running.LABS)}")
    from backfill_assets.engine.spark import Engine

    with tempfile.TemporaryDirectory(prefix="labs-") as folder:
        places = {of: str(Path(folder) / of) for of in ("landing", "warehouse")}
        engine = Engine.of(load_settings(**places))
        wrong = []
        for of in running.LABS if name == "all" else [name]:
            if name == "all":
                out.say(f"# {of}\n")
            printed = running.run(of, engine)
            out.say(printed)
            if said := running.differences(of, printed):
                wrong.append(f"{of} does not come out as its page says:\n{said}")
    if wrong:
        raise Finding("\n".join(wrong))
    return Status.FINE
