"""The commands `sample` and `cdnow`: landing data to begin with."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from backfill_assets.cli.output import CannotRunError, Output, command
from backfill_assets.settings import PREFIX, load_settings

_SAMPLE_DAYS = 28


@command("sample --days 28")
@click.option(
    "--days",
    type=click.IntRange(min=1),
    default=_SAMPLE_DAYS,
    show_default=True,
    help="So many arrival days, from BACKFILL_ASSETS_START on.",
)
@click.pass_context
def sample(ctx: click.Context, out: Output, days: int) -> None:
    """Write sample landing data, unless there is some."""
    settings = load_settings()
    if "://" in settings.landing:
        out.print_text(
            f"{settings.landing} is no local folder: no sample orders are written there."
        )
        return
    from backfill_assets_guide.sample.clearing import write_file_list
    from backfill_assets_guide.sample.landings import SOURCE, write_invented_landing

    landing = Path(settings.landing)
    if (landing / SOURCE).exists():
        if ctx.get_parameter_source("days") is ParameterSource.COMMANDLINE:
            out.print_text(
                f"{landing} has orders already: it stays as it is, whatever --days says."
            )
        return
    others = landing.is_dir() and any(landing.iterdir())
    out.print_note(f"Writing {days} days of sample orders to {landing} ...")
    write_invented_landing(
        landing,
        start=settings.start,
        days=days,
        window_days=settings.window_days,
    )
    if not others:
        write_file_list(landing)


@command("cdnow CDNOW_master.txt")
@click.argument("master", type=click.Path(path_type=Path))
def cdnow(out: Output, master: Path) -> None:
    """Turn CDNOW_master.txt into landing data.

    MASTER is the path of that file.
    """
    settings = load_settings()
    if "://" in settings.landing:
        raise CannotRunError(f"{PREFIX}LANDING={settings.landing} is no local folder")
    from backfill_assets_guide.sample.landings import write_cdnow_landing

    rows = write_cdnow_landing(master, Path(settings.landing))
    out.print_text(f"{rows} purchases written to {settings.landing}")
