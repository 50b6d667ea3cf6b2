"""Lab `torn`: a job that dies between its DELETE and its INSERT, and one that commits once."""

from __future__ import annotations

from pyspark.sql import DataFrame

from backfill_assets_guide.labs.lab import JobDiedError, Lab

_DAY = "day = DATE'2024-01-02'"


def torn_lab(lab: Lab) -> None:
    """A day is replaced, and the job dies half way."""

    def create_rows(amount: int) -> DataFrame:
        return lab.spark.range(9).selectExpr(
            "date_add(DATE'2024-01-01', CAST(id DIV 3 AS INT)) AS day",
            "id",
            f"CAST({amount} AS DECIMAL(10, 2)) AS amount",
        )

    def show_reader(name: str) -> None:
        lab.show_query(
            "reader",
            f"SELECT count_if({_DAY}) AS `rows of the day`, sum(amount) AS `revenue of all days` "
            f"FROM {lab.table_sql(name)}",
        )

    lab.say("A table of three days. The second one is to be loaded again, with other amounts.")
    for name in ("torn", "whole"):
        create_rows(10).write.format("delta").partitionBy("day").save(lab.table_url(name))
    lab.step("The table before.")
    show_reader("torn")
    lab.step("A job deletes the day. Then it dies.")
    with lab.expect_death():
        lab.run_sql(f"DELETE FROM {lab.table_sql('torn')} WHERE {_DAY}")
        raise JobDiedError
    show_reader("torn")
    lab.step("Hours later somebody runs the INSERT.")
    lab.append(create_rows(12).where(_DAY), "torn")
    show_reader("torn")
    lab.say("The same, by a job that writes the rows first and replaces the day in one commit.")
    lab.step("The job has written its files. Then it dies, before its commit.")
    with lab.expect_death():
        # Its files are there. No commit names them.
        files = create_rows(12).where(_DAY).drop("day").write.mode("append")
        files.parquet(f"{lab.table_url('whole')}/day=2024-01-02")
        raise JobDiedError
    show_reader("whole")
    lab.step("It is run again.")
    lab.replace(create_rows(12).where(_DAY), "whole", _DAY)
    show_reader("whole")
    lab.lesson(
        "two commits leave a moment between them, and a crash makes it long. With one commit a "
        "reader sees the old day or the new day."
    )
