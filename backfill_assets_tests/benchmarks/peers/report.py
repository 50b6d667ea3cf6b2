"""The result of each peer, and the Markdown table of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from backfill_assets_tests.benchmarks.results import compare_to_target


@dataclass(frozen=True)
class LateResult:
    """After a late file: what its user had to give, the seconds, and whether all days are right."""

    command: str
    seconds: float
    is_right: bool


@dataclass(frozen=True)
class PoisonResult:
    """A first load with one poisoned day, and its mend.

    Attributes:
        status: how the load ended.
        day_states: what readers see of the poisoned day, by table: right, wrong or missing.
        facts: the number of days of the facts in each state, before the mend.
        mend_seconds: what the mend took, once the file was replaced.
        is_mended: whether all days were right then.
    """

    status: int
    day_states: Mapping[str, str]
    facts: Counter[str]
    mend_seconds: float
    is_mended: bool


@dataclass
class PeerResult:
    """All that was measured of a peer.

    Attributes:
        target: first loads by hand that one of it is to take at most.
    """

    name: str
    versions: str
    cold_seconds: list[float] = field(default_factory=list)
    is_right: bool = True
    again_seconds: float = 0.0
    again_commits: int = 0
    late: LateResult | None = None
    poison: PoisonResult | None = None
    remark: str = ""
    target: float | None = None

    def cold_median(self) -> float:
        """Median seconds of a first load."""
        return median(self.cold_seconds)


HEADINGS = (
    "peer",
    "versions",
    "first load",
    "of by hand",
    "target",
    "measured : target",
    "target is",
    "right",
    "again",
    "late file",
    "poisoned day: readers see",
    "mended in",
)


def format_seconds(seconds: float) -> str:
    """Seconds without more digits than they are worth."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def format_again(result: PeerResult) -> str:
    """The cell of the same command with nothing changed."""
    effect = "all written again" if result.again_commits else "nothing written"
    return f"{format_seconds(result.again_seconds)}, {effect}"


def format_late(late: LateResult | None) -> str:
    """The cell of the late file."""
    if late is None:
        return "not measured"
    verdict = "right" if late.is_right else "**wrong**"
    return f"{late.command}: {format_seconds(late.seconds)}, {verdict}"


def format_poison(poison: PoisonResult | None) -> str:
    """The cell of the poisoned day: the day in each table, and all days of the facts."""
    if poison is None:
        return "not measured"
    states = ", ".join(f"{table} {state}" for table, state in poison.day_states.items())
    days = ", ".join(
        f"{poison.facts[state]} {state}"
        for state in ("right", "wrong", "missing")
        if poison.facts[state]
    )
    ending = "it says so" if poison.status else "it ends as if all were well"
    return f"{states}; days of facts: {days}; {ending}"


def format_mend(poison: PoisonResult | None) -> str:
    """The cell of the mend."""
    if poison is None:
        return "not measured"
    verdict = "" if poison.is_mended else ", **not right**"
    return f"{format_seconds(poison.mend_seconds)}{verdict}"


def format_table(results: Sequence[PeerResult], base: str) -> str:
    """The Markdown table; ratios are to the peer of the name `base`, if it was measured."""
    base_seconds = next((x.cold_median() for x in results if x.name == base), None)
    rows = [HEADINGS, ("---",) * len(HEADINGS)]
    for result in results:
        seconds = result.cold_median()
        ratio = seconds / base_seconds if base_seconds else ""
        rows.append(
            (
                result.name,
                result.versions,
                format_seconds(seconds) + (f" ({result.remark})" if result.remark else ""),
                f"{ratio:.2f}" if ratio else "",
                *compare_to_target(ratio, result.target),
                "yes" if result.is_right else "**no**",
                format_again(result),
                format_late(result.late),
                format_poison(result.poison),
                format_mend(result.poison),
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
