"""The tags of a run: what it is asked to do, by whom and why."""

from __future__ import annotations

import os
from collections.abc import Mapping

import dagster as dg

from backfill_assets.delta.records import PERSON

#: A run with this tag set to `true` computes and writes all its days, whatever is published.
REWRITE_TAG = "backfill_assets/rewrite"
#: How a run writes: `overwrite` replaces whole days, `merge` changes their rows by the natural key
#: in the tables that allow it.
WRITE_MODE_TAG = "backfill_assets/write_mode"
#: What a person agrees to: names of replaced files as `arrival_date=YYYY-MM-DD/name`, `rows`,
#: `rejected`, with commas between them; see `assets.landed`.
ACCEPT_TAG = "backfill_assets/accept"
#: A run with this tag set to `true` closes its arrival days that have no folder.
CLOSE_TAG = "backfill_assets/close"
#: A run with this tag set to `none` calls no service: there are the answers that are kept, and no
#: others.
CALLS_TAG = "backfill_assets/calls"
#: Why a run was launched, for the record of its commits.
REASON_TAG = "backfill_assets/reason"
#: The code and the configuration that a backfill was planned with, see `format_code_pin`.
CODE_TAG = "backfill_assets/code"
#: In the environment of a run of `backfill-assets night --run`: Dagster's command takes no tags.
NIGHT_VARIABLE = "_BACKFILL_ASSETS_NIGHT"
#: Who launched such a run: no person, so it writes no day on hold and may use all of a quota.
NIGHT = "command night"


def launched_by(tags: Mapping[str, str]) -> str:
    """Who launched a run, from its tags.

    One that a person launches again has the tags of the first, unlike one that Dagster retries.
    """
    if "dagster/parent_run_id" in tags and "dagster/retry_number" not in tags:
        return PERSON
    for kind in ("schedule", "sensor"):
        if name := tags.get(f"dagster/{kind}_name"):
            return f"{kind} {name}"
    return NIGHT if NIGHT_VARIABLE in os.environ else PERSON


def format_code_pin(code_version: str, config_digest: str) -> str:
    """Code and configuration as a tag spells them."""
    return f"{code_version}/{config_digest}"


def is_merge_run(tags: Mapping[str, str]) -> bool:
    """Whether a run asks for merges."""
    mode = tags.get(WRITE_MODE_TAG, "overwrite")
    if mode not in ("overwrite", "merge"):
        raise dg.Failure(
            f"The run's tag {WRITE_MODE_TAG} is {mode!r}: it must be `overwrite` or `merge`. "
            "Nothing was written.",
            allow_retries=False,
        )
    return mode == "merge"
