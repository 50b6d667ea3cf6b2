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

CLIENT = """
import os, sys
from datetime import date
from backfill_assets.calendar.partitions import Window
from backfill_assets.spark.frames import cache_frames
from backfill_assets.spark.session import Engine
from backfill_assets.landing.files import probe_files
from backfill_assets.orders.tables import ORDER_LINES
from backfill_assets.settings import load_settings
spark = Engine.from_settings(load_settings()).spark_session
"""
SURVEY = """
files = probe_files(spark, sys.argv[1], ORDER_LINES, Window(date(2024, 1, 1), date(2024, 1, 3)))
print(sorted(files.line_counts.values()), list(files.broken.values()))
"""
#: Caches a frame and tells of it; then it is killed, or ends as it should.
CACHING = """
with cache_frames() as cache:
    kept = cache(spark.range(100))
    print(kept.count(), kept.groupBy().sum("id").collect()[0][0], flush=True)
    input()
"""
VIEWS = "print(len(spark.sql('SHOW VIEWS IN global_temp').collect()))"
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
MUCH = "spark.range(1).selectExpr('length(repeat(string(id), 1900000000))').collect()"


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

    def start(self, code: str, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CLIENT + code, *map(str, arguments)],
            env=self.environment,
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def says(self, code: str, *arguments: object) -> str:
        """What a client prints, or the last line of its error."""
        out, error = self.start(code, *arguments).communicate()
        return out.strip() or error.strip().splitlines()[-1]

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


@pytest.fixture
def landing(tmp_path) -> Path:
    for number in (1, 2):
        folder = tmp_path / "orders" / f"arrival_date=2024-01-0{number}"
        folder.mkdir(parents=True)
        for name in "abc":
            (folder / f"{name}.jsonl").write_text('{"order_id": "1"}\n' * number)
    return tmp_path


FINE = "[1, 1, 1, 2, 2, 2] []"
NOT_THE_FILES = "EngineError: the engine's own disk failed ("


def test_a_full_disk_condemns_no_file(real, landing):
    assert real.says(SURVEY, landing) == FINE
    filler = real.scratch.folder.parent / "filler"
    try:
        for _attempt in range(5):  # Spark may free space after a fill: it clears shuffles later
            with pytest.raises(OSError, match="No space left"), filler.open("ab") as file:
                while True:
                    file.write(bytes(2**20))
                    file.flush()
            message = real.says(SURVEY, landing)
            if message != FINE:
                break
    finally:
        filler.unlink()
    assert NOT_THE_FILES in message
    assert "no file is at fault" in message
    assert real.says(SURVEY, landing) == FINE  # it has recovered by itself


@pytest.mark.slow
def test_a_cleared_disk_condemns_no_file_and_the_engine_is_restarted(real, landing):
    starts = sum(text.endswith("is ready.") for text in real.said)
    for blocks in real.scratch.folder.glob("blockmgr-*"):
        shutil.rmtree(blocks)
    assert NOT_THE_FILES in real.says(SURVEY, landing)
    assert not real.asked()
    real.wait(starts + 1)
    assert any("lost files on its disk" in text for text in real.said)
    assert real.says(SURVEY, landing) == FINE
    assert real.asked()


def test_what_a_killed_run_kept_is_released_and_what_a_live_one_keeps_is_not(real):
    killed, lives = real.start(CACHING), real.start(CACHING)
    for client in (killed, lives):
        assert client.stdout.readline() == "100 4950\n"
    killed.kill()
    killed.wait()
    assert real.says(VIEWS) == "2"
    assert real.asked()
    assert real.says(VIEWS) == "1"
    out, error = lives.communicate("\n")
    assert (lives.returncode, out) == (0, ""), error
    assert real.says(VIEWS) == "0"


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
    client = real.start(MUCH)
    real.wait(starts + 1)
    client.kill()
    client.wait()
    assert "The Spark engine ended with status 3: restarting it ..." in real.said
    assert real.asked()


@pytest.mark.slow
def test_many_lines_of_a_megabyte_are_not_too_many(tmp_path):
    """A reader takes few rows at once: long ones end no engine when they are read back."""
    command = [sys.executable, "-W", "ignore", "-c", LONG_LINES, str(tmp_path)]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert result.stdout.strip().endswith("400"), result.stderr[-2000:]
