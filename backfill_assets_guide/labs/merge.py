"""Lab `merge`: what a MERGE by key does with repeats, vanished rows, null keys and old versions."""

from __future__ import annotations

from pyspark.sql import DataFrame

from backfill_assets_guide.labs.lab import Lab

_COLUMNS = "id STRING, version INT, amount INT"


def merge_lab(lab: Lab) -> None:
    """A table is fed by MERGE, by key."""
    target = lab.table_sql("orders")

    def create_rows(*rows: tuple[str | None, int, int]) -> DataFrame:
        return lab.spark.createDataFrame([*rows], _COLUMNS)

    def merge_rows(rows: DataFrame, condition: str = "") -> None:
        rows.createOrReplaceTempView("lab_source")
        matched = f"WHEN MATCHED {condition} THEN UPDATE SET *"
        lab.run_sql(
            f"MERGE INTO {target} t USING lab_source s ON t.id = s.id {matched} "
            "WHEN NOT MATCHED THEN INSERT *"
        )
        lab.spark.catalog.dropTempView("lab_source")

    def show_reader() -> None:
        lab.show_query(
            "reader",
            "SELECT count(*) AS rows, sum(amount) AS amount, count_if(id IS NULL) AS `null keys`, "
            f"max(IF(id = 'a', version, NULL)) AS `version of a` FROM {target}",
        )

    lab.say("Orders a and b, of version 2, are merged by their key.")
    first = create_rows(("a", 2, 10), ("b", 2, 10))
    create_rows().write.format("delta").save(lab.table_url("orders"))
    lab.step("The load, and its retry: nothing is counted twice.")
    merge_rows(first)
    show_reader()
    merge_rows(first)
    show_reader()
    lab.step("The source is corrected: order b was never there. The correction is merged.")
    merge_rows(create_rows(("a", 2, 10)))
    show_reader()
    lab.step("An order without a key is merged, and its load is repeated twice.")
    for _ in range(3):
        merge_rows(create_rows((None, 1, 10)))
        show_reader()
    lab.step("Version 1 of order a, with amount 99, arrives after version 2.")
    merge_rows(create_rows(("a", 1, 99)))
    show_reader()
    lab.step("Version 2 again; then version 1, by a MERGE that compares the versions.")
    merge_rows(first.where("id = 'a'"))
    merge_rows(create_rows(("a", 1, 99)), "AND s.version > t.version")
    show_reader()
    lab.lesson(
        "a MERGE by key makes retries safe. It keeps rows that have vanished, inserts null keys "
        "again, and takes whatever comes last, unless it compares versions."
    )
