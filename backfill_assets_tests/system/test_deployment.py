"""The deployment: what it starts, restarts and ends; small fakes stand for Spark and Dagster."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from backfill_assets.cli import main
from backfill_assets.serve import servers, supervisor
from backfill_assets.serve.servers import Server, SparkServer
from backfill_assets.serve.supervisor import DagsterProcess, lock_home, run_deployment, supervise
from backfill_assets.settings import load_settings
from backfill_assets.spark import jars, processes
from backfill_assets.spark.jars import EngineError
from backfill_assets.spark.jvm_launch import ScratchDir
from backfill_assets_tests import conftest
from backfill_assets_tests.helpers.command_line import refusal_message
from backfill_assets_tests.helpers.graphql import ask
from backfill_assets_tests.helpers.paths import BIN, PROJECT, dagster_yaml
from backfill_assets_tests.helpers.process_kills import (
    find_processes,
    is_alive,
    kill_kinds,
    wait_for,
)

TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
QUIET = "DAGSTER_DAEMON_LOG_LEVEL"
RETRIED = "DAGSTER_BACKFILL_RETRY_DEFINITION_CHANGED_ERROR"

#: What both fakes begin with: a line in the diary, by which the tests know who lived when.
BEGINNING = """
import os, signal, subprocess, sys, time
from pathlib import Path
diary = Path(os.environ["DIARY"])
def note(*words):
    with diary.open("a") as out:
        out.write(" ".join(map(str, words)) + "\\n")
def noted(word):
    return [line.split()[1:] for line in diary.read_text().splitlines() if line.split()[0] == word]
"""
SERVE = """
import threading
from concurrent.futures import ThreadPoolExecutor
import grpc
def serve():
    server = grpc.server(ThreadPoolExecutor(1))
    at = sys.argv[1]
    server.add_insecure_port(f"127.0.0.1:{at}" if at.isdigit() else f"unix:{at}")
    server.start()
    note("serving", os.getpid(), at, os.environ.get("SPARK_CONNECT_AUTHENTICATE_TOKEN"))
    signal.sigwait([signal.SIGINT])
    note("server-told")
def talk():
    while True:
        print("x" * 99, flush=True)
        time.sleep(0.01)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
"""
#: A child of the UI's, as its daemon and its runs are.
FAMILY = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
note("ui", os.getpid())
note("child", child.pid)
"""


@pytest.fixture
def diary(monkeypatch, tmp_path) -> Path:
    """Where the fakes write; the deployment is made quick to look and to give up."""
    monkeypatch.setattr(supervisor, "_TICK", 0.02)
    monkeypatch.setattr(servers, "_PROBE_INTERVAL", 0.05)
    monkeypatch.setattr(servers, "_PROBE_TIMEOUT", 0.3)
    end = ((signal.SIGINT, 20.0), (signal.SIGTERM, 20.0))
    monkeypatch.setattr(processes, "_END", end)
    path = tmp_path / "diary"
    path.touch()
    monkeypatch.setenv("DIARY", str(path))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    return path


def diary_entries(diary: Path, word: str) -> list[list[str]]:
    lines = [line.split() for line in diary.read_text().splitlines()]
    return [line[1:] for line in lines if line[0] == word]


def fake_command(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", BEGINNING + code, *map(str, arguments)]


class Fake(SparkServer):
    """A server whose code is a test's own; what it says is kept, and in the diary as well."""

    def __init__(
        self, tmp_path: Path, code: str = "serve()", scratch: ScratchDir | None = None
    ) -> None:
        self.messages: list[str] = []
        self.log = tmp_path / "home" / "server.log"
        self.log.parent.mkdir()
        folder = scratch.folder if scratch else ""

        def command(port: int) -> list[str]:
            return fake_command(SERVE + code, port, folder)

        super().__init__(command, os.environ, self.log, self.say, scratch)

    def say(self, text: str) -> None:
        self.messages.append(text)
        with Path(os.environ["DIARY"]).open("a") as diary:
            diary.write(f"said {text}\n")


def run(ui: str, server: SparkServer | None) -> int:
    variables = server.client_environment if server else {}
    say = server.say if server else print
    parts = [DagsterProcess("UI", fake_command(ui))]
    return supervise(parts, {**os.environ, **variables}, [server] if server else [], say)


def all_gone(diary: Path) -> bool:
    people = [
        *diary_entries(diary, "serving"),
        *diary_entries(diary, "ui"),
        *diary_entries(diary, "child"),
    ]
    return not any(is_alive(person[0]) for person in people)


# What it starts.


def port_of(server: Fake) -> str:
    return re.findall(r"localhost:(\d+)/", server.url)[0]


def test_the_ui_starts_when_the_server_answers_and_knows_where_it_is(diary, tmp_path):
    server = Fake(tmp_path)
    ui = f"note('found', os.environ['SPARK_REMOTE'], os.environ[{TOKEN!r}])"
    assert run(ui + "; note('before', *noted('serving')[0])", server) == 0
    assert diary_entries(diary, "found") == [[server.url, server.token]]
    pid, port, token = diary_entries(diary, "serving")[0]
    assert diary_entries(diary, "before") == [[pid, port, token]]
    assert re.fullmatch(rf"sc://localhost:{port}/;session_id=[0-9a-f-]{{36}}", server.url)
    assert token == server.token
    assert server.messages == [
        f"Starting the Spark engine, its log is {server.log} ...",
        "The Spark engine is ready.",
        "The UI ended with status 0: ending the deployment ...",
    ]
    assert all_gone(diary)


@pytest.mark.parametrize(("ends", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
def test_the_exit_status_of_the_ui(diary, tmp_path, ends, status):
    assert run(FAMILY + ends, Fake(tmp_path)) == status
    assert diary_entries(diary, "server-told") == [[]]
    assert all_gone(diary)


def test_the_parts_of_dagster_end_together(diary):
    """Where one has ended, the other would go on without schedules, or unseen."""
    ends = "\nwhile not noted('child'): time.sleep(0.02)\nsys.exit(5)"
    parts = [
        DagsterProcess("web server", fake_command(FAMILY + "time.sleep(600)")),
        DagsterProcess("daemon", fake_command(ends)),
    ]
    messages: list[str] = []
    assert supervise(parts, os.environ, [], messages.append) == 5
    assert messages == ["The daemon ended with status 5: ending the deployment ..."]
    assert all_gone(diary)


def test_the_port_is_none_that_a_client_could_take(diary, tmp_path):
    server = Fake(tmp_path)
    port = int(port_of(server))
    assert 15002 <= port < 32768
    try:
        other = socket.create_server(("::1", port), family=socket.AF_INET6)
    except OSError:  # held by the server, or there is no IPv6 here
        return
    other.close()
    pytest.fail("somebody else could listen where `localhost` leads first")


def test_a_server_that_is_not_there_yet_is_waited_for(diary, tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "_PROBE_TIMEOUT", 0.05)
    monkeypatch.setattr(servers, "_MAX_FAILED_PROBES", 1)
    monkeypatch.setattr(servers, "_PROBE_INTERVAL", 600)  # once there, on a busy machine it is slow
    server = Fake(tmp_path, "note('serving', os.getpid()); time.sleep(2); serve()")
    assert run("note('ui', os.getpid())", server) == 0
    assert len(diary_entries(diary, "serving")) == 2  # from one process
    assert server.messages[1:-1] == ["The Spark engine is ready."]


def test_servers_at_a_port_and_at_a_socket(diary, tmp_path, monkeypatch):
    """The second is a code server: the runs that it started live on without it."""
    # The children of a fake that serves do not hear SIGINT.
    monkeypatch.setattr(processes, "_END", ((signal.SIGINT, 1.0), (signal.SIGTERM, 20.0)))
    engine, at = Fake(tmp_path), str(tmp_path / "code.sock")
    family = FAMILY.replace('"ui"', '"code"')
    code = Server(
        "code server", fake_command(SERVE + family + "serve()", at), at, os.environ, engine.say
    )
    ui = """
os.kill(int(noted("code")[0][0]), signal.SIGKILL)
while len(noted("serving")) < 3: time.sleep(0.02)
os.kill(int(noted("child")[0][0]), 0)
note("ui", os.getpid())
"""
    assert (
        supervise([DagsterProcess("UI", fake_command(ui))], os.environ, [engine, code], engine.say)
        == 0
    )
    assert len(diary_entries(diary, "ui")) == 1
    assert "The code server ended with status -9: restarting it ..." in engine.messages
    assert sorted(row[1] for row in diary_entries(diary, "serving")) == sorted(
        [port_of(engine), at, at]
    )
    assert all_gone(diary)


# What it restarts.


def test_a_server_that_dies_is_restarted(diary, tmp_path):
    server = Fake(tmp_path)
    ui = """
os.kill(int(noted("serving")[0][0]), signal.SIGKILL)
while len(noted("serving")) < 2: time.sleep(0.02)
"""
    assert run(ui, server) == 0
    first, second = diary_entries(diary, "serving")
    assert first[0] != second[0]
    assert first[1:] == second[1:]  # port and token
    assert "The Spark engine ended with status -9: restarting it ..." in server.messages
    assert all_gone(diary)


def test_a_server_that_hangs_is_restarted(diary, tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "_PROBE_TIMEOUT", 0.5)
    monkeypatch.setattr(servers, "_MAX_FAILED_PROBES", 2)
    server = Fake(tmp_path)
    ui = """
os.kill(int(noted("serving")[0][0]), signal.SIGSTOP)
while len(noted("serving")) < 2: time.sleep(0.02)
"""
    assert run(ui, server) == 0
    assert "The Spark engine does not answer any more: restarting it ..." in server.messages
    assert all_gone(diary)


def test_one_missed_probe_is_nothing(diary, tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "_PROBE_TIMEOUT", 0.1)
    server = Fake(tmp_path)
    ui = """
pid = int(noted("serving")[0][0])
for _ in range(3):
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.4)
    os.kill(pid, signal.SIGCONT)
    time.sleep(0.4)
"""
    assert run(ui, server) == 0
    assert len(diary_entries(diary, "serving")) == 1


def test_a_server_that_dies_at_once_ends_it(diary, tmp_path):
    server = Fake(tmp_path, "note('tried'); print('no heap'); sys.exit(7)")
    with pytest.raises(EngineError) as caught:
        run(FAMILY, server)
    assert len(diary_entries(diary, "tried")) == 3
    assert server.log.read_text() == "no heap\n" * 3
    assert str(server.log) in str(caught.value)
    assert "ended with status 7" in str(caught.value)
    assert diary_entries(diary, "ui") == []


@pytest.mark.parametrize(("steady", "deaths"), [(60.0, 3), (0.0, 6)])
def test_only_deaths_right_after_a_start_are_counted(diary, tmp_path, monkeypatch, steady, deaths):
    monkeypatch.setattr(servers, "_STABLE_SECONDS", steady)
    server = Fake(tmp_path)
    ui = (
        FAMILY
        + """
for n in range(6):
    # A server takes connections a moment before it notes that.
    while len(noted("serving")) <= n: time.sleep(0.02)
    os.kill(int(noted("serving")[n][0]), signal.SIGKILL)
    while diary.read_text().count("is ready") < n + 2: time.sleep(0.02)
"""
    )
    if deaths == 6:
        assert run(ui, server) == 0
    else:
        with pytest.raises(EngineError, match="3 times in a row"):
            run(ui, server)
    assert len(diary_entries(diary, "serving")) == (7 if deaths == 6 else 3)
    assert all_gone(diary)


def test_a_server_that_computes_nothing_is_restarted(diary, tmp_path, monkeypatch):
    health_answers = iter([True, False])
    monkeypatch.setattr(servers.HealthProbe, "is_good", lambda _: next(health_answers, True))
    server = Fake(tmp_path)
    assert run("\nwhile len(noted('serving')) < 2: time.sleep(0.02)", server) == 0
    message = "The Spark engine takes connections and does not compute any more: restarting it ..."
    assert message in server.messages
    assert all_gone(diary)


def test_a_server_whose_disk_was_cleared_is_restarted(diary, tmp_path):
    scratch = ScratchDir(tmp_path)
    fakes = "Path(sys.argv[2], 'blockmgr-1', '0a').mkdir(parents=True); serve()"
    server = Fake(tmp_path, fakes, scratch)
    ui = f"""
import shutil
shutil.rmtree({str(scratch.folder / "blockmgr-1")!r})
while len(noted("serving")) < 2: time.sleep(0.02)
"""
    assert run(ui, server) == 0
    reason = f"lost files on its disk (somebody cleared {scratch.folder}): restarting it ..."
    assert f"The Spark engine {reason}" in server.messages
    assert all_gone(diary)


def test_a_log_that_has_grown_is_begun_anew(diary, tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "_LOG_BYTES", 1000)
    server = Fake(tmp_path, "threading.Thread(target=talk, daemon=True).start(); serve()")
    ui = f"""
log = Path({str(server.log)!r})
while not Path(f"{{log}}.1").exists() or not log.exists(): time.sleep(0.02)
"""
    assert run(ui, server) == 0
    assert set(server.log.read_text() + Path(f"{server.log}.1").read_text()) <= {"x", "\n"}
    assert server.log.stat().st_size < 100_000


# How it ends.


@pytest.fixture
def _hanging_up():
    """Heeded, also where whoever started the tests has them ignore it, as nohup does."""
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, inherited)


@pytest.mark.usefixtures("_hanging_up")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_the_ui_first(diary, tmp_path, number):
    before = signal.getsignal(number)
    ui = (
        FAMILY
        + f"""
try:
    os.kill(os.getppid(), {int(number)})
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(0.5)
    note("ui-told", *noted("server-told"))
"""
    )
    assert run(ui, Fake(tmp_path)) == 0
    assert diary.read_text().splitlines()[-2:] == ["ui-told", "server-told"]
    assert all_gone(diary)
    assert signal.getsignal(number) == before


def test_what_does_not_want_to_end_is_killed(diary, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_END", ((signal.SIGINT, 0.2), (signal.SIGTERM, 0.2)))
    deaf = "for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)\n"
    ui = deaf + FAMILY + "os.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(600)"
    assert run(ui, Fake(tmp_path)) == 0
    assert all_gone(diary)


def test_nohup_is_respected(diary, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ui = "os.kill(os.getppid(), signal.SIGHUP); time.sleep(0.5); sys.exit(4)"
        assert run(ui, None) == 4
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_it(diary, tmp_path, number):
    """In a script's background, where SIGINT is ignored; a kill is the guards' affair."""
    code = f"""
from pathlib import Path
from backfill_assets_tests.system.test_deployment import FAMILY, Fake, run
run(FAMILY + "time.sleep(600)", Fake(Path({str(tmp_path)!r})))
"""
    command = ["bash", "-c", 'trap "" INT; exec "$@"', "-", sys.executable, "-c", code]
    process = subprocess.Popen(command, cwd=PROJECT)
    wait_for(lambda: diary_entries(diary, "child") or process.poll() is not None)
    assert not all_gone(diary)
    process.send_signal(number)
    assert process.wait() == (-9 if number == signal.SIGKILL else 0)
    wait_for(lambda: all_gone(diary))


# What is deployed.


@pytest.fixture
def supervised(monkeypatch, tmp_path) -> list[tuple]:
    """What would be run, without Java and jars."""
    calls: list[tuple] = []

    def supervise(parts, environment, servers, _):
        (workspace,) = {
            word for part in parts for word in part.command if word.endswith("workspace.yaml")
        }
        read = yaml.safe_load(Path(workspace).read_text())
        calls.append((parts, environment, servers, read))
        return 0

    monkeypatch.setattr(supervisor, "supervise", supervise)
    monkeypatch.setattr(jars, "check_java", lambda: None)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    return calls


@pytest.fixture
def listening() -> Iterator[list[socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield [listener]


def test_dagster_gets_an_engine_and_a_code_server(supervised, listening, monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "")
    assert run_deployment(load_settings(), listening, print) == 0
    (((ui, daemon), environment, (engine, code), workspace),) = supervised
    number = listening[0].fileno()
    assert ui.command[1:3] == ["-m", "backfill_assets.serve.webserver"]
    assert ui.command[-2:] == ["--listening", str(number)]
    assert list(ui.inherits) == [number]
    assert daemon.command[1:4] == ["-m", "dagster._daemon", "run"]
    (module,) = yaml.safe_load((PROJECT / "workspace.yaml").read_text())["load_from"]
    (location,) = workspace["load_from"]
    assert location["grpc_server"] == {
        "socket": code._address,
        "location_name": module["python_module"],
    }
    assert code._environment == environment
    assert environment["SPARK_REMOTE"] == engine.url
    assert environment[TOKEN] == engine.token
    assert environment[RETRIED] == "1"
    assert environment[QUIET] == "warning"
    assert environment["no_grpc_proxy"] == "localhost"
    commands = [*ui.command, *daemon.command, *engine._command, *code._command]
    assert engine.token not in " ".join([*commands, engine.url])


def ui_command(listening) -> list[str]:
    """The command on a port that is free until then."""
    port = listening[0].getsockname()[1]
    listening[0].close()
    return ["ui", "--port", str(port)]


def test_the_users_engine_is_used(supervised, listening, monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://cluster:15002")
    command = ui_command(listening)
    assert main(command) == 0
    ((_, environment, (code,), _),) = supervised
    assert code._environment == environment
    links = {"BACKFILL_ASSETS_UI_URL": f"http://127.0.0.1:{command[-1]}"}
    assert environment == {**os.environ, RETRIED: "1", QUIET: "warning", **links}


def test_without_a_home_nothing_starts(supervised, listening, monkeypatch, capsys):
    monkeypatch.delenv("DAGSTER_HOME")
    monkeypatch.setattr("backfill_assets.cli.deployment._fetch_jars", pytest.fail)
    assert main(ui_command(listening)) == 3
    assert "DAGSTER_HOME is not set" in refusal_message(capsys, "ui")
    assert supervised == []


def test_without_java(listening, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert main(ui_command(listening)) == 3
    message = capsys.readouterr().err
    assert message.startswith("backfill-assets ui: Spark needs Java 17 or 21 and there is none")
    assert message.count("\n") == 1


def test_a_port_that_cannot_be_had(supervised, listening, monkeypatch, capsys):
    """It is found before jars are fetched or anything is started."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://cluster:15002")
    monkeypatch.setattr("backfill_assets.cli.deployment._fetch_jars", pytest.fail)
    port = listening[0].getsockname()[1]
    assert main(["ui", "--port", str(port)]) == 3
    message = capsys.readouterr().err
    assert message.startswith(
        f"backfill-assets ui: port {port} of 127.0.0.1 cannot be had (Address"
    )
    assert message.endswith("give another with --port. Nothing was started.\n")
    for wrong in ("0", "65536", "x"):
        assert main(["ui", "--port", wrong]) == 2
    assert supervised == []


def test_a_home_that_has_a_deployment(supervised, listening, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("SPARK_REMOTE", "sc://cluster:15002")
    monkeypatch.setattr("backfill_assets.cli.deployment._fetch_jars", pytest.fail)
    with lock_home(tmp_path, 3017):
        assert main(ui_command(listening)) == 3
    message = refusal_message(capsys, "ui")
    assert f"is that of another deployment: process {os.getpid()}, its UI at http://127" in message
    assert supervised == []


def test_a_home_is_closed_to_the_other_users(supervised, listening, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("SPARK_REMOTE", "sc://cluster:15002")
    tmp_path.chmod(0o755)
    assert main(ui_command(listening)) == 0
    assert f"DAGSTER_HOME={tmp_path} was open to other users" in capsys.readouterr().out
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("command", [["ui"], ["plans"], ["night"], ["backfill", "x"]])
@pytest.mark.parametrize("given", ["relative", "/no/such/folder"])
def test_a_home_that_dagster_would_not_take(supervised, monkeypatch, capsys, command, given):
    monkeypatch.setenv("DAGSTER_HOME", given)
    assert main(command) == 3
    output = capsys.readouterr()
    assert output.err.startswith(f"backfill-assets {command[0]}: DAGSTER_HOME={given} is ")
    assert output.err.count("\n") == 1
    assert supervised == []


def test_a_deployment_that_ends_badly(supervised, listening, monkeypatch, capsys):
    monkeypatch.setenv("SPARK_REMOTE", "sc://cluster:15002")
    monkeypatch.setattr(supervisor, "supervise", lambda *_: 1)
    assert main(ui_command(listening)) == 3
    assert "a part of it ended with status 1" in capsys.readouterr().err


def test_passwords_that_cannot_be_read_end_it_at_once(supervised, listening, monkeypatch, capsys):
    monkeypatch.setenv("BACKFILL_ASSETS_UI_PASSWORDS", "/no/such/file")
    monkeypatch.setenv("SPARK_REMOTE", "sc://cluster:15002")
    assert main(ui_command(listening)) == 3
    assert "UI_PASSWORDS=/no/such/file cannot be read" in refusal_message(capsys, "ui")
    assert supervised == []


# The real thing.

CLIENT = """
from backfill_assets.settings import load_settings
from backfill_assets.spark.jars import EngineError
from backfill_assets.spark.session import Engine
try:
    spark = Engine.from_settings(load_settings()).spark_session
    print(spark.range(4).count(), spark.conf.get("spark.sql.extensions"))
except EngineError as error:
    print(error)
"""


@pytest.fixture
def home(tmp_path) -> Iterator[Path]:
    """A Dagster home; whatever names it in its environment is ended with the test."""
    path = tmp_path / "home"
    path.mkdir()
    shutil.copy(dagster_yaml(), path / "dagster.yaml")
    yield path
    kill_kinds(path)


def find_process(home: Path, command: str) -> int:
    """The process with this command; what it was started by and what guards it are not it."""
    pids = [pid for pid, words in find_processes(home).items() if command in words]
    return next(pid for pid in pids if "os.fork" not in find_processes(home)[pid])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_real_thing(home, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log_file = tmp_path / "said"
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    small = json.dumps({**conftest.SMALL, "spark.master": "local[2]"})
    with log_file.open("wb") as out:
        deployment_process = subprocess.Popen(
            [str(BIN / "backfill-assets"), "ui", "--port", str(port)],
            env={**inherited, "DAGSTER_HOME": str(home), "BACKFILL_ASSETS_SPARK_CONF": small},
            cwd=tmp_path,
            stdout=out,
            stderr=out,
        )
    try:
        wait_for(
            lambda: (
                b"Dagster's UI is at" in log_file.read_bytes()
                or deployment_process.poll() is not None
            )
        )
        assert deployment_process.poll() is None, log_file.read_text()
        variables = (
            Path(f"/proc/{find_process(home, 'dagster._daemon')}/environ").read_bytes().split(b"\0")
        )
        environment = dict(text.decode().split("=", 1) for text in variables if text)
        token = environment[TOKEN]

        def run_client(**changed: str) -> str:
            result = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", CLIENT],
                env={**environment, **changed},
                cwd=PROJECT,
                capture_output=True,
                text=True,
                check=True,
            )
            return result.stdout

        right = "4 io.delta.sql.DeltaSparkSessionExtension\n"
        assert run_client() == right
        assert run_client(
            **{TOKEN: "", "SPARK_REMOTE": f"{environment['SPARK_REMOTE']}/;token={token}"}
        )
        assert "Invalid authentication token" in run_client(**{TOKEN: "wrong"})
        del environment[TOKEN]
        assert "No authentication token provided" in run_client()
        environment[TOKEN] = token

        os.kill(find_process(home, "SparkConnectServer"), signal.SIGKILL)
        wait_for(lambda: log_file.read_text().count("The Spark engine is ready.") == 2)
        assert "The Spark engine ended with status -9: restarting it ..." in log_file.read_text()
        assert run_client() == right

        os.kill(find_process(home, "backfill_assets.dagster_ext.code_server"), signal.SIGKILL)
        wait_for(lambda: log_file.read_text().count("The code server is ready.") == 2)
        query = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }"

        def location_is_loaded() -> bool:
            return bool(ask(f"http://127.0.0.1:{port}", query).get("nodes"))

        wait_for(location_is_loaded)

        assert not any(token in command for command in find_processes(home).values())
        assert token not in log_file.read_text()
        files = [path for path in home.rglob("*") if path.is_file()]
        assert home / "spark-connect.log" in files
        assert not [path for path in files if token.encode() in path.read_bytes()]
    finally:
        deployment_process.kill()
        deployment_process.wait()
    wait_for(lambda: not find_processes(home))
