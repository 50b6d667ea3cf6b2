"""Validation of the arguments of declarations, with error messages for the person who declares."""

import codecs
import inspect
import linecache
import os
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date
from functools import cache
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

#: The encodings of CSV files with characters of several bytes. Those of UTF-16 begin with a mark.
UTF_8, UTF_16 = "utf-8", "utf-16"
#: What stands for a byte that is no character in an encoding.
NO_CHARACTER = "\ufffd"
#: Encodings that a message names, with the most usual ones of one byte a character.
USUAL_ENCODINGS = (UTF_8, UTF_16, "latin-1", "cp1252", "iso8859-15", "cp1250", "cp437")
#: The most characters of a value that a message shows.
_MAX_SHOWN_CHARS = 100


class DeclarationError(TypeError):
    """A table, source or lookup is declared wrongly; the message names it and the problem.

    The message ends with the file and line of the declaration, if it is outside of this package.
    """

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text}{declaration_location(traceback.walk_stack(inspect.currentframe()))}"
        )


class DeclarationWarning(UserWarning):
    """A table is declared so that it is built, but less is checked of it than is usual."""


def warn_declaration(text: str) -> None:
    """Warn of a declaration, at its file and line, if they are outside of this package."""
    file, line = _declaring_line(traceback.walk_stack(inspect.currentframe()))
    warnings.warn_explicit(text, DeclarationWarning, file or __name__, line)


def declaration_location(frames: Iterable[tuple[FrameType, int]]) -> str:
    """The first frame, of those with line numbers, that is user code, as text; empty if none."""
    file, line = _declaring_line(frames)
    return f" ({file}, line {line})" if file else ""


def locate_message(message: str, frames: Iterable[tuple[FrameType, int]]) -> str:
    """A message between the text and the place of the first line of `frames` in user code."""
    frames = [*frames]
    source = linecache.getline(*_declaring_line(frames)).strip()
    return f"{f'`{source}`: ' if source else ''}{message}{declaration_location(frames)}"


def _declaring_line(frames: Iterable[tuple[FrameType, int]]) -> tuple[str, int]:
    """The file and line of the first frame that is user code; an empty name if none is."""
    for frame, line in frames:
        file = frame.f_code.co_filename
        # The script of a command declares nothing.
        if is_user_code(file) and frame.f_globals.get("__name__") != "__main__":
            return file, line
    return "", 0


def is_user_code(file: str) -> bool:
    """Whether a source file is neither installed nor of this package."""
    package = Path(__file__).parent.parent
    installed = (sysconfig.get_path("stdlib"), f"{package}{os.sep}", "<")
    return not file.startswith(installed) and "site-packages" not in file


class Argument(NamedTuple):
    """An argument of a declaration; `allowed` is the text after the word `give` in a message."""

    name: str
    value: Any
    fits: Callable[[Any], bool]
    allowed: str


#: By name of an argument, what a value must be, and its `allowed` text.
Rules = Mapping[str, tuple[Callable[[Any], bool], str]]


def arguments_by_rules(values: Mapping[str, Any], rules: Rules) -> list[Argument]:
    """The arguments that have rules, with their values, in the order of the rules."""
    return [Argument(name, values[name], *rule) for name, rule in rules.items()]


def check_arguments(name: str, arguments: Iterable[Argument]) -> None:
    """Raise if an argument has a value that is not allowed.

    Raises:
        DeclarationError: it names each wrong argument, and what is allowed.
    """
    wrong = [
        f"{argument} is {describe_value(value)}: give {allowed}"
        for argument, value, fits, allowed in arguments
        if not fits(value)
    ]
    if wrong:
        raise DeclarationError(f"{name}: {'; '.join(wrong)}")


def describe_value(value: object) -> str:
    """A value as a message shows it: by its name if it has one, else its `repr` on a line, cut."""
    if isinstance(value, type) or inspect.isfunction(value):
        return f"the {'class' if isinstance(value, type) else 'function'} {value.__name__}"
    # The `repr` of a table or a source is long.
    if isinstance(name := getattr(value, "name", None), str):
        return f"the {type(value).__name__} {name}"
    text = " ".join(repr(value).split())
    if len(text) > _MAX_SHOWN_CHARS:
        return f"a {type(value).__name__}, {text[:_MAX_SHOWN_CHARS]}..."
    return text


def is_text(value: object) -> bool:
    """Whether a value is a non-empty string."""
    return isinstance(value, str) and value != ""


def is_name(value: object) -> bool:
    """Whether a value can be the name of a folder, a table and a column."""
    return isinstance(value, str) and value.isidentifier()


def is_date(value: object) -> bool:
    """Whether a value is a date, not a datetime."""
    return type(value) is date


def is_bool(value: object) -> bool:
    """Whether a value is a bool."""
    return isinstance(value, bool)


def is_whole_number(value: object, minimum: int = 0) -> bool:
    """Whether a value is an int of at least `minimum`."""
    return type(value) is int and value >= minimum


def is_share(value: object) -> bool:
    """Whether a value is a share, from 0 to 1."""
    return type(value) in (int, float) and 0 <= value <= 1  # type: ignore[operator]


def none_or(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A test that accepts None and whatever `fits` accepts."""
    return lambda value: value is None or fits(value)


def sequence_of(fits: Callable[[Any], bool], minimum: int = 0) -> Callable[[Any], bool]:
    """A test for a collection of at least `minimum` items, all of which fit."""

    def fits_all(value: Any) -> bool:
        is_collection = isinstance(value, Collection) and not isinstance(
            value, str | bytes | Mapping
        )
        return is_collection and len(value) >= minimum and all(map(fits, value))

    return fits_all


def mapping_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A test for a mapping with string keys, all of whose values fit."""
    return lambda value: (
        isinstance(value, Mapping) and all(map(is_text, value)) and all(map(fits, value.values()))
    )


def encoding_name(encoding: object) -> str:
    """The name of a text encoding as Python knows it; empty if it knows none."""
    try:
        info = codecs.lookup(encoding) if isinstance(encoding, str) else None
        "".encode(info.name if info else "")
    except (LookupError, ValueError):
        return ""
    return info.name.removesuffix("-sig") if info else ""


@cache
def high_characters(encoding: str) -> str:
    """The characters of the bytes 128 to 255 in an encoding; empty unless each byte is one.

    The bytes below are those of ASCII, and a byte that is no character is `NO_CHARACTER`.
    """
    low, high = bytes(range(0x80)), bytes(range(0x80, 0x100))
    if low.decode(encoding, "replace") != low.decode("ascii"):
        return ""
    # A byte may be the first one of a character if another follows that can end it.
    for end in (b"A", b"\xa4"):
        if any(len((bytes([byte]) + end).decode(encoding, "replace")) != 2 for byte in high):
            return ""
    characters = "".join(bytes([byte]).decode(encoding, "replace") for byte in high)
    return characters if {*characters} != {NO_CHARACTER} else ""


def is_encoding(value: object) -> bool:
    """Whether a CSV file may have an encoding."""
    name = encoding_name(value)
    return name in (UTF_8, UTF_16) or bool(name and high_characters(name))


def repeated_sign(signs: Mapping[str, str]) -> str:
    """Why two options of CSV may not be the same character; empty if none are.

    `signs` has, by name, the delimiter, the thousands, the quote, the comment and the decimal.
    """
    for (first, sign), (second, other) in combinations(signs.items(), 2):
        # Numbers in quotes may have the delimiter between their thousands.
        is_quoted = (first, second) == ("delimiter", "thousands") and signs["quote"]
        if sign and sign == other and not is_quoted:
            meant = {
                ("delimiter", "decimal"): 'delimiter=";"',
                ("thousands", "decimal"): f'decimal="{"," if sign == "." else "."}"',
            }
            question = meant.get((first, second), f"another {second}")
            return f"{first} and {second} are both {sign!r}; did you mean {question}?"
    return ""
