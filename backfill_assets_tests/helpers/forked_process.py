"""A code server's part in forking: a process that forks two others, which tell of themselves."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from backfill_assets.dagster_ext.code_server import PRELOAD_MODULE, ForkContext


def work(folder: Path, name: str) -> None:
    """Tell of this process; end when told."""
    from backfill_assets import definitions
    from backfill_assets.spark import session

    atexit.register((folder / f"{name}.ended").touch)
    facts: dict[str, Any] = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "tag": session._process_tag(),
        "definitions": len(definitions._defs_by_settings),
        "threads of the parent": [
            task.read_text().strip() for task in Path(f"/proc/{os.getppid()}/task").glob("*/comm")
        ],
    }
    (folder / f"{name}.part").write_text(json.dumps(facts))
    (folder / f"{name}.part").rename(folder / name)
    while not (folder / "end").exists():
        time.sleep(0.05)


if __name__ == "__main__":
    context = ForkContext()
    context.set_forkserver_preload([PRELOAD_MODULE])
    forkserver.ensure_running()
    forked = [context.Process(target=work, args=(Path(sys.argv[1]), name)) for name in "ab"]
    for process in forked:
        process.start()
    for process in forked:
        process.join()
    Path(sys.argv[1], "all ended").touch()
    time.sleep(600)
