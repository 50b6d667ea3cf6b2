"""The environment of somebody else: another Spark, another Hadoop, no UTF-8."""

from __future__ import annotations

from pathlib import Path


def make_hostile_variables(folder: Path) -> dict[str, str]:
    """Variables, each of which would break a run by itself; files of theirs are in the folder."""
    configuration = folder / "configuration"
    configuration.mkdir()
    (configuration / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name>"
        "<value>hdfs://nowhere.invalid:8020</value></property></configuration>"
    )
    (configuration / "spark-defaults.conf").write_text("spark.driver.memory 9000g\n")
    return {
        "HADOOP_CONF_DIR": str(configuration),
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_HOME": "/nowhere",
        "SPARK_LOCAL_IP": "203.0.113.9",
        "PYSPARK_PYTHON": "/nowhere/python",
        "PYSPARK_SUBMIT_ARGS": "--nonsense",
        "_JAVA_OPTIONS": "-Xmx16m",
        "LC_ALL": "C",
        "PATH": "/usr/bin:/bin",
    }
