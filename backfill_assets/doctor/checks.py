"""The checks of a deployment: run one by one, each with a deadline, and their results."""

import enum
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


class Level(enum.Enum):
    """How serious a result is."""

    OK = "ok"
    #: No action is needed.
    NOTE = "note"
    WRONG = "WRONG"


@dataclass(frozen=True)
class ReportLine:
    """A check's result, in one line each, with the name of its part."""

    part: str
    level: Level
    message: str
    fix: str = ""


@dataclass(frozen=True)
class CheckResult:
    """A check's result: a `ReportLine` without the name of the part."""

    level: Level
    message: str
    fix: str = ""


def ok(message: str) -> CheckResult:
    """A part without a problem."""
    return CheckResult(Level.OK, message)


def note(message: str, fix: str = "") -> CheckResult:
    """A message that needs no action."""
    return CheckResult(Level.NOTE, message, fix)


def wrong(message: str, fix: str) -> CheckResult:
    """A problem, and its fix."""
    return CheckResult(Level.WRONG, message, fix)


@dataclass(frozen=True)
class Check:
    """A check of one part.

    Attributes:
        part: the part's name.
        run: runs the check; an exception is a problem.
        needs: parts without which it cannot be checked.
        seconds: its deadline, if longer than the usual one.
    """

    part: str
    run: Callable[[], Iterable[CheckResult]]
    needs: Sequence[str] = ()
    seconds: float = 0


class CheckRunner:
    """Runs checks one after the other, each in its own thread and with its own deadline.

    Attributes:
        hung: whether a check did not end, so that its thread still runs.
    """

    def __init__(self, checks: Sequence[Check], seconds: float) -> None:
        self.hung = False
        self._checks, self._seconds = checks, seconds
        self._unreachable: set[str] = set()

    def run_checks(self) -> Iterator[ReportLine]:
        """Run the checks, and yield each result at once."""
        for check in self._checks:
            if missing := [part for part in check.needs if part in self._unreachable]:
                message = f"not looked at, because of the line on: {missing[0]}"
                self._unreachable.add(check.part)
                yield ReportLine(
                    check.part, Level.WRONG, message, "mend that first, then ask again"
                )
                continue
            for result in self._run_check(check):
                yield ReportLine(
                    check.part, result.level, _one_line(result.message), _one_line(result.fix)
                )

    def _run_check(self, check: Check) -> Sequence[CheckResult]:
        """Run a check until its deadline; if a result is wrong, results that are OK are dropped."""
        seconds = max(self._seconds, check.seconds)
        results: list[CheckResult] = []
        ended = threading.Event()

        def run_in_thread() -> None:
            """Collect the results in the check's thread; an exception becomes a result too."""
            try:
                results.extend(check.run())
            except Exception as error:  # noqa: BLE001 - the other parts are to be looked at as well
                self._unreachable.add(check.part)
                results.append(_result_from_error(error))
            finally:
                ended.set()

        # A daemon thread: a hanging system call never ends, and the process must not wait for it.
        threading.Thread(target=run_in_thread, name=check.part, daemon=True).start()
        if ended.wait(seconds):
            any_wrong = any(result.level is Level.WRONG for result in results)
            return [result for result in results if not (any_wrong and result.level is Level.OK)]
        self.hung = True
        self._unreachable.add(check.part)
        message = f"no answer within {seconds:g} s"
        fix = "see whether the disk, mount or server behind it answers; --seconds gives it longer"
        return [*results, wrong(message, fix)]


def _result_from_error(error: Exception) -> CheckResult:
    """The problem of a check that raised; the error's type is shown only if it is unexpected."""
    message = str(error) or type(error).__name__
    if isinstance(error, PermissionError):
        return wrong(message, f"let this user ({_user_name()}) have what the line names")
    if isinstance(error, OSError) or type(error).__module__.startswith(
        ("backfill_assets.", "backfill_assets_guide.")
    ):
        return wrong(message, "see what the line says")
    return wrong(f"{type(error).__name__}: {message}", "see what the line says")


def _user_name() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without a name
        return "of this process"


def _one_line(text: str) -> str:
    return " ".join(text.split())
