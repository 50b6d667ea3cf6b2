"""What the arguments of a declaration are: a value of another type is refused in a sentence."""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

#: Characters of a value that a message shows.
_MAX_SHOWN = 100


class DeclarationError(TypeError):
    """A declared table or source is not possible; the message names it and what is wrong.

    The message ends with the file and the line of the declaration, where it has one outside of this
    package.
    """

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text}{declaration_location(traceback.walk_stack(inspect.currentframe()))}"
        )


def declaration_location(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Where code stands that is neither of an installation nor of this package; empty if nowhere.

    Args:
        frames: each with its line; the first of such code counts.
    """
    package = Path(__file__).parent.parent
    installed = (sysconfig.get_path("stdlib"), f"{package}{os.sep}", "<")
    for frame, line in frames:
        file = frame.f_code.co_filename
        is_user_code = not file.startswith(installed) and "site-packages" not in file
        # The script of a command declares nothing.
        if is_user_code and frame.f_globals.get("__name__") != "__main__":
            return f" ({file}, line {line})"
    return ""


class Argument(NamedTuple):
    """An argument of a declaration.

    Attributes:
        name: of the argument.
        value: what is given.
        fits: whether a value is one that is allowed.
        allowed: what is, as it follows the word `give`.
    """

    name: str
    value: Any
    fits: Callable[[Any], bool]
    allowed: str


def check_arguments(name: str, arguments: Iterable[Argument]) -> None:
    """Refuse arguments that are none that are allowed.

    Args:
        name: of what is declared, as the message has it.
        arguments: the arguments.

    Raises:
        DeclarationError: naming each that is none, and what is allowed.
    """
    wrong = [
        f"{argument} is {describe_value(value)}: give {allowed}"
        for argument, value, fits, allowed in arguments
        if not fits(value)
    ]
    if wrong:
        raise DeclarationError(f"{name}: {'; '.join(wrong)}")


def describe_value(value: object) -> str:
    """A value as a message has it: what is named by its name, all else as Python writes it."""
    name = getattr(value, "name", None)
    if isinstance(value, type) or inspect.isfunction(value):
        return f"the {'class' if isinstance(value, type) else 'function'} {value.__name__}"
    # A table or a source is long as Python writes it, and rows are nobody's business.
    if isinstance(name, str):
        return f"the {type(value).__name__} {name}"
    text = " ".join(repr(value).split())
    if len(text) > _MAX_SHOWN:
        return f"a {type(value).__name__}, {text[:_MAX_SHOWN]}..."
    return text


def is_text(value: object) -> bool:
    """Whether a value is a text with something in it."""
    return isinstance(value, str) and value != ""


def is_name(value: object) -> bool:
    """Whether a value can name a folder, a table and a column."""
    return isinstance(value, str) and value.isidentifier()


def is_date(value: object) -> bool:
    """Whether a value is a date, and no moment."""
    return type(value) is date


def is_bool(value: object) -> bool:
    """Whether a value is true or false."""
    return isinstance(value, bool)


def is_whole_number(value: object, minimum: int = 0) -> bool:
    """Whether a value is a whole number, no less than another."""
    return type(value) is int and value >= minimum


def is_share(value: object) -> bool:
    """Whether a value is a share, from 0 to 1."""
    return type(value) in (int, float) and 0 <= value <= 1  # type: ignore[operator]


def none_or(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """What is allowed, and none."""
    return lambda value: value is None or fits(value)


def sequence_of(fits: Callable[[Any], bool], minimum: int = 0) -> Callable[[Any], bool]:
    """A collection such as a list, of no fewer items than so many, all of which fit."""

    def fits_all(value: Any) -> bool:
        is_collection = isinstance(value, Collection) and not isinstance(
            value, str | bytes | Mapping
        )
        return is_collection and len(value) >= minimum and all(map(fits, value))

    return fits_all


def mapping_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A mapping by names, all of whose values fit."""
    return lambda value: (
        isinstance(value, Mapping) and all(map(is_text, value)) and all(map(fits, value.values()))
    )
