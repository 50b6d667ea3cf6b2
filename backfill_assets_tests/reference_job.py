"""A fixed Spark job whose CPU seconds are the unit in which the cost of the tests is told.

CPU seconds measure the machine: the same tests took 590 on one and 942 on another. Their ratio to a
job that never changes does not. DO NOT CHANGE THIS MODULE: figures of earlier runs would no longer
compare. It uses nothing of the project.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

#: Days, and lines of each, of the landing.
_DAYS, _LINES = 3, 500
_RUNS = 3
_CONF = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": (
        "-Duser.timezone=UTC -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    ),
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def write_landing(folder: Path) -> None:
    """Write the orders of some days, some of them in several versions."""
    for day in range(1, _DAYS + 1):
        lines = [
            json.dumps(
                {
                    "order_id": f"o-{day}-{n % 450}",
                    "customer_id": f"c{n * day % 97}",
                    "order_ts": f"2024-01-{day:02}T{n % 24:02}:{n % 60:02}:00Z",
                    "amount": f"{n * 7 % 10000 / 100:.2f}",
                }
            )
            for n in range(_LINES)
        ]
        (folder / f"day-{day:02}.jsonl").write_text("\n".join(lines) + "\n")


def run_job(folder: Path) -> int:
    """Load the landing, keep the last version of each order, write sums; the rows written."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession, Window
    from pyspark.sql import functions as F

    landing, result = folder / "landing", str(folder / "result")
    landing.mkdir()
    write_landing(landing)
    spark = SparkSession.builder.config(conf=SparkConf().setAll([*_CONF.items()])).getOrCreate()
    schema = "order_id STRING, customer_id STRING, order_ts TIMESTAMP, amount STRING"
    latest = F.row_number().over(
        Window.partitionBy("order_id").orderBy(F.desc("order_ts"), F.desc("amount"))
    )
    orders = (
        spark.read.schema(schema)
        .json(str(landing))
        .withColumn("place", latest)
        .where("place = 1")
        .withColumn("run_date", F.to_date("order_ts"))
    )
    sums = orders.groupBy("run_date", "customer_id").agg(
        F.count("*").alias("orders"), F.sum(F.col("amount").cast("decimal(18,2)")).alias("revenue")
    )
    sums.write.partitionBy("run_date").parquet(result)
    rows: int = spark.read.parquet(result).count()
    gateway = SparkContext._gateway
    spark.stop()
    # The JVM ends with its standard input; it is waited for, so that its CPU is counted.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    return rows


def measure_seconds() -> list[float]:
    """The CPU seconds of some runs, each with an engine of its own."""
    seconds = []
    for _ in range(_RUNS):
        with tempfile.TemporaryDirectory() as folder:
            # The job's own settings decide, not those of whoever calls it.
            names = ("PATH", "HOME", "JAVA_HOME", "LANG", "PYTHONPATH")
            environment = {name: os.environ[name] for name in names if name in os.environ}
            command = [sys.executable, "-m", __spec__.name, folder]
            process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            if os.waitstatus_to_exitcode(status):
                raise RuntimeError("the reference job failed: run it with a folder to see why")
            seconds.append(usage.ru_utime + usage.ru_stime)
    return seconds


if __name__ == "__main__":
    if len(sys.argv) > 1:
        assert run_job(Path(sys.argv[1])) == _DAYS * 97
    else:
        print(f"{median(measure_seconds()):.2f}")
