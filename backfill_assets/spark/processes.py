"""Processes: groups that end together, when one began, and less garbage collection in this one.

And when a process began, by which it is told from a later one with the same id.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

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
