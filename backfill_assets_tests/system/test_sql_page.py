"""The SQL of the field guide, run in order on Spark and on Postgres, gives what the page shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import psycopg2
import pytest

from backfill_assets.spark.session import SPARK_ERRORS
from backfill_assets_tests.helpers import postgres
from backfill_assets_tests.helpers.docs_pages import BLOCK, PAGES, code_blocks

PAGE = "docs/guide/sql.md"
#: Runs a block: the names of the columns of its last statement, and its rows.
Run = Callable[[str], tuple[Sequence[str], Sequence[tuple]]]


def page_steps(language: str) -> Iterator[tuple[str, str | None]]:
    """The blocks in a language, each with the result that the page shows, if it shows one."""
    blocks = BLOCK.findall(PAGES[PAGE])
    assert {kind for kind, _ in blocks} == {"sql", "postgresql", "text"}
    for number, (kind, body) in enumerate(blocks):
        if kind == language:
            after = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
            yield body, after[1] if after[0] == "text" else None


def format_result(columns: Sequence[str], rows: Sequence[tuple]) -> str:
    """A result as the page shows it."""
    table = [list(columns), *([format_value(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
    return "".join(f"{line}\n" for line in lines)


def format_value(value: object) -> str:
    return "null" if value is None else str(value)


def run_block(run: Run, block: str, errors: tuple[type[Exception], ...]) -> str:
    """What a block gives: its result, or the first words of why it is refused."""
    try:
        return format_result(*run(block))
    except errors as error:
        match = re.search(r"\[([A-Z_.]+)\]|^(.+)$", str(error), re.MULTILINE)
        assert match is not None
        return f"refused: {match[1] or match[2]}\n"


def compare_blocks(language: str, run: Run, errors: tuple[type[Exception], ...]) -> None:
    for block, expected in page_steps(language):
        if expected is None:
            run(block)
        else:
            assert run_block(run, block, errors) == expected, block


def test_spark_says_what_the_page_shows(spark, tmp_path):
    assert code_blocks("docs/guide/sql.md", "sql")
    views = ("delivered", "orders", "customers")

    def run_sql(block: str) -> tuple[Sequence[str], Sequence[tuple]]:
        # A script has statements that are indented.
        frames = [spark.sql(statement) for statement in re.split(r";\n(?! |END|$)", block)]
        return frames[-1].columns, [tuple(row) for row in frames[-1].collect()]

    spark.sql(f"CREATE DATABASE sql_page LOCATION '{tmp_path}/sql_page'")
    spark.sql("USE sql_page")
    try:
        compare_blocks("sql", run_sql, SPARK_ERRORS)
    finally:
        spark.sql("RESET spark.sql.sources.partitionOverwriteMode")
        for view in views:
            spark.catalog.dropTempView(view)
        spark.sql("USE default")
        spark.sql("DROP DATABASE sql_page CASCADE")


@pytest.fixture
def sales(postgres_server: postgres.Server) -> Iterator[psycopg2.extensions.connection]:
    """A database of its own for the statements of the page."""
    with closing(postgres.connect(postgres_server.database())) as connection:
        connection.autocommit = True
        yield connection


def test_postgres_says_what_the_page_shows(sales):
    assert code_blocks("docs/guide/sql.md", "postgresql")

    def run_sql(block: str) -> tuple[Sequence[str], Sequence[tuple]]:
        with sales.cursor() as cursor:
            cursor.execute(block)
            if cursor.description is None:
                return (), ()
            return [column.name for column in cursor.description], cursor.fetchall()

    compare_blocks("postgresql", run_sql, (psycopg2.Error,))


def test_a_reader_of_postgres_sees_the_old_day_until_the_commit(postgres_server):
    database = postgres_server.database()
    (load, _), (replace, _), *_ = page_steps("postgresql")
    database.ask(load)
    before = database.ask("SELECT * FROM sales ORDER BY day, shop")
    half, commit, _ = replace.partition("COMMIT;")
    assert commit
    with closing(postgres.connect(database)) as writer, writer.cursor() as cursor:
        writer.autocommit = True
        cursor.execute(half)
        cursor.execute("SELECT count(*) FROM sales WHERE shop = 'c'")
        assert cursor.fetchall() == [(1,)]
        assert database.ask("SELECT * FROM sales ORDER BY day, shop") == before
        cursor.execute(commit)
        after = database.ask("SELECT * FROM sales ORDER BY day, shop")
        assert {shop for _, shop, _ in after} == {"a", "b", "c"}
        cursor.execute(half)
    # The second writer is gone without its commit: nothing of it has happened.
    assert database.ask("SELECT * FROM sales ORDER BY day, shop") == after
