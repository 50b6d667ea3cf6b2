"""The processes of the engine: their environment, their groups, their garbage collection.

A shell, cron and systemd each pass on other variables. How Spark computes is decided by the
deployment's settings alone, so that the same command gives the same rows wherever it is called.

And when a process began, by which it is told from a later one with the same id.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import math
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

#: Spark's own name; both its server and its client read the token from there.
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
#: What PySpark gives to `spark-submit`.
SUBMIT_ARGS_VARIABLE = "PYSPARK_SUBMIT_ARGS"
#: Names another Spark, its configuration, or options that go before those of the deployment.
_SPARK_VARIABLES = re.compile(r"(PY)?SPARK_.+|_JAVA_OPTIONS")
_PASSED_ON = frozenset({TOKEN_VARIABLE, "SPARK_LOCAL_DIRS", "SPARK_USER"})
#: What executors on other machines need: their Python, and how they reach the driver.
_PASSED_ON_TO_CLUSTERS = frozenset({"PYSPARK_PYTHON", "SPARK_LOCAL_HOSTNAME", "SPARK_PUBLIC_DNS"})
#: pandera sets it in each process that imports it; no executor elsewhere would reach the driver.
_PANDERA_VARIABLE = ("SPARK_LOCAL_IP", "127.0.0.1")
#: PySpark, or this package, sets them in a process that has a session.
_SESSION_VARIABLES = frozenset(
    {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_CONNECT_MODE_ENABLED"}
)
#: Options that every JVM adds to its own; a bad one keeps it from starting.
_JVM_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
_UTF_8 = "C.UTF-8"


def spark_home() -> Path:
    """The folder of Spark's distribution, which is that of the Python package."""
    import pyspark

    return Path(pyspark.__path__[0])


def is_local(master: str) -> bool:
    """Whether a master URL means that the driver is its own executor: `local[*]` and its kind."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def jvm_environment(master: str) -> dict[str, str]:
    """The environment of a JVM of Spark's: that of this process, and in it our Spark and Python.

    Variables of another Spark and `_JAVA_OPTIONS`, which goes before all other options, are left
    out. `JAVA_TOOL_OPTIONS` and `JDK_JAVA_OPTIONS` are passed on.

    Args:
        master: the master URL of the driver. Executors on other machines have their own Python.
    """
    local = is_local(master)
    passed_on = _PASSED_ON if local else _PASSED_ON | _PASSED_ON_TO_CLUSTERS
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in passed_on or not _SPARK_VARIABLES.fullmatch(name)
    }
    environment["SPARK_HOME"] = str(spark_home())
    if local:
        environment["PYSPARK_PYTHON"] = sys.executable
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        # A worker imports the module of a UDF from where this process looks for a project's, too.
        folders = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(folders)
    if sys.platform == "linux":
        # By its locale a JVM takes and gives names of files.
        environment["LC_ALL"] = _UTF_8
    return environment


def choose_pyspark_api() -> None:
    """Let PySpark make columns and UDFs for a Connect server, if the environment names one.

    PySpark chooses when a UDF is made. Modules that declare tables are imported before there is a
    session, and it would choose the other.
    """
    if os.environ.get("SPARK_REMOTE"):
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # so does Spark's own builder


def ignored_variables(master: str) -> list[str]:
    """Names of variables of this process that its JVMs are not given as they are.

    Args:
        master: the master URL of the driver.
    """
    passed_on = jvm_environment(master)
    variables = os.environ.items() - {_PANDERA_VARIABLE}
    names = {name for name, value in variables if passed_on.get(name) != value}
    # Of PYTHONPATH all is passed on, and more.
    return sorted(names - {"SPARK_REMOTE", "LC_ALL", "PYTHONPATH"} - _SESSION_VARIABLES)


@contextmanager
def use_jvm_environment(master: str) -> Iterator[None]:
    """Have this process the environment of its JVM meanwhile, for PySpark to pass it on.

    Args:
        master: the master URL of the driver.
    """
    previous, passed_on = dict(os.environ), jvm_environment(master)
    # Others stay untouched: PySpark sets some of its own, and other threads may read them.
    names = {name for name, _ in previous.items() ^ passed_on.items()} | {SUBMIT_ARGS_VARIABLE}
    _set_variables(names, passed_on)
    try:
        yield
    finally:
        _set_variables(names, previous)


def _set_variables(names: Iterable[str], environment: Mapping[str, str]) -> None:
    for name in names:
        if name in environment:
            os.environ[name] = environment[name]
        else:
            os.environ.pop(name, None)


def environment_problem() -> str:
    """What of the environment no JVM can do with, in one sentence; empty if there is nothing."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return (
            f"the user id {os.geteuid()} has no name on this machine, and Hadoop, which Spark "
            "uses, does not log in without: add a line for it to /etc/passwd, or run as a user "
            "that has one."
        )
    encoding = sys.getfilesystemencoding()
    if encoding.lower() != "utf-8":
        return (
            f"Python takes names of files as {encoding}, and the engine as UTF-8: set "
            f"LC_ALL={_UTF_8}."
        )
    return ""


def jvm_options() -> dict[str, str]:
    """The options that variables of the environment give to every JVM, by variable."""
    return {name: os.environ[name] for name in _JVM_OPTIONS if os.environ.get(name)}


#: What ends a process group, and the seconds that it has for it; what is left then is killed.
#: To Dagster SIGINT is Ctrl-C; run workers then record their runs as failed.
_END = ((signal.SIGINT, 60.0), (signal.SIGTERM, 15.0))

#: Becomes the command, and leaves a guard behind, outside of the command's process group. The guard
#: waits for a byte; the end of the pipe instead means that nobody is left to end the group.
_GUARD_SCRIPT = """
import os, signal, sys
group = os.getpid()
if os.fork() == 0:
    os.setsid()
    if not os.read(0, 1):
        os.killpg(group, signal.SIGKILL)
    os._exit(0)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class ProcessGroup:
    """A command and all that it starts: a process group that does not outlive this process.

    (The kernel's own way, PR_SET_PDEATHSIG, reaches the command alone, and not what it started.)
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path | None = None,
        inherits: Sequence[int] = (),
    ) -> None:
        """Start it.

        Args:
            command: the command.
            environment: that of the command.
            log: the file that takes its output, rather than the terminal; it runs in that folder.
            inherits: the descriptors that it has of this process, under their numbers.
        """
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(log.open("ab")) if log else None
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _GUARD_SCRIPT, *command],
                env=environment,
                cwd=log.parent if log else None,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
                pass_fds=inherits,
            )

    def exit_status(self) -> int | None:
        """The exit status of the command, or none while it runs."""
        return self._process.poll()

    def processor_seconds(self) -> float:
        """What the command itself has used of processors so far; infinite if that is not known."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:  # not Linux, or it has ended
            return math.inf
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def kill_command(self) -> None:
        """Kill the command itself; what it started lives on."""
        self._process.kill()
        self._process.wait()

    def is_alive(self) -> bool:
        """Whether anything of the group still runs."""
        return self._send_signal(0)

    def terminate(self) -> None:
        """End what still runs of the group, and wait until it has ended."""
        for signal_number, seconds in (*_END, (signal.SIGKILL, 5.0)):
            deadline = time.monotonic() + seconds
            if self._send_signal(signal_number):
                while self.is_alive() and time.monotonic() < deadline:
                    time.sleep(0.1)
        self._process.wait()
        assert self._process.stdin is not None
        # Closing the pipe is enough where the guard was killed.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b".")
            self._process.stdin.close()

    def _send_signal(self, signal_number: int) -> bool:
        """Send a signal to the group; whether anything is left of it."""
        self._process.poll()  # what has ended and nobody asked for still counts as running
        try:
            os.killpg(self._process.pid, signal_number)
        except (ProcessLookupError, PermissionError):  # the latter is macOS's word for it
            return False
        return True


def process_start_time(pid: int) -> str | None:
    """When a process began, as the system counts it; None if there is no such process."""
    try:
        # The name of the command, which may hold anything, ends at the last bracket.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "0"  # a system that does not tell


@contextmanager
def pause_gc() -> Iterator[None]:
    """Without garbage collection, as where much is made of which nothing is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def tune_gc() -> None:
    """Look for garbage after 50,000 new objects, not 700, and not at the end of the process.

    What a process imports and defines lives to its end. To look through it took 0.4 seconds of the
    imports, and 0.8 seconds of the end.
    """
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
