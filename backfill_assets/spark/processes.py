"""The processes of the engine: environment variables, process groups, start times, and GC.

A shell, cron and systemd each pass other variables. Only the deployment's settings decide how Spark
computes, so that a command gives the same rows wherever it is called.
"""

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

#: Spark's own name; its server and its client read the token from it.
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
#: The arguments that PySpark passes to `spark-submit`.
SUBMIT_ARGS_VARIABLE = "PYSPARK_SUBMIT_ARGS"
#: Variables that name another Spark or its configuration, or options that override the
#: deployment's.
_SPARK_VARIABLES = re.compile(r"(PY)?SPARK_.+|_JAVA_OPTIONS")
_PASSED_ON = frozenset({TOKEN_VARIABLE, "SPARK_LOCAL_DIRS", "SPARK_USER"})
#: What executors on other machines need: their Python, and the driver's address.
_PASSED_ON_TO_CLUSTERS = frozenset({"PYSPARK_PYTHON", "SPARK_LOCAL_HOSTNAME", "SPARK_PUBLIC_DNS"})
#: pandera sets it on import; executors on other machines could not reach the driver.
_PANDERA_VARIABLE = ("SPARK_LOCAL_IP", "127.0.0.1")
#: Set by PySpark or this package in a process that has a session.
_SESSION_VARIABLES = frozenset(
    {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_CONNECT_MODE_ENABLED"}
)
#: Options that every JVM adds to its own; a bad one prevents its start.
_JVM_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
_UTF_8 = "C.UTF-8"


def spark_home() -> Path:
    """The folder of Spark's distribution in the Python package."""
    import pyspark

    return Path(pyspark.__path__[0])


def is_local(master: str) -> bool:
    """Whether a master URL means that the driver is its own executor, such as `local[*]`."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def jvm_environment(master: str) -> dict[str, str]:
    """The environment of a Spark JVM: that of this process, with our Spark and Python.

    Variables of another Spark and `_JAVA_OPTIONS`, which overrides all other options, are left out.
    `JAVA_TOOL_OPTIONS` and `JDK_JAVA_OPTIONS` are passed on. Executors on other machines keep their
    own Python.
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
        # A Python worker must find the module of a UDF where this process finds it.
        folders = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(folders)
    if sys.platform == "linux":
        # A JVM encodes file names by its locale.
        environment["LC_ALL"] = _UTF_8
    return environment


def choose_pyspark_api() -> None:
    """Make PySpark build columns and UDFs for a Connect server, if the environment names one.

    PySpark decides when a UDF is created: in modules that declare tables that is before there is a
    session, and it would decide for the embedded one.
    """
    if os.environ.get("SPARK_REMOTE"):
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # so does Spark's own builder


def ignored_variables(master: str) -> list[str]:
    """Names of variables of this process that its JVMs do not get, or get changed."""
    passed_on = jvm_environment(master)
    variables = os.environ.items() - {_PANDERA_VARIABLE}
    names = {name for name, value in variables if passed_on.get(name) != value}
    # PYTHONPATH is passed on and extended.
    return sorted(names - {"SPARK_REMOTE", "LC_ALL", "PYTHONPATH"} - _SESSION_VARIABLES)


@contextmanager
def use_jvm_environment(master: str) -> Iterator[None]:
    """Give this process the environment of its JVM until the block ends; PySpark passes it on."""
    previous, passed_on = dict(os.environ), jvm_environment(master)
    # Other variables stay untouched: PySpark sets some, and other threads may read them.
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
    """Why no JVM can start in this environment, in one sentence; empty if it can."""
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
    """The options that environment variables give to every JVM, by variable."""
    return {name: os.environ[name] for name in _JVM_OPTIONS if os.environ.get(name)}


#: The signals that end a process group, and the seconds to wait after each; then it is killed.
#: Dagster takes SIGINT for Ctrl-C: run workers then record their runs as failed.
_END = ((signal.SIGINT, 60.0), (signal.SIGTERM, 15.0))

#: Becomes the command, and leaves a guard process outside of the command's process group. The guard
#: waits for a byte; the end of the pipe instead means that the parent is gone, and the guard ends
#: the group.
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
    """A command and its children: a process group that does not outlive this process.

    Its output goes to the file `log`, in whose folder it runs, or to the terminal. (The kernel's
    PR_SET_PDEATHSIG reaches only the command, not its children.)
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path | None = None,
        inherits: Sequence[int] = (),
    ) -> None:
        """Start the command; it inherits some file descriptors under the same numbers."""
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
        """The exit status of the command; None while it runs."""
        return self._process.poll()

    def processor_seconds(self) -> float:
        """The processor seconds of the command itself so far; infinite if unknown."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:  # not Linux, or it has ended
            return math.inf
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def kill_command(self) -> None:
        """Kill the command itself; its children live on."""
        self._process.kill()
        self._process.wait()

    def is_alive(self) -> bool:
        """Whether any process of the group still runs."""
        return self._send_signal(0)

    def terminate(self) -> None:
        """End the processes of the group that still run, and wait for their end."""
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
        """Send a signal to the group; False if it has no processes any more."""
        self._process.poll()  # a zombie still counts as running
        try:
            os.killpg(self._process.pid, signal_number)
        except (ProcessLookupError, PermissionError):  # the latter on macOS
            return False
        return True


def process_start_time(pid: int) -> str | None:
    """When a process started, in the system's units; None if there is no such process.

    It distinguishes a process from a later one with the same id.
    """
    try:
        # The name of the command may contain anything; it ends at the last bracket.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "0"  # a system without /proc


@contextmanager
def pause_gc() -> Iterator[None]:
    """Turn garbage collection off until the block ends, for many new objects that live on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def tune_gc() -> None:
    """Collect garbage after 50,000 new objects instead of 700, and not at exit.

    What a process imports and defines lives until its end. Scanning it took 0.4 seconds of the
    imports, and 0.8 seconds of the exit.
    """
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
