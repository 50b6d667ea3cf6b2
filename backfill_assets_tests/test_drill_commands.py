"""The command `drill`: what it says, what it refuses, and what it keeps; nothing is computed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from decimal import Decimal
from pathlib import Path

import pytest

from backfill_assets.calendar.partitions import Window
from backfill_assets.cli import main
from backfill_assets.orders.tables import TABLES
from backfill_assets.settings import PREFIX
from backfill_assets_guide.drills import journal, playing
from backfill_assets_guide.drills.breaking import arrival_folder, send_orders
from backfill_assets_guide.drills.deployment import DrillDeployment, other_variables
from backfill_assets_guide.drills.outages import OUTAGES
from backfill_assets_guide.drills.places import OWN
from backfill_assets_guide.drills.playing import Drill
from backfill_assets_guide.drills.strikes import READERS, RIGHT, SHOP_FILE
from backfill_assets_guide.drills.strikes import WRONG as WRONG_AMOUNT
from backfill_assets_tests.helpers.command_line import refusal_message, usage_error

DAYS = Window.parse("2024-01-02...2024-01-03")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Of a drill that has begun, in which nothing has been published."""
    monkeypatch.chdir(tmp_path)
    for name in other_variables():  # `start` forgets them, and they are put back
        monkeypatch.delenv(name, raising=False)
    deployment = DrillDeployment.create(Path("incident"), 5, 2)
    send_orders(deployment.folder / "landing", deployment.days, SHOP_FILE, RIGHT)
    send_orders(deployment.folder / "landing", DAYS, SHOP_FILE, WRONG_AMOUNT)
    deployment.write_environment()
    (deployment.folder / OWN / "right.json").write_text(
        json.dumps({READERS: {"2024-01-02": "digest"}})
    )
    journal.record_event(
        deployment.folder,
        journal.INCIDENT,
        outage="amounts",
        days=str(DAYS),
        symptom="Finance: too much.",
        run="",
        versions=dict.fromkeys(TABLES),
    )
    return Path("incident")


def file_amounts(folder: Path) -> list[Decimal]:
    """What the shop's file has on the days of the calendar."""
    files = [
        arrival_folder(folder / "landing", day) / SHOP_FILE for day in DrillDeployment(folder).days
    ]
    return [Decimal(json.loads(file.read_text())["amount"]) for file in files]


def test_its_file_is_for_a_shell(folder):
    other = {f"{PREFIX}WEBHOOK": "https://chat.test", "SPARK_REMOTE": "sc://production:15002"}
    retained = {f"{PREFIX}JARS": "/opt/jars"}
    output = subprocess.run(
        ["sh", "-c", f". {folder}/env.sh; env"],
        env={**os.environ, **other, **retained}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert not [name for name in other if f"{name}=" in output]
    assert f"{PREFIX}JARS=/opt/jars\n" in output
    for name, value in DrillDeployment(folder).variables.items():
        assert f"{name}={value}\n" in output
    assert f"{PREFIX}END=2024-01-06\n" in output


def test_a_start_forgets_what_the_shell_has_of_another_deployment(folder, monkeypatch):
    """What is right is made under the settings that the player works with."""
    environment = {}

    def start(*_) -> Drill:
        environment.update(os.environ)
        return Drill(folder)

    monkeypatch.setattr(playing, "start_drill", start)
    monkeypatch.setenv(f"{PREFIX}LATE_LINES", "drop")
    monkeypatch.setenv("SPARK_REMOTE", "sc://production:15002")
    monkeypatch.setenv(f"{PREFIX}SPARK_CONF", "{}")
    assert main(["drill", "start", "new"]) == 0
    assert not {f"{PREFIX}LATE_LINES", "SPARK_REMOTE"} & environment.keys()
    assert f"{PREFIX}SPARK_CONF" in environment


def test_hints_get_clearer_and_are_counted(folder, capsys):
    hints = []
    for _ in range(4):
        assert main(["drill", "hint", str(folder)]) == 0
        hints.append(capsys.readouterr().out.strip())
    assert hints == [*OUTAGES["amounts"].hints, OUTAGES["amounts"].hints[-1]]
    assert main(["drill", "end", str(folder)]) == 1
    assert re.search(r"^hints +3 +-15 *$", capsys.readouterr().out, re.M)


def test_a_diagnosis(folder, capsys):
    assert "there is no cause ghosts; there are doubled" in usage_error(
        capsys, "drill", "found", str(folder), "ghosts"
    ).replace("'", "")
    assert main(["drill", "found", str(folder), "doubled"]) == 1
    assert capsys.readouterr().out == "That is not the cause.\n"
    assert main(["drill", "found", str(folder), "amounts"]) == 0
    assert main(["drill", "found", str(folder), "amounts", str(DAYS)]) == 0
    assert main(["drill", "end", str(folder)]) == 1
    output = capsys.readouterr().out
    assert re.search(r"^cause +found after 0:0\d minutes +15 of 15", output, re.M)
    assert re.search(r"^days named +yes +10 of 10", output, re.M)
    assert re.search(r"^wrong diagnoses +1 +-5", output, re.M)
    assert re.search(r"^days wrong at the end +1 of 1 +0 of 30", output, re.M)
    assert re.search(r"^report +0 of 3 sections +0 of 10", output, re.M)
    assert main(["drill", "causes"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*OUTAGES]


def test_days_cannot_be_guessed(folder, capsys):
    for days in ("2024-01-02", str(DAYS)):
        assert main(["drill", "found", str(folder), "amounts", days]) == 0
    assert main(["drill", "end", str(folder)]) == 1
    assert re.search(r"^days named +no +0 of 10", capsys.readouterr().out, re.M)


def test_the_source_sends_what_was_wrong_again(folder, capsys):
    assert file_amounts(folder) == [RIGHT, WRONG_AMOUNT, WRONG_AMOUNT, RIGHT, RIGHT]
    assert main(["drill", "ask", str(folder), "2024-01-04...2024-01-05"]) == 0
    assert "It sends nothing." in capsys.readouterr().out
    assert main(["drill", "ask", str(folder), "2024-01-01...2024-01-02"]) == 0
    assert capsys.readouterr().out == "The source has sent 2024-01-02 again.\n"
    assert file_amounts(folder) == [RIGHT, RIGHT, WRONG_AMOUNT, RIGHT, RIGHT]


def test_an_end_is_an_end(folder, capsys):
    assert main(["drill", "solution", str(folder)]) == 3
    assert "the drill has not ended" in refusal_message(capsys, "drill solution")
    assert main(["drill", "end", str(folder)]) == 1
    first = capsys.readouterr().out
    (folder / "post-mortem-x.md").write_text("## Cause\n\nIt was an old job again.\n")
    assert main(["drill", "end", str(folder)]) == 1
    assert capsys.readouterr().out == first
    for command in (["hint"], ["found", "amounts"], ["ask", "2024-01-02"]):
        name, *words = command
        assert main(["drill", name, str(folder), *words]) == 3
        assert "has ended. Start another in a new folder" in refusal_message(
            capsys, f"drill {name}"
        )
    assert main(["drill", "solution", str(folder)]) == 0
    first_line, *commands = capsys.readouterr().out.splitlines()
    assert first_line == f"amounts: {OUTAGES['amounts'].cause}, {DAYS}"
    assert f"$ backfill-assets drill ask {folder.resolve()} {DAYS}" in commands
    assert not any("{" in line for line in commands)


def test_commands_of_a_solution_are_for_a_shell(tmp_path, folder):
    moved = tmp_path / "my drill; ls"
    folder.rename(moved)
    filled = playing.Drill(moved).fill_in("rm {folder}/landing/bulk.jsonl")
    assert shlex.split(filled) == ["rm", f"{moved}/landing/bulk.jsonl"]


def test_who_gives_up_has_no_score(folder, capsys):
    assert main(["drill", "solution", str(folder), "--give-up"]) == 0
    assert capsys.readouterr().out.startswith("amounts: ")
    assert main(["drill", "end", str(folder)]) == 3
    assert "has ended" in refusal_message(capsys, "drill end")


def test_a_report_counts_by_its_sections(folder, capsys):
    (folder / "post-mortem-a.md").write_text("## Cause\n\nIt was an old job again.\n")
    (folder / "post-mortem-b.md").write_bytes(b"\xff\n## Cause\n")
    assert main(["drill", "end", str(folder)]) == 1
    assert re.search(r"^report +1 of 3 sections +3 of 10", capsys.readouterr().out, re.M)


def test_what_is_no_drill(folder, capsys, monkeypatch):
    assert main(["drill", "end", "nowhere"]) == 3
    assert "nowhere is no folder of a drill" in refusal_message(capsys, "drill end")
    assert main(["drill", "start", str(folder)]) == 3
    assert "is not empty; nothing was written" in refusal_message(capsys, "drill start")
    assert main(["drill", "start", "new", "ghosts"]) == 3
    assert "no outage is named ghosts; there are doubled" in refusal_message(capsys, "drill start")
    assert not Path("new").exists()
    (folder / OWN / "journal.jsonl").unlink()
    assert main(["drill", "hint", str(folder)]) == 3
    assert "was broken off: start another" in refusal_message(capsys, "drill hint")


def test_each_outage_has_what_it_needs():
    for name, outage in OUTAGES.items():
        assert len({*outage.hints}) == 3, name
        assert any(line.startswith("backfill-assets drill found") for line in outage.solution)
        assert outage.solution[-1].startswith("backfill-assets drill end")
        # What a user says is not the cause, nor is what the first hint says.
        assert outage.cause not in outage.hints[0]
    assert [*map(len, playing.list_causes())] == [2] * len(OUTAGES)
