"""Looking at the parts of a deployment one by one: none of them can keep the others from it."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


class Level(enum.Enum):
    """What is to be said of a part."""

    OK = "ok"
    #: Nothing has to be done about it.
    NOTE = "note"
    WRONG = "WRONG"


@dataclass(frozen=True)
class Line:
    """What was found out about a part.

    Attributes:
        part: its name.
        level: whether it is as it should be.
        said: what was found, in one line.
        mend: what to do about it; empty if there is nothing to do.
    """

    part: str
    level: Level
    said: str
    mend: str = ""


@dataclass(frozen=True)
class Found:
    """What a check found: a line but for the name of the part."""

    level: Level
    said: str
    mend: str = ""


def ok(said: str) -> Found:
    """All is as it should be."""
    return Found(Level.OK, said)


def note(said: str, mend: str = "") -> Found:
    """Something that a person may want to know."""
    return Found(Level.NOTE, said, mend)


def wrong(said: str, mend: str) -> Found:
    """Something that has to be mended, and how."""
    return Found(Level.WRONG, said, mend)


@dataclass(frozen=True)
class Check:
    """A look at one part.

    Attributes:
        part: its name.
        look: looks at it; what it raises is what is wrong.
        needs: parts without which it cannot be looked at.
        seconds: more than the usual time, for what is known to be slow.
    """

    part: str
    look: Callable[[], Iterable[Found]]
    needs: Sequence[str] = ()
    seconds: float = 0


class Examination:
    """Some checks, one after the other, each in its own thread and with its own deadline.

    Attributes:
        hung: whether a check did not end: its thread lives on.
    """

    def __init__(self, checks: Sequence[Check], seconds: float) -> None:
        """Nothing is looked at yet.

        Args:
            checks: in the order in which they are made.
            seconds: for so long a check may take.
        """
        self.hung = False
        self._checks, self._seconds = checks, seconds
        self._unreachable: set[str] = set()

    def lines(self) -> Iterator[Line]:
        """What was found, as it is found."""
        for check in self._checks:
            if missing := [part for part in check.needs if part in self._unreachable]:
                said = f"not looked at, because of the line on: {missing[0]}"
                self._unreachable.add(check.part)
                yield Line(check.part, Level.WRONG, said, "mend that first, then ask again")
                continue
            for found in self._within(check):
                yield Line(check.part, found.level, _one_line(found.said), _one_line(found.mend))

    def _within(self, check: Check) -> Sequence[Found]:
        """What a check found in its time."""
        seconds = max(self._seconds, check.seconds)
        found: list[Found] = []
        ended = threading.Event()

        def look() -> None:
            try:
                found.extend(check.look())
            except Exception as error:  # noqa: BLE001 - the other parts are to be looked at as well
                self._unreachable.add(check.part)
                found.append(_raised(error))
            finally:
                ended.set()

        # As a daemon: what hangs in the system never ends, and is not waited for at the end.
        threading.Thread(target=look, name=check.part, daemon=True).start()
        if ended.wait(seconds):
            bad = any(one.level is Level.WRONG for one in found)
            return [one for one in found if not (bad and one.level is Level.OK)]
        self.hung = True
        self._unreachable.add(check.part)
        said = f"no answer within {seconds:g} s"
        mend = "see whether the disk, mount or server behind it answers; --seconds gives it longer"
        return [*found, wrong(said, mend)]


def _raised(error: Exception) -> Found:
    """What a check could not do."""
    said = str(error) or type(error).__name__
    if isinstance(error, PermissionError):
        return wrong(said, f"let this user ({_user()}) have what the line names")
    if isinstance(error, OSError) or type(error).__module__.startswith("backfill_assets."):
        return wrong(said, "see what the line says")
    return wrong(f"{type(error).__name__}: {said}", "see what the line says")


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without a name
        return "of this process"


def _one_line(text: str) -> str:
    return " ".join(text.split())
