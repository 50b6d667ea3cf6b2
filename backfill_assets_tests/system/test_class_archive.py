"""The archive of the engine's classes: made once, and used by the next JVM."""

from __future__ import annotations

import subprocess

import pytest

from backfill_assets.spark.jvm_launch import (
    class_archive_path,
    make_class_archive,
    with_class_archive,
)
from backfill_assets.spark.processes import spark_home


@pytest.mark.slow
def test_the_next_jvm_takes_its_classes_from_the_archive(tmp_path):
    stale_folder = tmp_path / "classes-of-a-spark-that-is-gone"
    stale_folder.mkdir()
    (stale_folder / "spark_home").write_text(str(tmp_path / "nothing-here"))
    assert make_class_archive(tmp_path)
    archive = class_archive_path(tmp_path)
    assert [*tmp_path.iterdir()] == [archive.parent], "nothing else stays"
    modified = archive.stat().st_mtime_ns
    assert make_class_archive(tmp_path)
    assert archive.stat().st_mtime_ns == modified, "it is made once"
    options = with_class_archive({}, tmp_path)["spark.driver.extraJavaOptions"].split()
    loaded = subprocess.run(
        [
            str(spark_home() / "bin" / "spark-submit"),
            *("--driver-java-options", " ".join([*options, "-Xlog:class+load:stdout"])),
            *("--master", "local[1]", "--version"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    of_spark = [line for line in loaded.stdout.splitlines() if "org.apache.spark." in line]
    assert of_spark
    assert any("shared objects file (top)" in line for line in of_spark), of_spark[:3]
