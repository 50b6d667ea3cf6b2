"""The days and tables that a run takes, and what a command that asks for others is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
import dagster as dg
import pytest

from backfill_assets.assets.backfill_jobs import backfill_policy
from backfill_assets.definitions import _report_long_range, build_defs
from backfill_assets.settings import load_settings

SELECT = "tag:backfill_assets/grain"


@contextmanager
def within_command(command: str, **options: str | None) -> Iterator[None]:
    """Within a command of Dagster's with these options."""
    context = click.Context(click.Command(command), info_name=command)
    context.params.update(options)
    with context:
        yield


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("materialize", {"partition": "2024-01-01", "partition_range": None}),
        ("grpc", {"port": "4000"}),
        ("show", {"partition_range": "2024-01-01...2024-03-31"}),
    ],
)
def test_a_run_takes_so_many_days(command, given, capsys):
    with within_command(command, **given):
        assert backfill_policy(5) == dg.BackfillPolicy.multi_run(5)
        _report_long_range(5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["materialize", "launch"])
@pytest.mark.parametrize(("last", "warned"), [("2024-01-05", False), ("2024-01-06", True)])
def test_a_range_of_a_command_is_one_run(command, last, warned, capsys):
    with within_command(command, partition_range=f"2024-01-01...{last}"):
        assert backfill_policy(5) == dg.BackfillPolicy.single_run()
        _report_long_range(5)
    output = capsys.readouterr().err
    assert ("all 6 days of 2024-01-01...2024-01-06, more than the 5 of" in output) is warned
    assert ("`backfill-assets backfill 2024-01-01...2024-01-06`" in output) is warned


def test_what_is_no_range_is_left_to_dagster(capsys):
    with within_command("materialize", partition_range="2024-01-06"):
        _report_long_range(5)
    assert capsys.readouterr().err == ""


def test_outside_of_a_command():
    assert backfill_policy(5) == dg.BackfillPolicy.multi_run(5)


def test_a_command_is_given_tables_of_one_grain():
    settings = load_settings(tables="backfill_assets_guide.examples.growth:TABLES")
    days = "2024-01-01...2024-01-31"
    for command, option in (("materialize", "select"), ("launch", "assets")):
        options = {option: "*", "partition_range": days}
        with within_command(command, **options), pytest.raises(click.UsageError) as refused:
            build_defs(settings)
    assert str(refused.value) == (
        "'*' has tables with partitions of 3 kinds, and Dagster's runs have one. All of them: "
        f"`backfill-assets materialize {days}`. Or select them by kind, one command after the "
        f"other: {SELECT}=daily, {SELECT}=weekly_sunday, {SELECT}=monthly. Nothing was run."
    )
    with within_command("materialize", select=f"{SELECT}=daily", partition=days[:10]):
        repository = build_defs(settings).get_repository_def()
    for name in ("daily", "weekly_sunday", "monthly"):
        keys = dg.AssetSelection.from_string(f"{SELECT}={name}").resolve(repository.asset_graph)
        assert keys == repository.get_job(name).asset_layer.selected_asset_keys
    with within_command("materialize", select="nothing,of,ours"):
        build_defs(settings)
