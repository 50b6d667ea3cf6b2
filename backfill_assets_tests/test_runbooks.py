"""The pages of a backfill are made from what is on record of it."""

from __future__ import annotations

import re
import time

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from backfill_assets.backfills import state_store
from backfill_assets.backfills.history import PLACEHOLDER_PREFIX, SECTIONS
from backfill_assets.backfills.stages import RECONCILES_TAG
from backfill_assets.cli import main
from backfill_assets_guide.drills.observing import unfilled_sections
from backfill_assets_tests.helpers.command_line import (
    DAYS,
    JAN,
    publish_facts,
    save_plan,
    usage_error,
)


@pytest.fixture
def instance(monkeypatch, tmp_path):
    for name in ("landing/orders", "warehouse", "home"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home/dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("BACKFILL_ASSETS_LANDING", str(tmp_path / "landing"))
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", str(tmp_path / "warehouse"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    with dg.DagsterInstance.get() as test_instance:
        yield test_instance


def complete_plan(instance, id_: str, reason: str):
    """A plan that was launched and is complete, as far as its own record says."""
    state = save_plan(instance, id_)
    parameters = state.plan.parameters.model_copy(update={"reason": reason, "pilot_days": 1})
    keys = {"fact_daily_orders": ("customer_id",)}
    state.plan = state.plan.model_copy(update={"parameters": parameters, "keys": keys})
    state.attempt, state.stage, state.began, state.took = 1, 1, time.time(), 61.0
    state.ended, state.complete = "complete and reconciled", True
    state_store.save(instance, state)
    return state


def create_reconcile_run(instance, backfill: str) -> dg.DagsterRun:
    config = {"ops": {"compare_days": {"config": {"backfill": backfill}}}}
    success = dg.DagsterRunStatus.SUCCESS
    return create_run_for_test(instance, job_name="reconcile", run_config=config, status=success)


def test_the_pages_have_what_is_on_record(instance, tmp_path, capsys):
    complete_plan(instance, "aecrkdop", "bad amounts")
    facts = dict.fromkeys(JAN[:3], "ok")
    publish_facts(tmp_path, facts, backfill_id="before-rest")
    publish_facts(tmp_path, facts, backfill_id="aecrkdop-rest", reason="bad amounts")
    create_reconcile_run(instance, "aecrkdop")
    stage_run = create_reconcile_run(instance, "aecrkdop-rest")
    instance.add_run_tags(stage_run.run_id, {RECONCILES_TAG: "aecrkdop-rest"})  # of the sensor
    assert main(["runbook", "aecrkdop"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("# Post-mortem of aecrkdop\n\nReason on record: bad amounts\n")
    post_mortem, _, runbook = output.partition("# Runbook, after aecrkdop\n")
    (typed,) = re.findall(r"```text\n(.*?)```", post_mortem, re.S)
    assert typed.splitlines() == [
        f"backfill-assets plan {DAYS} --select fact_daily_orders --pilot-days 1 "
        "--reason 'bad amounts'",
        "backfill-assets backfill aecrkdop",
        "backfill-assets reconcile aecrkdop",
    ]
    assert f"| fact_daily_orders | {DAYS} | 0 | 1 | none |  |" in post_mortem
    assert "| reconciliation of aecrkdop |  | passed |" in post_mortem
    assert "| reconciliation of aecrkdop-rest |  | passed |" in post_mortem
    assert "| launch | 0:01:01 | complete and reconciled |" in post_mortem
    assert "- The backfill: complete and reconciled." in post_mortem
    assert "- fact_daily_orders: 3 computed: 3 written." in post_mortem
    assert unfilled_sections(post_mortem) == [*SECTIONS]
    assert "\n\nKeys within a day: fact_daily_orders by customer_id.\n\n" in runbook
    blocks = re.findall(r"```text\n(.*?)\n```", runbook, re.S)
    assert blocks == [
        "backfill-assets plan FIRST...LAST --select fact_daily_orders --pilot-days 1 --reason WHY",
        "backfill-assets backfill ID",
        "backfill-assets reconcile ID",
        "backfill-assets verify FIRST...LAST --select fact_daily_orders",
        "backfill-assets undo ID --reason WHY",
    ]
    assert "2024" not in "".join(blocks)


def test_foreign_text_makes_no_markup(instance, tmp_path, capsys):
    complete_plan(instance, "aecrkdop", "a | b\n```\n# no <img src=x> `x` \x1b[31m")
    assert main(["runbook", "aecrkdop"]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    prose = re.sub(r"^```text\n.*?^```$", "", output, flags=re.MULTILINE | re.DOTALL)
    assert "<img" in prose
    assert "<img" not in prose.replace("\\<img", "")
    assert output.count("\n```") == 2 * output.count("```text\n")
    assert "\n# no" not in output
    rows = [line for line in output.splitlines() if line.startswith("| reason |")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [3]


def test_the_pages_of_a_plan_that_nobody_launched(instance, capsys):
    save_plan(instance, "aecrkdop")
    assert main(["runbook", "aecrkdop"]) == 0
    output = capsys.readouterr().out
    assert "No day of any table was written." in output
    assert "- fact_daily_orders: 3 computed: 3 left alone." in output
    assert "there is no backfill or run nothing" in usage_error(capsys, "runbook", "nothing")


def test_what_a_person_has_written_stays(instance, tmp_path, capsys):
    save_plan(instance, "aecrkdop")
    folder = tmp_path / "pages"
    paths = [folder / f"{kind}-aecrkdop.md" for kind in ("post-mortem", "runbook")]
    for _ in range(2):
        assert main(["runbook", "aecrkdop", "--out", str(folder)]) == 0
        assert capsys.readouterr().out.splitlines() == [*map(str, paths)]
    before = paths[0].read_text()
    assert unfilled_sections(before) == [*SECTIONS]
    complete_plan(instance, "aecrkdop", "bad amounts")
    assert main(["runbook", "aecrkdop", "--out", str(folder)]) == 0
    text = paths[0].read_text()
    assert text != before, "a page in which nobody has written is made anew"
    filled = text.replace(
        f"{PLACEHOLDER_PREFIX}{SECTIONS['Cause']}", "An old job was left running."
    )
    assert unfilled_sections(filled) == ["Impact", "Follow-ups"]
    beside = text.replace("## Plan", "Two jobs ran at once.\n\n## Plan")
    for post_mortem, runbook in ((filled, b"When: at night\n"), (beside, b"Caf\xe9\n")):
        paths[0].write_text(post_mortem)
        paths[1].write_bytes(runbook)
        written = [path.read_bytes() for path in paths]
        capsys.readouterr()
        assert main(["runbook", "aecrkdop", "--out", str(folder)]) == 0
        assert capsys.readouterr().out.splitlines() == [
            f"{path} stays as it is: somebody has written in it" for path in paths
        ]
        assert [path.read_bytes() for path in paths] == written


def test_a_runbook_of_a_run_has_what_made_its_days(instance, tmp_path, capsys):
    first, last = DAYS.split("...")
    range_ = "dagster/asset_partition_range_"
    run = create_run_for_test(
        instance,
        tags={f"{range_}start": first, f"{range_}end": last},
        status=dg.DagsterRunStatus.SUCCESS,
        asset_selection=frozenset({dg.AssetKey("fact_daily_orders")}),
    )
    publish_facts(tmp_path, dict.fromkeys(JAN[:3], "ok"), run_id=run.run_id)
    name = run.run_id[:8]
    create_reconcile_run(instance, name)
    run_config = {
        "ops": {"put_back": {"config": {"backfill": name, "days": "", "reason": "wrong"}}}
    }
    for status in (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELED):
        create_run_for_test(instance, job_name="undo", run_config=run_config, status=status)
    assert main(["runbook", name]) == 0
    post_mortem, _, runbook = capsys.readouterr().out.partition("# Runbook, after")
    blocks = re.findall(r"```text\n(.*?)\n```", runbook, re.S)
    assert [block.partition(" --")[0] for block in blocks] == [
        "dagster asset materialize -m backfill_assets.definitions",
        "backfill-assets reconcile ID",
        "backfill-assets verify FIRST...LAST",
        "backfill-assets undo ID",
    ]
    assert f"backfill-assets undo {name} --reason wrong\n" in post_mortem
    assert f"backfill-assets reconcile {name}\n" in post_mortem
    # Neither was refused: one goes on, and somebody ended the other.
    outcomes = re.findall(r"\| undo by run \w+ \|  \| (.*) \|", post_mortem)
    assert sorted(outcomes) == ["canceled", "started"]


@pytest.mark.parametrize(
    ("text", "lacking"),
    [
        ("", ["Impact", "Cause", "Follow-ups"]),
        (
            "## Impact\n\n## Cause\nA job did it twice.\n## Follow-ups\nnone",
            ["Impact", "Follow-ups"],
        ),
        (
            "## Impact\nNobody read it meanwhile.\n## Cause\nA job did it twice.\n"
            "## Other\n\n## Follow-ups\nThe job is switched off.\n",
            [],
        ),
    ],
)
def test_a_section_is_filled_in_by_a_sentence(text, lacking):
    assert unfilled_sections(text) == lacking
