"""The environment of the JVMs, and so of the Python workers, that this package starts.

A shell, cron and systemd each pass on other variables. How Spark computes is decided by the
deployment's settings alone, so that the same command gives the same rows wherever it is called.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
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
