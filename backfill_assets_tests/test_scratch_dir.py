"""Where engines put what does not fit into memory: each its own folder, and nothing is left."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backfill_assets.spark.jvm_launch import ScratchDir
from backfill_assets_tests.helpers.paths import PROJECT

OPTIONS = "spark.driver.extraJavaOptions"


def list_folders(home: Path) -> set[Path]:
    return {*(home / "scratch").iterdir()}


def start_process(home: Path, then: str) -> subprocess.Popen[str]:
    """A process with a scratch folder of its own, which it has filled and told of."""
    code = f"""
from pathlib import Path
from backfill_assets.spark.jvm_launch import ScratchDir
folder = ScratchDir(Path({str(home)!r})).folder
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
    lives, dies = start_process(tmp_path, "input()"), start_process(tmp_path, "input()")
    used, abandoned = (Path(process.stdout.readline().strip()) for process in (lives, dies))
    dies.kill()
    dies.wait()
    assert list_folders(tmp_path) == {used, abandoned}
    scratch = ScratchDir(tmp_path)
    assert list_folders(tmp_path) == {used, scratch.folder}
    assert (used / "blockmgr-1" / "block").read_text() == "rows"
    lives.communicate("\n")
    assert list_folders(tmp_path) == {used, scratch.folder}
    scratch.recreate()
    assert list_folders(tmp_path) == {scratch.folder}


def test_many_at_once_do_not_remove_each_others(tmp_path):
    processes = [start_process(tmp_path, "input()") for _ in range(4)]
    used = {Path(process.stdout.readline().strip()) for process in processes}
    assert list_folders(tmp_path) == used
    assert all((folder / "blockmgr-1" / "block").exists() for folder in used)
    for process in processes:
        process.communicate("\n")


def test_where_nothing_can_be_locked_nothing_is_taken_for_left(monkeypatch, tmp_path):
    """As on some network file systems."""

    def refuse_lock(*_: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("backfill_assets.spark.jvm_launch.fcntl.flock", refuse_lock)
    first, second = ScratchDir(tmp_path), ScratchDir(tmp_path)
    assert list_folders(tmp_path) == {first.folder, second.folder}


def test_nobody_else_can_look_into_it(tmp_path):
    assert ScratchDir(tmp_path).folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("cleared", ["blockmgr-1/0a", "blockmgr-1", "."])
def test_a_cleared_folder_is_noticed_and_made_again(tmp_path, cleared):
    scratch = ScratchDir(tmp_path)
    assert scratch.is_complete()  # before Spark has made anything
    inner = scratch.folder / "blockmgr-1" / "0a"
    inner.mkdir(parents=True)
    assert scratch.is_complete()
    (scratch.folder / "spark-temporary").mkdir()
    assert scratch.is_complete()
    (scratch.folder / "spark-temporary").rmdir()
    assert scratch.is_complete()
    shutil.rmtree(scratch.folder / cleared)
    assert not scratch.is_complete()
    scratch.recreate()
    assert scratch.is_complete()
    assert list(scratch.folder.iterdir()) == []
    ScratchDir(tmp_path)  # it has its lock again
    assert scratch.folder.exists()


def test_what_is_configured(tmp_path):
    scratch = ScratchDir(tmp_path)
    temporary = f"-Djava.io.tmpdir={scratch.folder}"
    assert scratch.with_local_dir({}) == {
        "spark.local.dir": str(scratch.folder),
        OPTIONS: temporary,
    }
    assert scratch.with_local_dir({OPTIONS: "-Xss4m"})[OPTIONS] == f"-Xss4m {temporary}"
    users = {"spark.local.dir": "/fast", OPTIONS: "-Djava.io.tmpdir=/other"}
    assert scratch.with_local_dir(users) == users


def test_a_folder_that_jvm_options_cannot_name(tmp_path):
    scratch = ScratchDir(tmp_path / "a home")
    assert scratch.with_local_dir({}) == {"spark.local.dir": str(scratch.folder)}
