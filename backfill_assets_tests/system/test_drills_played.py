"""Each drill is solved by its model solution, with all points; a wrong solution has fewer."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.cli import main
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.spark.session import Engine
from backfill_assets_guide.drills import playing
from backfill_assets_guide.drills.deployment import DrillDeployment
from backfill_assets_guide.drills.observing import newest_run
from backfill_assets_guide.drills.outages import OUTAGES
from backfill_assets_guide.drills.playing import Drill
from backfill_assets_guide.drills.scoring import Score
from backfill_assets_guide.drills.strikes import EUROS, READERS
from backfill_assets_tests.helpers.docs_pages import BLOCK, PAGES, split_sections
from backfill_assets_tests.helpers.drill_player import Player

DAYS = 12
PAGE, PLAYED = "docs/guide/incident-room.md", "A drill from start to end"
TOUCHED, STILL_WRONG = "days wrongly touched", "days wrong at the end"


@pytest.fixture(scope="module")
def right(engine, spark, tmp_path_factory) -> DrillDeployment:
    """A deployment before anything breaks."""
    folder = tmp_path_factory.mktemp("right")
    return playing.prepared(engine, folder, OUTAGES["doubled"], DAYS)


@pytest.fixture
def player(engine, monkeypatch) -> Player:
    return Player(engine, monkeypatch)


@pytest.fixture
def begun(tmp_path) -> Iterator[Callable[[str], Path]]:
    """Folders for drills, which end with the test: a service ends with its drill."""
    folders = []

    def make_folder(name: str) -> Path:
        folders.append(tmp_path / name)
        return folders[-1]

    yield make_folder
    for folder in folders:
        if folder.exists():
            Drill(folder).give_up()


def rewrite_everything(drill: Drill, engine: Engine) -> None:
    """All days of the table that finance named, whatever is published."""
    tags = {REWRITE_TAG: "true"}
    assert drill.deployment.run(engine, drill.deployment.days, [READERS], tags=tags).success


def that_table_alone(drill: Drill, engine: Engine) -> None:
    """The days of the table that finance named, made of what is wrong itself."""
    drill.deployment.run(engine, drill.days, [READERS])


def nothing_is_asked(drill: Drill, engine: Engine) -> None:
    """All tables of all days once more, from what the source has sent."""
    drill.diagnose("doubled", None)
    drill.deployment.run(engine, drill.days)


def from_the_beginning(drill: Drill, engine: Engine) -> None:
    """The backfill once more from its first day, as if nothing were there."""
    tags = {REWRITE_TAG: "true"}
    days = drill.deployment.days
    assert drill.deployment.run(engine, days, ["stg_orders", READERS], tags=tags).success


def the_file_alone(drill: Drill, _engine: Engine) -> None:
    """The file is gone; its rows stay."""
    drill.diagnose("amounts", drill.days)
    (file,) = drill.folder.glob("landing/orders/*/bulk.jsonl")
    file.unlink()


def a_call_for_one_day(drill: Drill, engine: Engine) -> None:
    """The days that are missing once more, with one of the calls that they need."""
    drill.diagnose("crashed", drill.days)
    assert drill.ask_source(Window(drill.days.start, drill.days.start + DAY)).endswith(": 1.")
    drill.deployment.run(engine, drill.days, [EUROS])


def do_nothing(drill: Drill, _engine: Engine) -> None:
    """It is looked at, and ended."""
    drill.next_hint()


#: What a wrong solution does, by drill, and what it loses beside the diagnosis and the report.
WRONG: dict[str, tuple[Callable[[Drill, Engine], None], str]] = {
    "doubled": (rewrite_everything, TOUCHED),
    "purged": (that_table_alone, STILL_WRONG),
    "skewed": (the_file_alone, STILL_WRONG),
    "amounts": (nothing_is_asked, STILL_WRONG),
    "crashed": (from_the_beginning, STILL_WRONG),
    "timezone": (do_nothing, STILL_WRONG),
    "quota": (a_call_for_one_day, STILL_WRONG),
}


def missed_points(scored: Score) -> set[str]:
    """What did not give all of its points, of what gives some."""
    return {part.name for part in scored.parts if part.points < part.most}


def check_wrong_solution(name: str, folder: Path, engine: Engine) -> None:
    """A wrong solution scores worse, and the command tells it."""
    other = Drill(folder)
    do, less = WRONG[name]
    do(other, engine)
    scored = other.end()
    assert scored.total < 60
    assert {"cause", "days named", "report", less} <= missed_points(scored), scored
    assert scored.repaired is (less == TOUCHED), scored
    assert main(["drill", "end", str(other.folder)]) == int(not scored.repaired)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["purged", "skewed", "quota", "amounts", "crashed", "timezone"],
)
def test_a_drill_is_solved_by_its_solution(name, right, engine, player, begun, tmp_path, capsys):
    if name in ("timezone", "quota"):  # of days, and of tables, of its own
        right = playing.prepared(engine, tmp_path / "right", OUTAGES[name], DAYS)
    drill = playing.begin_drill(engine, right, begun("solved"), name, random.Random(3))
    assert OUTAGES[name].cause not in drill.symptom
    shutil.copytree(drill.folder, begun("other"))
    assert player.solve(drill) == 0, capsys.readouterr()
    solved = drill.end()
    assert (solved.total, solved.repaired) == (100, True), solved
    # All tables are what they were, or would have been.
    assert drill.deployment.published_contents() == drill.right_contents
    check_wrong_solution(name, tmp_path / "other", engine)


def transcript_lines(text: str) -> list[str]:
    """The lines of a transcript, without what is another each time."""
    for pattern, same in (
        (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?", "TIME"),
        (r"\b\d:\d\d:\d\d\b", "TOOK"),
        (r"As of +\S+", "As of TODAY"),
        (r"\b[0-9a-f]{8}\b", "ID"),
        (r"found after \d+:\d\d", "found after TIME"),
        (r"(wrong answers to readers) +[\d,]+", r"\1 COUNT"),
        (r" +", " "),
    ):
        text = re.sub(pattern, same, text)
    return [line.strip() for line in text.splitlines()]


def check_transcript(shown: list[str], printed: list[str]) -> None:
    """All that was printed is shown, in order; `...` stands for lines that are left out.

    Raises:
        AssertionError: a line was not printed there.
    """
    at, left_out = 0, False
    for line in shown:
        if line == "...":
            left_out = True
            continue
        assert line in printed[at:], line
        place = printed.index(line, at)
        assert left_out or place == at, (line, printed[at])
        at, left_out = place + 1, False
    assert left_out or at == len(printed)


def test_what_a_transcript_leaves_out_is_marked() -> None:
    printed = ["$ a", "1", "2", "$ b", "3"]
    for shown in (printed, ["$ a", "...", "$ b", "3"], ["...", "2", "$ b", "..."]):
        check_transcript(shown, printed)
    for shown in (["$ a", "2", "$ b", "3"], ["$ a", "1", "2", "$ b"], ["$ b", "...", "1", "..."]):
        with pytest.raises(AssertionError):
            check_transcript(shown, printed)


@pytest.mark.slow
def test_the_page_shows_a_drill_that_was_played(
    right, engine, player, tmp_path, monkeypatch, capsys
):
    """What it prints is what is printed, and what is typed is the solution."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(playing, "prepared", lambda *_: right)
    (section,) = (s for s in split_sections(PAGES[PAGE]) if s.title == PLAYED)
    page = "".join(text for _, text in BLOCK.findall(section.body))
    printed = ""
    for command in re.findall(r"^\$ (.*)$", page, re.MULTILINE):
        if printed:  # it has begun
            newest = newest_run(DrillDeployment(tmp_path / "incident"))
            command = re.sub(r"(?<=runbook )\w+|(?<=post-mortem-)\w+", newest, command)
        assert player.type(command) in (0, 1)
        printed += f"$ {command}\n{capsys.readouterr().out}"
        if " start " in command:
            shutil.copytree("incident", "other")
    check_transcript(transcript_lines(page), transcript_lines(printed))
    drill = Drill(tmp_path / "incident")
    solution = "\n".join(drill.solution()).replace(str(drill.folder), "incident")
    typed = "\n".join(re.findall(r"^\$ (.*)$", printed, re.MULTILINE))
    assert solution in typed
    assert drill.end().total == 100
    check_wrong_solution("doubled", tmp_path / "other", engine)


def test_all_outages_are_played():
    assert WRONG.keys() == OUTAGES.keys()
