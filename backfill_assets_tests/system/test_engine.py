"""A real engine whose disk is full or was cleared, which ran out of memory, or lost its clients."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from backfill_assets.settings import load_settings
from backfill_assets.spark import servers
from backfill_assets.spark.configuration import connect_server_command
from backfill_assets.spark.jvm_launch import ScratchDir
from backfill_assets.spark.processes import jvm_environment
from backfill_assets.spark.servers import SparkServer
from backfill_assets_tests.helpers.paths import PROJECT

#: Does what it reads, and prints what comes of it: the survey of a landing, the number of global
#: views; `cache` keeps a frame until `release`, `much` is more than the engine has memory for.
CLIENT = """
import sys
from contextlib import ExitStack
from datetime import date
from backfill_assets.calendar.partitions import Window
from backfill_assets.spark.frames import cache_frames
from backfill_assets.spark.session import Engine
from backfill_assets.landing.files import probe_files
from backfill_assets.orders.tables import ORDER_LINES
from backfill_assets.settings import load_settings
spark = Engine.from_settings(load_settings()).spark_session
frames = ExitStack()

def survey(landing):
    files = probe_files(spark, landing, ORDER_LINES, Window(date(2024, 1, 1), date(2024, 1, 3)))
    return sorted(files.line_counts.values()), list(files.broken.values())

def views():
    return len(spark.sql("SHOW VIEWS IN global_temp").collect())

def cache():
    kept = frames.enter_context(cache_frames())(spark.range(100))
    return kept.count(), kept.groupBy().sum("id").collect()[0][0]

def release():
    return frames.close()

def much():
    return spark.range(1).selectExpr("length(repeat(string(id), 1900000000))").collect()

for line in sys.stdin:
    word, *arguments = line.split()
    try:
        result = globals()[word](*arguments)
    except Exception as error:
        result = f"{type(error).__name__}: {' '.join(str(error).split())}"
    print(result, flush=True)
"""
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


class Client:
    """A process with a session of the engine."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CLIENT],
            env=environment,
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, *words: object) -> None:
        self.process.stdin.write(f"{' '.join(map(str, words))}\n")
        self.process.stdin.flush()

    def read_answer(self) -> str:
        return self.process.stdout.readline().rstrip("\n")

    def ask(self, *words: object) -> str:
        self.tell(*words)
        return self.read_answer()

    def end(self) -> int:
        """Let it end as it should; its status."""
        self.process.stdin.close()
        return self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class RealEngine:
    """An engine on a small machine, and what it says; its scratch space is a disk of its own."""

    def __init__(self, home: Path) -> None:
        self.said: list[str] = []
        conf = {"spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "2"}
        settings = load_settings(spark_master="local[2]", spark_conf=conf)
        self.scratch = ScratchDir(home)
        command = partial(connect_server_command, settings, folder=home, scratch=self.scratch)
        environment, log = jvm_environment("local[2]"), home / "engine.log"
        self.server = SparkServer(command, environment, log, self.said.append, self.scratch)
        self.environment = {**os.environ, **self.server.client_environment}

    def wait(self, ready: int) -> None:
        """Until it has been ready so many times."""
        while sum(text.endswith("is ready.") for text in self.said) < ready:
            self.server.keep_running()
            time.sleep(0.1)

    def start_client(self) -> Client:
        return Client(self.environment)

    def asked(self) -> bool:
        """Whether it answers the small query."""
        variables = {**self.environment, "SPARK_REMOTE": self.server.url.partition("/;")[0]}
        command = [sys.executable, "-m", servers.__name__, "120"]
        return subprocess.run(command, env=variables, cwd=PROJECT, check=False).returncode == 0

    def listening(self) -> list[int]:
        """The ports on which it listens."""
        assert self.server._group is not None
        descriptors = Path(f"/proc/{self.server._group._process.pid}/fd")
        sockets = {str(file.readlink()) for file in descriptors.iterdir() if file.is_symlink()}
        lines = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
        rows = [line.split() for line in lines.splitlines()]
        return [
            int(row[1].rpartition(":")[2], 16)
            for row in rows
            if row[3] == "0A" and f"socket:[{row[9]}]" in sockets
        ]


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Iterator[RealEngine]:
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can give an engine a small disk of its own")
    home = tmp_path_factory.mktemp("home")
    disk = home / "scratch"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    running = RealEngine(home)
    try:
        running.wait(1)
        yield running
    finally:
        running.server.stop()
        subprocess.run(["umount", "-l", str(disk)], check=False)


@pytest.fixture(scope="module")
def client(real) -> Iterator[Client]:
    """Of the tests that the engine outlives."""
    started = real.start_client()
    yield started
    started.kill()


@pytest.fixture
def landing(tmp_path) -> Path:
    for number in (1, 2):
        folder = tmp_path / "orders" / f"arrival_date=2024-01-0{number}"
        folder.mkdir(parents=True)
        for name in "abc":
            (folder / f"{name}.jsonl").write_text('{"order_id": "1"}\n' * number)
    return tmp_path


FINE = "([1, 1, 1, 2, 2, 2], [])"
NOT_THE_FILES = "EngineError: the engine's own disk failed ("


def test_a_full_disk_condemns_no_file(real, client, landing):
    assert client.ask("survey", landing) == FINE
    filler = real.scratch.folder.parent / "filler"
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
def test_a_cleared_disk_condemns_no_file_and_the_engine_is_restarted(real, landing):
    starts = sum(text.endswith("is ready.") for text in real.said)
    for blocks in real.scratch.folder.glob("blockmgr-*"):
        shutil.rmtree(blocks)
    before = real.start_client()
    assert NOT_THE_FILES in before.ask("survey", landing)
    before.kill()
    assert not real.asked()
    real.wait(starts + 1)
    assert any("lost files on its disk" in text for text in real.said)
    after = real.start_client()
    assert after.ask("survey", landing) == FINE
    assert after.end() == 0
    assert real.asked()


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
def test_out_of_memory_it_ends_and_is_restarted(real):
    starts = sum(text.endswith("is ready.") for text in real.said)
    greedy = real.start_client()
    greedy.tell("much")
    real.wait(starts + 1)
    greedy.kill()
    assert "The Spark engine ended with status 3: restarting it ..." in real.said
    assert real.asked()


@pytest.mark.slow
def test_many_lines_of_a_megabyte_are_not_too_many(tmp_path):
    """A reader takes few rows at once: long ones end no engine when they are read back."""
    command = [sys.executable, "-W", "ignore", "-c", LONG_LINES, str(tmp_path)]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert result.stdout.strip().endswith("400"), result.stderr[-2000:]
