"""The service of drill `quota`: exchange rates, for as many calls as somebody has paid for.

It is a process of its own, for programs of this machine only. It ends with the drill, with its
folder, or after a day.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

import requests

from backfill_assets_guide.drills import journal, places
from backfill_assets_guide.labs.loopback import Loopback

_LOOK, _LONGEST, _LONGEST_START = 0.2, 24 * 3600, 60  # seconds
#: So often it is started. The port may be that of one that is about to end.
_STARTS = 3


class Rates(Loopback):
    """The service of a folder.

    A call beyond those that are paid for is answered with 403, as by services that sell calls. A
    call that is repeated counts once: its answer may have been lost.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        """One that listens; as for `Loopback`."""
        self._folder, self._lock = folder, Lock()
        super().__init__(self._answer_rate, port)

    def _answer_rate(self, path: str) -> tuple[int, Mapping[str, Any]]:
        # A copy of a drill has the port of the drill that it was copied from, and is another.
        match = re.fullmatch(rf"/{_folder_key(self._folder)}/rates/(\d{{4}}-\d\d-\d\d)/(\w+)", path)
        if not match:
            known = path == f"/{_folder_key(self._folder)}"
            return 200 if known else 404, {"ask": "/rates/<day>/<currency>"}
        answered = self._folder / places.OWN / places.CALLS_ANSWERED
        with self._lock:
            calls = answered.read_text().splitlines() if answered.exists() else []
            if path not in calls:
                if len(calls) >= _read_number(self._folder / places.OWN / places.CALLS_PAID):
                    return 403, {"error": f"the {len(calls)} calls that are paid for are used up"}
                _replace_file(answered, "\n".join([*calls, path]))
        day, currency = match.groups()
        thousandths = 500 + int(day.replace("-", "")) * 37 % 400
        return 200, {"day": day, "currency": currency, "in_euros": f"{thousandths / 1000:.3f}"}


def pay_calls(folder: Path, calls: int) -> None:
    """Pay for more calls of the service of a folder."""
    paid = folder / places.OWN / places.CALLS_PAID
    _replace_file(paid, str(_read_number(paid) + calls))


@contextmanager
def serve_rates(folder: Path, port: int = 0) -> Iterator[None]:
    """A service of a folder that ends with the block; as for `Loopback`."""
    with Rates(folder, port) as server:
        _replace_file(folder / places.OWN / places.RATES_PORT, str(server.server_address[1]))
        with server.answer_in_thread():
            yield


def start_service(folder: Path) -> None:
    """Start the service of a folder, unless it answers. Its URL stays the same.

    Raises:
        DrillError: it does not start.
    """
    log = folder / places.OWN / "rates.log"
    for _ in range(_STARTS):
        if _is_answering(folder):
            return
        with log.open("a") as log_file:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,  # Ctrl-C is not meant for it
            )
        until = time.monotonic() + _LONGEST_START
        while process.poll() is None and time.monotonic() < until:
            if _is_answering(folder):
                return
            time.sleep(_LOOK)
        process.kill()
        process.wait()
    raise places.DrillError(f"the service of the drill does not start; {log} says why")


def url_of(folder: Path) -> str:
    """The URL of the service of a folder; empty if it has none."""
    port = _read_number(folder / places.OWN / places.RATES_PORT)
    return f"http://127.0.0.1:{port}/{_folder_key(folder)}" if port else ""


def _folder_key(folder: Path) -> str:
    """What the URL of a folder's service has, and that of no other folder."""
    return sha256(str(folder).encode()).hexdigest()[:12]


def _is_answering(folder: Path) -> bool:
    """Whether it is the service of this folder that answers at its URL."""
    url = url_of(folder)
    with requests.Session() as session:
        session.trust_env = False  # no proxy
        try:
            return bool(url) and session.get(url, timeout=5).ok
        except requests.RequestException:
            return False


def _read_number(path: Path) -> int:
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0


def _replace_file(path: Path, text: str) -> None:
    """Write what another process may be reading."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


def main() -> None:
    """Answer until the drill of a folder has ended, or the folder is gone."""
    folder = Path(sys.argv[1])
    since = time.monotonic()
    with serve_rates(folder, _read_number(folder / places.OWN / places.RATES_PORT)):
        while time.monotonic() - since < _LONGEST and not journal.has_ended(folder):
            time.sleep(_LOOK)


if __name__ == "__main__":
    main()
