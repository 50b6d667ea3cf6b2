"""Of two imports of one table, one is refused by name, and a dead one is in nobody's way."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from threading import Barrier

import pytest

from backfill_assets.delta import delta_rs
from backfill_assets.deployment import Deployment
from backfill_assets.imports.import_state import (
    ImportMapping,
    ImportRefusedError,
    ImportStep,
    TableImport,
    load_imports,
    lock_import,
    save_import,
    short_digest,
)
from backfill_assets.settings import Settings, load_settings

TABLE = "/data/old"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(warehouse=str(tmp_path))


def write_lock(settings: Settings, host: str, process: int, **more: str) -> str:
    """The lock as another process of this machine, or of another one, has it."""
    url = f"{settings.warehouse}/_imports/orders/{short_digest(TABLE)}.lock"
    holder = {"host": host, "process": process, "since": "2026-01-02T03:04:05Z", "start": "1"}
    text = json.dumps({**holder, "namespace": str(Path("/proc/self/ns/pid").readlink()), **more})
    assert delta_rs.write_document(url, text, delta_rs.NO_REVISION) == 0
    return url


def test_an_import_of_an_earlier_release_is_read(settings):
    """Its mapping was called `how`, and the day of stray rows `stray`."""
    mapping = ImportMapping({"order_id": "id"}, "sent", date(2024, 1, 3))
    step = ImportStep("s", None, 1, {date(2024, 1, 2): 5})
    table_import = TableImport("orders", TABLE, "delta", "id", mapping, steps=[step])
    save_import(Deployment(settings), table_import)
    (file,) = Path(settings.warehouse, "_imports", "orders").glob("*.json")
    text = file.read_text()
    file.write_text(text.replace('"mapping"', '"how"').replace('"stray_day"', '"stray"'))
    assert file.read_text() != text
    assert load_imports(Deployment(settings), "orders") == {TABLE: table_import}


def refusal_message(settings: Settings) -> str:
    with (
        pytest.raises(ImportRefusedError) as refused,
        lock_import(Deployment(settings), "orders", TABLE),
    ):
        pass
    return str(refused.value)


def dead_process_id() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_the_second_is_refused_and_told_of_the_first(settings):
    with lock_import(Deployment(settings), "orders", TABLE):
        message = refusal_message(settings)
    assert f"by process {os.getpid()} on {socket.gethostname()} since" in message
    with lock_import(Deployment(settings), "orders", TABLE):  # the first has ended
        pass


def test_tables_and_sources_do_not_wait_for_each_other(settings):
    with (
        lock_import(Deployment(settings), "orders", TABLE),
        lock_import(Deployment(settings), "visits", TABLE),
        lock_import(Deployment(settings), "orders", "/data/other"),
    ):
        pass


def test_a_failed_import_leaves_no_lock(settings):
    with pytest.raises(ZeroDivisionError), lock_import(Deployment(settings), "orders", TABLE):
        1 / 0  # noqa: B018
    with lock_import(Deployment(settings), "orders", TABLE):
        pass


def test_a_process_of_this_machine_that_has_died_has_no_lock(settings):
    write_lock(settings, socket.gethostname(), dead_process_id())
    with lock_import(Deployment(settings), "orders", TABLE):
        assert f"process {os.getpid()}" in refusal_message(settings)


def test_a_process_that_has_the_id_of_a_dead_one_is_another(settings):
    write_lock(settings, socket.gethostname(), os.getpid())
    with lock_import(Deployment(settings), "orders", TABLE):
        pass


def test_nobody_can_tell_of_another_container_on_this_machine(settings):
    write_lock(settings, socket.gethostname(), dead_process_id(), namespace="pid:[1]")
    assert "since 2026-01-02" in refusal_message(settings)


def test_nobody_can_tell_of_another_machine(settings):
    url = write_lock(settings, "other", dead_process_id())
    message = refusal_message(settings)
    assert "on other since 2026-01-02 03:04 UTC" in message
    assert f"remove {url}" in message


def test_of_many_at_once_one_has_it(settings):
    barrier = Barrier(8)

    def try_lock(_: int) -> bool:
        barrier.wait()
        try:
            with lock_import(Deployment(settings), "orders", TABLE):
                barrier.wait()
        except ImportRefusedError:
            barrier.wait()
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(try_lock, range(8))) == 1
