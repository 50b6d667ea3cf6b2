"""The lateness page as an asset: drawn anew from all days of a source's figures.

In a module of its own, so that the code of the page is none of the table's: see `codes`.
"""

import dagster as dg

from backfill_assets.delta.logs import load_log
from backfill_assets.engine.stores import folder_filesystem, replace_file
from backfill_assets.monitoring.advice import key_figures
from backfill_assets.monitoring.dashboard import render_page
from backfill_assets.settings import Settings
from backfill_assets.tables.sources import Source


def build_lateness_page(settings: Settings, source: Source) -> dg.AssetsDefinition:
    """The page of a source, which has no days of its own."""
    name, lateness = source.page, source.lateness
    window_days = source.policy(settings).window_days - source.arrives_after

    @dg.multi_asset(
        name=f"draw_{name}",
        specs=[
            dg.AssetSpec(
                name,
                deps=[lateness.name],
                description="One page, for people, on how late lines arrive and which window "
                "would catch them; it opens in any browser, without a network.",
                group_name="lateness",
                owners=settings.asset_owners,
                kinds={"html"},
            )
        ],
        # It has no days; but Dagster's command line takes a range only if every asset has this.
        backfill_policy=dg.BackfillPolicy.single_run(),
        # Two runs at once would write the one page; dagster.yaml lets one in at a time.
        pool=name,
    )
    def draw_lateness(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        url = settings.table(lateness.name)
        log = load_log(url)
        rows = log.to_pyarrow_table(filesystem=folder_filesystem(url)) if log else None
        if log is None or not rows:
            raise dg.Failure(
                f"There is nothing to show yet, {lateness.name} has no rows at {url}: materialize "
                f"it for some days, then {name} again. Nothing was written.",
                allow_retries=False,
            )
        if missing := [column for column in lateness.columns if column not in rows.column_names]:
            raise dg.Failure(
                f"{name}: {lateness.name} at {url} was made by an earlier release and has no "
                f"{', '.join(missing)}. The page is as it was. Delete that folder, as all of it "
                f"follows from {source.raw.name} and {source.rejected.name}; then materialize "
                f"{lateness.name} for all its days, and {name}.",
                allow_retries=False,
            )
        text = render_page(rows, source, settings, log.version())
        folder = f"{settings.warehouse}/{name}"
        replace_file(folder, "index.html", text.encode())
        path = f"{folder}/index.html"
        return dg.MaterializeResult(
            metadata={
                "path": dg.MetadataValue.url(path)
                if "://" in path
                else dg.MetadataValue.path(path),
                **key_figures(rows.to_pylist(), window_days, source.arrives_after),
                f"delta version {lateness.name}": log.version(),
            }
        )

    return draw_lateness
