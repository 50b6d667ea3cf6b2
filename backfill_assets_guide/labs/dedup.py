"""Lab `dedup`: row_number with the order forgotten, without a tie-break, and right."""

from __future__ import annotations

from pyspark.sql import DataFrame

from backfill_assets_guide.labs.lab import Lab

_COLUMNS = "id STRING, version INT, amount INT"


def dedup_lab(lab: Lab) -> None:
    """Orders are deduplicated, and sampled, from two layouts of the same rows."""
    rows = [("a", 1, 10), ("a", 2, 20), ("b", 1, 5), ("b", 1, 7)]

    def latest_query(table: str, order: str) -> str:
        numbered = f"row_number() OVER (PARTITION BY id ORDER BY {order}) AS n"
        return (
            "SELECT max(IF(id = 'a', amount, NULL)) AS a, max(IF(id = 'b', amount, NULL)) AS b "
            f"FROM (SELECT *, {numbered} FROM {lab.table_sql(table)}) WHERE n = 1"
        )

    def write_table(name: str, orders: list[tuple[str, int, int]]) -> None:
        frame: DataFrame = lab.spark.createDataFrame(orders, _COLUMNS)
        frame.coalesce(1).write.format("delta").save(lab.table_url(name))

    write_table("landed", rows)
    write_table("compacted", rows[::-1])
    lab.say("Order a has versions 1 and 2; order b has two rows of version 1, with 5 and with 7.")
    lab.say("The same rows lie in two tables, in two orders, as before and after a compaction.")
    for text, order in (
        ("ORDER BY the key: the order of the versions is forgotten.", "id"),
        ("ORDER BY version DESC: two rows of one version are a tie.", "version DESC"),
        (
            "ORDER BY version DESC, amount DESC: nothing is left to chance.",
            "version DESC, amount DESC",
        ),
    ):
        lab.step(text)
        for table in ("landed", "compacted"):
            lab.show_query(table, latest_query(table, order))
    _show_samples(lab)
    lab.lesson(
        "where the order does not decide between two rows, the layout of the files does. Order by "
        "all that may differ. Draw a sample by a hash of the key and a seed."
    )


def _show_samples(lab: Lab) -> None:
    """A half of 1,000 orders, drawn twice from each of two layouts."""
    for name, ascending in (("many", True), ("many_compacted", False)):
        orders = lab.spark.range(1000).coalesce(1).sort("id", ascending=ascending)
        orders.write.format("delta").save(lab.table_url(name))

    def draw(table: str, condition: str) -> list[int]:
        query = f"SELECT id FROM {lab.table_sql(table)} WHERE {condition} ORDER BY id"
        return [row.id for row in lab.spark.sql(query).collect()]

    lab.say("A sample of half of 1,000 orders is drawn twice, and once from the other layout.")
    for text, condition in (
        ("WHERE rand() < 0.5: a seed that nobody chose.", "rand() < 0.5"),
        ("WHERE rand(7) < 0.5: the seed is a parameter.", "rand(7) < 0.5"),
        (
            "WHERE pmod(xxhash64(id, 7), 100) < 50: a hash of the key and the seed.",
            "pmod(xxhash64(id, 7), 100) < 50",
        ),
    ):
        lab.step(text)
        sample = draw("many", condition)
        lab.show("drawn again", _compare(sample, draw("many", condition)))
        lab.show("compacted", _compare(sample, draw("many_compacted", condition)))


def _compare(sample: list[int], other: list[int]) -> str:
    return "the same orders" if sample == other else "other orders"
