"""Where engines put what does not fit into memory: each its own folder, and nothing is left."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backfill_assets.engine.scratch import ScratchDir
from backfill_assets_tests.places import PROJECT

OPTIONS = "spark.driver.extraJavaOptions"


def folders(home: Path) -> set[Path]:
    return {*(home / "scratch").iterdir()}


def another(home: Path, then: str) -> subprocess.Popen[str]:
    """A process with a scratch folder of its own, which it has filled and told of."""
    code = f"""
from pathlib import Path
from backfill_assets.engine.scratch import Scratch
folder = Scratch(Path({str(home)!r})).folder
Path(folder, "blockmgr-1").mkdir()
Path(folder, "blockmgr-1", "block").write_text("rows")
print(folder, flush=True)
{then}
"""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
    )


def test_what_a_dead_engine_left_is_removed_and_a_live_ones_is_not(tmp_path):
    lives, dies = another(tmp_path, "input()"), another(tmp_path, "input()")
    used, left = (Path(one.stdout.readline().strip()) for one in (lives, dies))
    dies.kill()
    dies.wait()
    assert folders(tmp_path) == {used, left}
    own = ScratchDir(tmp_path)
    assert folders(tmp_path) == {used, own.folder}
    assert (used / "blockmgr-1" / "block").read_text() == "rows"
    lives.communicate("\n")
    assert folders(tmp_path) == {used, own.folder}
    own.recreate()
    assert folders(tmp_path) == {own.folder}


def test_many_at_once_do_not_remove_each_others(tmp_path):
    others = [another(tmp_path, "input()") for _ in range(4)]
    used = {Path(one.stdout.readline().strip()) for one in others}
    assert folders(tmp_path) == used
    assert all((folder / "blockmgr-1" / "block").exists() for folder in used)
    for one in others:
        one.communicate("\n")


def test_where_nothing_can_be_locked_nothing_is_taken_for_left(monkeypatch, tmp_path):
    """As on some network file systems."""

    def refuses(*_: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("backfill_assets.engine.scratch.fcntl.flock", refuses)
    first, second = ScratchDir(tmp_path), ScratchDir(tmp_path)
    assert folders(tmp_path) == {first.folder, second.folder}


def test_nobody_else_can_look_into_it(tmp_path):
    assert ScratchDir(tmp_path).folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("cleared", ["blockmgr-1/0a", "blockmgr-1", "."])
def test_a_cleared_folder_is_noticed_and_made_again(tmp_path, cleared):
    own = ScratchDir(tmp_path)
    assert own.is_complete()  # before Spark has made anything
    inner = own.folder / "blockmgr-1" / "0a"
    inner.mkdir(parents=True)
    assert own.is_complete()
    (own.folder / "spark-temporary").mkdir()
    assert own.is_complete()
    (own.folder / "spark-temporary").rmdir()
    assert own.is_complete()
    shutil.rmtree(own.folder / cleared)
    assert not own.is_complete()
    own.recreate()
    assert own.is_complete()
    assert list(own.folder.iterdir()) == []
    ScratchDir(tmp_path)  # it has its lock again
    assert own.folder.exists()


def test_what_is_configured(tmp_path):
    own = ScratchDir(tmp_path)
    temporary = f"-Djava.io.tmpdir={own.folder}"
    assert own.with_local_dir({}) == {"spark.local.dir": str(own.folder), OPTIONS: temporary}
    assert own.with_local_dir({OPTIONS: "-Xss4m"})[OPTIONS] == f"-Xss4m {temporary}"
    users = {"spark.local.dir": "/fast", OPTIONS: "-Djava.io.tmpdir=/other"}
    assert own.with_local_dir(users) == users


def test_a_folder_that_jvm_options_cannot_name(tmp_path):
    own = ScratchDir(tmp_path / "a home")
    assert own.with_local_dir({}) == {"spark.local.dir": str(own.folder)}
