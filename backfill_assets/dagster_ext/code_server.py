"""Dagster's code server, with runs that are forked from a process with loaded definitions.

`python -m` this module `api grpc ...` is `dagster api grpc ...`. Dagster starts a new Python for
each run, which mostly imports modules before its first step. Python's fork server imports them
once: a process with one thread, and without connections or open files.
"""

import atexit
import os
import signal
import sys
import time
from multiprocessing import forkserver, parent_process
from multiprocessing.context import ForkServerContext, ForkServerProcess
from threading import Thread
from typing import Any

from dagster._cli import main
from dagster._grpc import server

#: The module that the fork server imports.
PRELOAD_MODULE = "backfill_assets.preloaded"


class RunProcess(ForkServerProcess):
    """The process of a run."""

    def run(self) -> None:
        """Run the run, then the exit functions, which forked processes skip."""
        Thread(target=_end_with_fork_server, args=(os.getppid(),), daemon=True).start()
        try:
            super().run()
        finally:
            atexit._run_exitfuncs()  # noqa: SLF001


def _end_with_fork_server(fork_server: int) -> None:
    """End this process if its fork server was killed.

    Dagster's code server learns from the fork server how runs end. Without it, the code server
    takes the runs for dead and they are launched again. If the code server is gone as well, the run
    goes on, see `run_locks`.
    """
    while os.getppid() == fork_server:
        time.sleep(0.5)
    if (code_server := parent_process()) and code_server.is_alive():
        os.kill(os.getpid(), signal.SIGKILL)


class ForkContext(ForkServerContext):
    """Creates the processes of runs."""

    Process = RunProcess


class ForkingServer(server.DagsterApiServer):
    """A code server that forks its runs."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        context = ForkContext()
        context.set_forkserver_preload([PRELOAD_MODULE])
        forkserver.ensure_running()  # now, so that the first run does not wait for it
        assert "_mp_ctx" in vars(self), "Dagster starts runs in another way than it did"
        vars(self)["_mp_ctx"] = context


def run_code_server() -> None:
    """Dagster's command line, with the forking server on Linux."""
    # On other systems the system's libraries may not survive a fork.
    if sys.platform == "linux":
        vars(server)["DagsterApiServer"] = ForkingServer
    main()


if __name__ == "__main__":
    # By the module's own name: the processes of runs unpickle its classes.
    from backfill_assets.dagster_ext.code_server import run_code_server as run_module

    run_module()
