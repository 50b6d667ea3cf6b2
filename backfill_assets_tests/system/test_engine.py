"""A real engine whose disk is full or was cleared, which ran out of memory, or lost its clients."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.real_engine import Client, RealEngine, run_engine

#: Loads a day of long lines, with an engine of its own.
LONG_LINES = """
import gzip, json, sys
from pathlib import Path
from backfill_assets.spark.session import Engine
from backfill_assets.settings import load_settings
from backfill_assets_tests.helpers.pipeline import Pipeline, order
conf = {"spark.driver.memory": "1500m"}
pipeline = Pipeline(
    Engine.from_settings(load_settings(spark_master="local[2]", spark_conf=conf)), Path(sys.argv[1])
)
with gzip.open(pipeline.folder(1) / "a.jsonl.gz", "wt", compresslevel=1) as file:
    for n in range(400):
        file.write(json.dumps(order(f"{n}-" + "x" * 1_000_000, 1)) + "\\n")
    for n in range(200):
        file.write(f"{n}-" + "y" * 1_000_000 + "\\n")
assert pipeline.run(1, 1)
print(sum(row["orders"] for row in pipeline.rows("fact_daily_orders")))
"""


@pytest.fixture
def real(connect_engine: RealEngine) -> RealEngine:
    """The engine of all tests that it outlives."""
    if connect_engine.disk is None:
        pytest.skip(NO_DISK)
    return connect_engine


@pytest.fixture(scope="module")
def client(connect_engine: RealEngine) -> Iterator[Client]:
    started = connect_engine.start_client()
    yield started
    started.kill()


@pytest.fixture(scope="module")
def mortal(tmp_path_factory) -> Iterator[RealEngine]:
    """An engine with little memory, for tests that it does not outlive."""
    conf = {"spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "2"}
    with run_engine(tmp_path_factory.mktemp("mortal"), conf) as running:
        if running.disk is None:
            pytest.skip(NO_DISK)
        yield running


@pytest.fixture
def landing(tmp_path) -> Path:
    for number in (1, 2):
        folder = tmp_path / "orders" / f"arrival_date=2024-01-0{number}"
        folder.mkdir(parents=True)
        for name in "abc":
            (folder / f"{name}.jsonl").write_text('{"order_id": "1"}\n' * number)
    return tmp_path


NO_DISK = "only root can give an engine a small disk of its own"
FINE = "([1, 1, 1, 2, 2, 2], [])"
NOT_THE_FILES = "EngineError: the engine's own disk failed ("


def test_a_full_disk_condemns_no_file(real, client, landing):
    assert client.ask("survey", landing) == FINE
    filler = real.disk / "filler"
    try:
        for _attempt in range(5):  # Spark may free space after a fill: it clears shuffles later
            with pytest.raises(OSError, match="No space left"), filler.open("ab") as file:
                while True:
                    file.write(bytes(2**20))
                    file.flush()
            message = client.ask("survey", landing)
            if message != FINE:
                break
    finally:
        filler.unlink()
    assert NOT_THE_FILES in message
    assert "no file is at fault" in message
    assert client.ask("survey", landing) == FINE  # it has recovered by itself


@pytest.mark.slow
def test_a_cleared_disk_condemns_no_file_and_the_engine_is_restarted(mortal, landing):
    starts = sum(text.endswith("is ready.") for text in mortal.said)
    for blocks in mortal.scratch.folder.glob("blockmgr-*"):
        shutil.rmtree(blocks)
    before = mortal.start_client()
    assert NOT_THE_FILES in before.ask("survey", landing)
    before.kill()
    assert not mortal.asked()
    mortal.wait(starts + 1)
    assert any("lost files on its disk" in text for text in mortal.said)
    after = mortal.start_client()
    assert after.ask("survey", landing) == FINE
    assert after.end() == 0
    assert mortal.asked()


def test_what_a_killed_run_kept_is_released_and_what_a_live_one_keeps_is_not(real, client):
    killed = real.start_client()
    killed.tell("cache")
    assert client.ask("cache") == "(100, 4950)"
    assert killed.read_answer() == "(100, 4950)"
    killed.kill()
    assert client.ask("views") == "2"
    assert real.asked()
    assert client.ask("views") == "1"
    assert client.ask("release") == "None"
    assert client.ask("views") == "0"


def test_nobody_without_its_secret_is_heard_by_spark(real):
    """Other users of the machine reach its ports; Spark would take Java objects from them."""
    # A frame with a call, as Spark's transport has it: length, kind, number, length of the call.
    call = bytes(40)
    message = struct.pack(">Bqi", 3, 77, len(call)) + call
    answers = {}
    for port in real.listening():
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(20)
            connection.sendall(struct.pack(">q", 8 + len(message)) + message)
            answers[port] = connection.recv(2000)
    connect = int(real.server.url.split(":")[2].split("/")[0])
    assert answers.pop(connect)[3:4] == b"\x04"  # settings of HTTP/2; it asks for its token
    assert len(answers) == 2
    for answer in answers.values():
        assert not any(name in answer for name in (b"RequestMessage", b"BlockTransferMessage"))


@pytest.mark.slow
def test_out_of_memory_it_ends_and_is_restarted(mortal):
    starts = sum(text.endswith("is ready.") for text in mortal.said)
    greedy = mortal.start_client()
    greedy.tell("much")
    mortal.wait(starts + 1)
    greedy.kill()
    assert "The Spark engine ended with status 3: restarting it ..." in mortal.said
    assert mortal.asked()


@pytest.mark.slow
def test_many_lines_of_a_megabyte_are_not_too_many(tmp_path):
    """A reader takes few rows at once: long ones end no engine when they are read back."""
    command = [sys.executable, "-W", "ignore", "-c", LONG_LINES, str(tmp_path)]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert result.stdout.strip().endswith("400"), result.stderr[-2000:]
