"""The table that `make bench` ends with: what was measured, what is aimed at, and their ratio."""

from __future__ import annotations

from backfill_assets.report import ReportTable

HEADINGS = ("part", "what", "measured", "target", "measured : target", "target is")
_rows: list[tuple[str, ...]] = []
_part = ""


def begin_part(name: str) -> None:
    """The part that the next results belong to."""
    global _part
    _part = name


def print_result(
    what: str, measured: float | str, target: float | None = None, unit: str = "", note: str = ""
) -> None:
    """Add a row to the table, and print it now as well.

    Args:
        what: is measured.
        measured: a number, or text where several numbers belong together.
        target: what the number is to be at most.
        unit: of both.
        note: what the number is made of.
    """
    text = measured if isinstance(measured, str) else format_number(measured)
    cell = f"{text} {unit}".rstrip() + (f" ({note})" if note else "")
    cells = compare_to_target(measured, target, unit)
    _rows.append((_part, what, cell, *cells))
    aim = f" (target: {cells[0]}, {cells[-1]})" if target is not None else ""
    print(f"  {what}: {cell}{aim}", flush=True)


def compare_to_target(
    measured: float | str, target: float | None, unit: str = ""
) -> tuple[str, str, str]:
    """The cells of the target, of the ratio to it, and of whether it is met; empty without one."""
    if target is None or isinstance(measured, str):
        return "", "", ""
    verdict = "met" if measured <= target else "missed"
    aim = f"{target:,g} {unit}".rstrip()
    return aim, format_number(measured / target), verdict


def format_number(number: float) -> str:
    """Three digits, or more before the decimal point."""
    if isinstance(number, int) or number >= 99.95:
        return f"{number:,.0f}"
    return f"{number:#.3g}" if number >= 0.001 else f"{number:.3f}"


def print_results() -> None:
    """The table of what has run, as Markdown."""
    print(f"\n{ReportTable.from_rows(HEADINGS, _rows).to_markdown()}", flush=True)
