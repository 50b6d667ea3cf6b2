"""A Spark Connect server as a deployment has it, with a small disk of its own, and its clients."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from backfill_assets.serve import servers
from backfill_assets.serve.servers import SparkServer
from backfill_assets.settings import load_settings
from backfill_assets.spark.configuration import connect_server_command
from backfill_assets.spark.jvm_launch import ScratchDir
from backfill_assets.spark.processes import jvm_environment
from backfill_assets.spark.tasks import build_task_times
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
    """An engine that a process of this machine starts again where it ends.

    Attributes:
        disk: that of its scratch space, if it has one of its own.
        said: what is said of it.
        scratch: its scratch space.
    """

    def __init__(self, home: Path, conf: Mapping[str, str], disk: Path | None) -> None:
        self.said: list[str] = []
        self.disk = disk
        settings = load_settings(spark_master="local[2]", spark_conf=dict(conf))
        build_task_times(settings.jars)  # as the commands that start one do
        self.scratch = ScratchDir(home)
        command = partial(connect_server_command, settings, folder=home, scratch=self.scratch)
        environment, log = jvm_environment("local[2]"), home / "engine.log"
        self.server = SparkServer(command, environment, log, self.said.append, self.scratch)

    @property
    def url(self) -> str:
        """Its URL, with its token."""
        return f"{self.server.url};token={self.server.token}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its clients."""
        return {**os.environ, **self.server.client_environment}

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


@contextmanager
def run_engine(home: Path, conf: Mapping[str, str]) -> Iterator[RealEngine]:
    """An engine that is ready, until the end; where it can be, its disk has 64 MB."""
    disk = home / "scratch"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(disk)]
    is_mounted = (
        os.geteuid() == 0
        and shutil.which("mount") is not None
        and subprocess.run(mount, check=False, capture_output=True).returncode == 0
    )
    running = RealEngine(home, conf, disk if is_mounted else None)
    try:
        running.wait(1)
        yield running
    finally:
        running.server.stop()
        if is_mounted:
            subprocess.run(["umount", "-l", str(disk)], check=False)
