"""The pages of a backfill, a post-mortem and a runbook: `runbook`."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import click

from backfill_assets.cli.outcomes import refuse_unknown
from backfill_assets.cli.output import Output, command
from backfill_assets.cli.parameters import open_instance
from backfill_assets.settings import load_settings


@command("runbook aecrkdop", "runbook aecrkdop --out incidents")
@click.argument("backfill", metavar="BACKFILL")
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write both pages into this folder; what a person has written there stays.",
)
def runbook(out: Output, backfill: str, folder: Path | None) -> None:
    """A post-mortem and a runbook of a backfill, in Markdown.

    From its plan, the tables' history and the commands that were given. BACKFILL is the id of a
    backfill or of a stage of it, or the first 8 characters of a run's. Nothing is computed.
    """
    from backfill_assets.backfills.chronicles import read_history
    from backfill_assets.backfills.postmortems import render_postmortem
    from backfill_assets.backfills.runbooks import render_runbook
    from backfill_assets.delta.reading import read_ledgers

    settings = load_settings()
    with open_instance() as dagster:
        refuse_unknown(settings, dagster, backfill)
        backfill_history = read_history(dagster, read_ledgers(settings), backfill)
    pages = {
        "post-mortem": render_postmortem(backfill_history),
        "runbook": render_runbook(backfill_history),
    }
    if folder is None:
        click.echo("\n".join(pages.values()))
        return
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^-\w]", "_", backfill)
    for kind, text in pages.items():
        path = folder / f"{kind}-{name}.md"
        if path.exists() and not _is_unedited(path):
            out.print_text(f"{path} stays as it is: somebody has written in it")
            continue
        path.write_text(f"{_page_mark(text)}\n{text}", encoding="utf-8")
        out.print_text(f"{path}")


def _is_unedited(path: Path) -> bool:
    """Whether a page is as this command wrote it, so that nothing of a person's is in it."""
    mark, _, text = path.read_text(encoding="utf-8", errors="replace").partition("\n")
    return mark == _page_mark(text)


def _page_mark(text: str) -> str:
    """The first line of a page, which no reader of Markdown shows."""
    return f"<!-- backfill-assets runbook {sha256(text.encode()).hexdigest()[:16]} -->"
