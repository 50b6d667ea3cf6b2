"""Landing and warehouse in object stores: servers of the test's own, and the suite's core on S3."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill_assets.calendar.partitions import DAY
from backfill_assets.delta.delta_rs import delta_log, storage_options
from backfill_assets.landing.listing import HOUR_FOLDERS, folder_name, list_landing
from backfill_assets.landing.samples import sample_values
from backfill_assets.orders.tables import ORDER_LINES
from backfill_assets.settings import load_settings
from backfill_assets.spark.filesystems import delete_folder, folder_filesystem, open_store
from backfill_assets.spark.jars import fetch_store_jars
from backfill_assets.spark.stores import S3
from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers import object_stores
from backfill_assets_tests.helpers.connect_server import connect_server
from backfill_assets_tests.helpers.object_stores import BUCKET, PLACE
from backfill_assets_tests.helpers.paths import CDNOW
from backfill_assets_tests.helpers.postgres import option
from backfill_assets_tests.helpers.s3_server import (
    MISSING,
    PROGRAM,
    STORES,
    S3Server,
    s3_server,
)

#: Commits of each driver that races, of one alone and of two.
COMMITS, COMMITS_OF_TWO = 2, 3

HERE = Path(__file__).parents[1]
#: Of the suite, what meets and what is killed: on S3. `test_conformance` leads a life there.
CORE = [
    "system/test_races.py",
    "system/test_recovery.py",
    "system/test_targets.py",
    "test_migrations.py",
]
CHOICE = (
    "nightly_against or killed_at_random or target_from_end_to_end or (readers_see and renamed)"
)

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(PLACE in os.environ, reason="this is the run in a store"),
]


@pytest.fixture
def server(tmp_path) -> Iterator[S3Server]:
    if not PROGRAM:
        pytest.skip(MISSING)
    with s3_server(tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def buckets(tmp_path_factory) -> Iterator[dict[str, str]]:
    """By store that this machine has, the URL of a bucket, of which this process knows."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        urls = {}
        for name, (program, run_store) in STORES.items():
            if program:
                store = stack.enter_context(run_store(tmp_path_factory.mktemp(name)))
                urls[name] = store.url
                for variable, value in store.environment.items():
                    patch.setenv(variable, value)
        yield urls


@pytest.fixture(scope="module", params=STORES)
def bucket(request, buckets) -> str:
    """The URL of a bucket in each store."""
    if request.param not in buckets:
        pytest.skip(object_stores.MISSING)
    return buckets[request.param]


def run_on(server: S3Server, choice: str, *names: str, **more: str) -> str:
    """What pytest says of tests whose landing and warehouse lie on the server.

    Args:
        server: the server.
        choice: of the tests in the files.
        names: the files, and options of pytest.
        more: variables of the environment.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-p",
        "no:cacheprovider",
        "-k",
        choice,
        "-m",
        "",
    ]
    words = [name if name.startswith("-") else str(HERE / name) for name in names]
    result = subprocess.run(
        [*command, f"--basetemp={server.bucket / 'inner'}", *words],
        env={**os.environ, **server.environment, "BACKFILL_TEST_RACES": "1", **more},
        capture_output=True,
        text=True,
        cwd=HERE.parent,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:]
    assert server.requests("inner")["PutObject"]
    return result.stdout


@pytest.mark.slow
def test_races_and_kills_on_s3(server):
    assert "4 passed" in run_on(server, CHOICE, *CORE)


@pytest.mark.slow
def test_a_life_of_which_a_part_is_on_s3(server):
    assert "2 passed" in run_on(server, "part_is_on_local", "system/test_conformance.py")


@pytest.mark.slow
@pytest.mark.skipif(not CDNOW.exists(), reason="the CDNOW file is not beside the project")
def test_a_connect_server_has_the_totals_of_cdnow_on_s3(server, tmp_path, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    fetch_store_jars(load_settings().jars, S3)
    with connect_server(tmp_path, SMALL, warehouse=f"s3a://{BUCKET}/w") as url:
        output = run_on(server, "whole", *option(), "system/test_cdnow.py", SPARK_REMOTE=url)
        assert "1 passed" in output
        log = (tmp_path / "connect-server.log").read_text()
    assert server.environment["AWS_SECRET_ACCESS_KEY"] not in log


def test_a_landing_of_three_years_costs_what_is_asked_of_it(server, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    days = [date(2021, 1, 1) + n * DAY for n in range(1095)]
    for d in days:
        folder = server.bucket / "landing" / "orders" / folder_name(d)
        folder.mkdir(parents=True)
        (folder / "part-0.jsonl").write_text("{}\n")

    def count_requests(requested_days: list[date] | None) -> int:
        before = server.requests().total()
        listing = list_landing(f"s3a://{BUCKET}/landing", ORDER_LINES, requested_days)
        assert {*listing.folders} == {*(requested_days or days)}
        assert all(len(folder.files) == 1 for folder in listing.folders.values())
        return server.requests().total() - before

    assert count_requests(None) <= 2 + 1095 // 1000 + 1
    assert count_requests(days[-1:]) <= 3
    assert count_requests(days[-9:]) <= 11


def test_folders_of_hours_are_listed_with_their_day(server, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    days = [date(2024, 1, 1), date(2024, 1, 2)]
    for d in days:
        for hour in [*HOUR_FOLDERS, "hour=24"]:
            folder = server.bucket / "by-hour" / "orders" / folder_name(d) / hour
            folder.mkdir(parents=True)
            (folder / "part-0.jsonl").write_text("{}\n")
    for requested_days in (None, days):
        before = server.requests().total()
        listing = list_landing(
            f"s3a://{BUCKET}/by-hour", replace(ORDER_LINES, hourly=True), requested_days
        )
        assert server.requests().total() - before <= 4, "not one for each hour"
        for d, folder in listing.folders.items():
            assert [*folder.files] == [
                f"{folder_name(d)}/{hour}/part-0.jsonl" for hour in HOUR_FOLDERS
            ]
            assert folder.hours == {*HOUR_FOLDERS}
            assert folder.unknown_files == (f"{folder_name(d)}/hour=24",)
        # Of a source by day, they are told as well.
        listing = list_landing(f"s3a://{BUCKET}/by-hour", ORDER_LINES, requested_days)
        assert [*listing.folders] == days
        for folder in listing.folders.values():
            assert not folder.files
            assert len(folder.unknown_files) == 25


@pytest.mark.skipif(not object_stores.AZURE_PROGRAM, reason=object_stores.MISSING)
def test_marks_of_folders_on_azure_are_no_files(tmp_path, monkeypatch):
    """Of Hadoop's ABFS: an empty blob with the name of the folder."""
    with object_stores.azure_server(tmp_path) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        account = object_stores.azure_account(
            urlsplit(store.environment["AZURE_STORAGE_ENDPOINT"]).netloc
        )

        def write(name: str, **metadata: str) -> None:
            with account.open_output_stream(f"{BUCKET}/{name}", metadata=metadata):
                pass

        for folder in ("w", "w/t", "w/t/day=1"):
            write(folder, hdi_isfolder="true")
        odd_file = "w/t/day=1/a b%20[1]+é#.jsonl"
        for file in ("w/t/empty", odd_file):
            write(file)
        filesystem, path = open_store(f"{store.url}/w/t")
        assert filesystem.get_file_info(path).type == pafs.FileType.Directory
        infos = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
        files = {info.path for info in infos if info.is_file}
        assert files == {"w/t/empty", odd_file}
        assert {info.path for info in infos} - files == {"w/t/day=1"}
        assert len(infos) == 3
        with filesystem.open_output_stream(odd_file) as stream:
            stream.write(b"{}")
        filesystem.move(odd_file, f"{path}/moved.jsonl")
        with folder_filesystem(f"{store.url}/w").open_input_stream("t/moved.jsonl") as stream:
            assert stream.read() == b"{}"
        delete_folder(filesystem, path)
        remaining = account.get_file_info(pafs.FileSelector(BUCKET, recursive=True))
        assert [info.path for info in remaining] == [f"{BUCKET}/w"]


def test_a_sample_of_files_reads_a_part_of_them(server, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    d = date(2024, 1, 1)
    folder = server.bucket / "sampled" / "orders" / folder_name(d)
    folder.mkdir(parents=True)
    keys = [f"c{n}" for n in range(200_000)]
    lines = "".join(f'{{"customer_id": "{key}", "amount": "1"}}\n' for key in keys).encode()
    (folder / "a.jsonl").write_bytes(lines)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    pq.write_table(pa.table({"customer_id": keys}), folder / "c.parquet")

    def read_samples(landing: str) -> list:
        entries = list_landing(landing, ORDER_LINES, [d]).files_on(d).values()
        return [*sample_values(landing, ORDER_LINES, [*entries], ["customer_id"]).values()]

    before = server.requests().total()
    samples = read_samples(f"s3a://{BUCKET}/sampled")
    assert server.requests().total() - before < 40
    assert samples == read_samples(str(server.bucket / "sampled"))
    assert [len(customer_ids) > 500 for customer_ids in samples] == [True] * 3


#: A driver for several stores, which does what it reads: `write BUCKET FILE` writes a commit
#: where one may be, three times, and prints how that ended; `insert URL COUNT` commits one row
#: after the other, and prints those of which it was told that they are there; `live BUCKET FOLDER`
#: leads the life of all back ends in a folder that stands for the bucket; `load` its first days, of
#: the raw log alone, after which a commit ends between its write and its end. Spark reads it then.
DRIVER = """
import os, sys
from functools import reduce
from pathlib import Path
from py4j.protocol import Py4JJavaError
from backfill_assets.delta.commits import Writer, is_conflict
from backfill_assets.spark.session import SPARK_ERRORS
from backfill_assets.spark.stores import store_of
from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers.conformance_life import STORED, begin_life, conformance_life
from backfill_assets.orders.tables import RAW
from backfill_assets_tests.helpers.object_stores import engine_of_stores, place
from backfill_assets_tests.helpers.pipeline import day
name, *buckets = sys.argv[1:]
engine = engine_of_stores(buckets, SMALL, "local[1]")
spark = engine.spark_session
jvm, conf = spark._jvm, spark._jsc.hadoopConfiguration()

def write(bucket, file):
    lines = jvm.java.util.ArrayList()
    lines.add('{"commitInfo": {"engineInfo": "ours"}}')
    store = reduce(getattr, store_of(bucket).log_store.split("."), jvm)(conf)
    path = jvm.org.apache.hadoop.fs.Path(f"{bucket}/w/_delta_log/{file}")
    path.getFileSystem(conf).mkdirs(path.getParent())
    for overwrite in (False, False, True):
        try:
            store.write(path, lines.iterator(), overwrite, conf)
        except Py4JJavaError as error:
            print(error.java_exception.getClass().getName(), flush=True)
        else:
            print("written", flush=True)

def insert(url, count):
    for n in range(int(count)):
        try:
            spark.sql(f"INSERT INTO delta.`{url}` VALUES ('{name}-{n}')")
        except SPARK_ERRORS as error:
            if not is_conflict(error):
                raise
            print("refused", flush=True)
        else:
            print(f"{name}-{n}", flush=True)

def live(bucket, folder):
    os.environ |= place(Path(folder), bucket)
    conformance_life(engine, Path(folder, "life"), STORED)
    print("lived", flush=True)

def load(bucket, folder):
    os.environ |= place(Path(folder), bucket)
    # That a run ends there is seen on S3.
    ends = bucket.startswith("s3a:")
    begin_life(engine, Path(folder, "life"), [RAW.name], ends_before_commit=ends)
    url = f"{bucket}/life/warehouse/{RAW.name}"
    rows = spark.read.format("delta").load(url)
    days = [day(1), day(2)]
    assert Writer(lambda: spark, url, RAW).write_rows(rows, days, None, rebalance=False)
    print(*sorted(row.order_id for row in rows.select("order_id").collect()), flush=True)

print("done", flush=True)
commands = {"write": write, "insert": insert, "live": live, "load": load}
for command in sys.stdin:
    word, bucket, value = command.split()
    commands[word](bucket, value)
    print("done", flush=True)
"""


class Driver:
    """A Spark driver in a process of its own."""

    def __init__(self, name: str, buckets: Iterable[str]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, name, *buckets],
            cwd=HERE.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, command: str) -> None:
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def answers(self) -> Iterator[str]:
        """What it prints until it is ready for a command.

        Raises:
            AssertionError: it has ended instead.
        """
        for line in self.process.stdout:
            if line == "done\n":
                return
            yield line.strip()
        raise AssertionError(f"the driver ended with {self.process.wait()}")


@contextmanager
def run_driver(name: str, buckets: Iterable[str]) -> Iterator[Driver]:
    """A driver that is ready, until the end."""
    driver = Driver(name, buckets)
    try:
        assert [*driver.answers()] == []
        yield driver
        driver.process.stdin.close()
        assert driver.process.wait() == 0
    finally:
        driver.process.kill()
        driver.process.wait()


@pytest.fixture(scope="module")
def driver(buckets) -> Iterator[Driver]:
    with run_driver("a", buckets.values()) as driver:
        yield driver


@pytest.fixture(scope="module")
def other_driver(buckets) -> Iterator[Driver]:
    with run_driver("b", buckets.values()) as driver:
        yield driver


def test_spark_overwrites_no_commit_that_it_has_not_looked_for(bucket, driver):
    """Neither its own nor that of delta-rs, which comes about without its knowledge; nor does that.

    On S3, a driver and delta-rs race for commits as well.
    """
    url = f"{bucket}/w"
    filesystem, root = open_store(f"{url}/_delta_log")
    ours = b'{"commitInfo": {"engineInfo": "ours"}}\n'
    refused = "java.nio.file.FileAlreadyExistsException"

    def read_commit(version: int) -> bytes:
        with filesystem.open_input_stream(f"{root}/{version:020d}.json") as stream:
            return stream.read()

    def write_by_spark(version: int) -> list[str]:
        driver.tell(f"write {bucket} {version:020d}.json")
        return [*driver.answers()]

    def append(target: str | DeltaTable) -> None:
        options = storage_options(url)
        write_deltalake(target, pa.table({"row": ["x"]}), mode="append", storage_options=options)

    append(url)
    with_one_commit = delta_log(url).load()
    assert write_by_spark(1) == ["written", refused, "written"]
    append(with_one_commit)
    assert read_commit(1) == ours
    assert b'"add"' in read_commit(2)
    assert write_by_spark(2) == [refused, refused, "written"]
    assert read_commit(2) == ours


def test_a_life_in_a_store(bucket, driver, tmp_path):
    """Files were read, a commit was lost, and the table is as it was; then a file is deleted."""
    files = lead_life(driver, bucket, tmp_path, "load", "o1 o2 odd p1 p2")
    filesystem, root = open_store(f"{bucket}/life")
    data_files = [path for path in files if path.endswith(".parquet")]
    named = delta_log(f"{bucket}/life/warehouse/raw_orders").load().file_uris()
    assert len(data_files) >= 2 * len(named) > 0, "files of the lost commit are there, and of none"
    data_file = data_files[0]
    filesystem.delete_file(data_file)
    assert data_file not in list_files(filesystem, root)


@pytest.mark.slow
def test_a_whole_life_in_a_store(bucket, driver, tmp_path):
    """With a late line, and an undo."""
    lead_life(driver, f"{bucket}/whole", tmp_path, "live", "lived")


def list_files(filesystem: pafs.FileSystem, root: str) -> set[str]:
    infos = filesystem.get_file_info(pafs.FileSelector(root, recursive=True))
    return {info.path for info in infos if info.is_file}


def lead_life(driver: Driver, url: str, folder: Path, command: str, answer: str) -> set[str]:
    """What the driver does in a folder of a bucket; the files of it."""
    driver.tell(f"{command} {url} {folder}")
    assert [*driver.answers()] == [answer]
    filesystem, root = open_store(f"{url}/life")
    files = list_files(filesystem, root)
    assert any("/warehouse/raw_orders/" in path for path in files), "it was led elsewhere"
    assert any("/landing/orders/" in path for path in files)
    return files


@pytest.mark.parametrize(
    "bucket",
    [pytest.param(name, marks=[] if name == "s3" else [pytest.mark.slow]) for name in STORES],
    indirect=True,
)
def test_no_commit_of_several_writers_is_lost(bucket, driver):
    """A driver of Spark and delta-rs, which know nothing of one another."""
    race_for_commits(f"{bucket}/contested", [driver], COMMITS)


@pytest.mark.slow
def test_no_commit_of_several_drivers_is_lost(bucket, driver, other_driver):
    """Two drivers of Spark and delta-rs, each of which knows nothing of the others."""
    race_for_commits(f"{bucket}/contested-by-drivers", [driver, other_driver], COMMITS_OF_TWO)


def race_for_commits(url: str, drivers: Sequence[Driver], commits: int) -> None:
    """Drivers and delta-rs commit at the same time: each row that was committed is there, once."""
    write = partial(write_deltalake, url, mode="append", storage_options=storage_options(url))
    write(pa.table({"row": ["first"]}))
    for driver in drivers:
        driver.tell(f"insert {url} {commits}")
    answers = ["first"]

    def follow_driver(driver: Driver) -> None:
        """After each commit of a driver, one by delta-rs, while the drivers make their next."""
        for answer in driver.answers():
            row = f"c-{uuid4().hex}"
            write(pa.table({"row": [row]}))
            answers.extend([answer, row])

    with ThreadPoolExecutor() as pool:
        list(pool.map(follow_driver, drivers))
    table = delta_log(url).load()
    rows = table.to_pyarrow_table(filesystem=folder_filesystem(url))["row"].to_pylist()
    assert sorted(rows) == sorted(row for row in answers if row != "refused")
    assert {row[:1] for row in rows} == {"f", "c", *(driver.name for driver in drivers)}
    assert table.version() == len(rows) - 1
