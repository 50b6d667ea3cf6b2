"""Raw layer: the log of a source and its rejected lines, one step, as both come of one reading."""

from collections.abc import Iterator
from functools import partial

import dagster as dg

from backfill_assets.assets.landed import RawLoader
from backfill_assets.assets.publishing import delta_assets, yield_outputs
from backfill_assets.engine.caching import caching
from backfill_assets.engine.spark import Engine
from backfill_assets.publish.candidates import Candidate
from backfill_assets.publish.run_tags import ACCEPT_TAG, CLOSE_TAG
from backfill_assets.settings import Settings
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.sources import Source


def build_raw_assets(settings: Settings, code: Code, source: Source) -> dg.AssetsDefinition:
    """The log of a source and its rejected lines: one step, as both come of one reading."""
    tables = [source.raw, source.rejected]

    @delta_assets(
        settings,
        name=f"read_{source.name}",
        tables=tables,
        group="raw",
        code=code,
    )
    def read_source(context: dg.AssetExecutionContext, engine: Engine) -> Iterator:
        tags = context.run.tags
        accepted = {name.strip() for name in tags.get(ACCEPT_TAG, "").split(",")} - {""}
        close = tags.get(CLOSE_TAG, "").lower() == "true"
        with caching() as cache:
            work = RawLoader(settings, source, engine, cache, frozenset(accepted), close)
            yield from yield_outputs(
                context, [Candidate(table, partial(work.plan_days, table)) for table in tables]
            )

    return read_source
